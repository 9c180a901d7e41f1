"""What carries out tasks: this process, processes beside it, or Spark."""

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from ..work import Performer, Result, Task

#: The next task, or None when there is none for the moment.
Next = Callable[[], Task | None]


class Worker(Protocol):
    @property
    def slots(self) -> int:
        """How many tasks run side by side."""
        ...

    def run(self, next_task: Next) -> Iterator[Result]:
        """Take tasks as slots become free, and give one result for each, as they come, until there is neither. Whatever
        happens to a task is its result, and nobody else's."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Elastic(Protocol):
    """A worker whose slots can change while it runs."""

    def resize(self, slots: int) -> None: ...


class InlineWorker:
    """In this process, one after the other. A function that ends the process ends the pipeline's runner, too."""

    slots = 1

    def __init__(self, performer: Performer) -> None:
        self._performer = performer

    def run(self, next_task: Next) -> Iterator[Result]:
        while (task := next_task()) is not None:
            yield self._performer.perform(task)

    def close(self) -> None: ...
