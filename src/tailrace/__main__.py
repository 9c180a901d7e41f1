"""`python -m tailrace` is the command `tailrace`."""

from .node.cli import main

if __name__ == "__main__":
    main()
