"""What carries out tasks."""

from .interface import Elastic, InlineWorker, Worker
from .processes import ProcessWorker

__all__ = ["Elastic", "InlineWorker", "ProcessWorker", "Worker"]
