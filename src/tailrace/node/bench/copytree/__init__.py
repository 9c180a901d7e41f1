"""What a hop of the copy tree adds, how much one pair of reader and writer carries, how soon a world heals."""
