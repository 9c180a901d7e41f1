"""The native room, held against a dumb model of itself."""
