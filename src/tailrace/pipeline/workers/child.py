"""The process that a ProcessWorker starts."""

from .processes import serve

if __name__ == "__main__":
    serve()
