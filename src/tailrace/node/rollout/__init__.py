"""A rolling restart: every process of a world anew, while producers and consumers go on."""
