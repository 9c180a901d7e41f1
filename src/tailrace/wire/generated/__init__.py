"""Made by generate.sh; not for hands."""
