"""The process that a ProcessWorker starts."""

from .processes import main

if __name__ == "__main__":
    main()
