"""What carries out tasks."""

from .interface import InlineWorker, Worker
from .processes import ProcessWorker

__all__ = ["InlineWorker", "ProcessWorker", "Worker"]
