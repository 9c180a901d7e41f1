"""Gives tasks to processes and takes their results, whoever it is that starts the processes.

Each has one task under way and one waiting, so that it does not stand still while the results of others are committed.
A process that dies takes only the task with it that it was at; the one that waited goes to somebody else.
"""

import selectors
import time
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from ..failure import Failure
from ..work import Cost, Failed, Result, Task
from .interface import Next

_DEPTH = 2  # tasks of one process
_LOOK_S = 0.05  # how soon a free one asks again while others are at work


class Hand(Protocol):
    """A process, as far as one has to do with it here."""

    def fileno(self) -> int:
        """Readable: there is a result, or it has died."""
        ...

    def begin(self, task: Task) -> None:
        """If it is dead, its result will say so."""
        ...

    def result(self) -> Result | None:
        """None: it has died."""
        ...


class Crew(Protocol):
    @property
    def slots(self) -> int: ...

    def ready(self) -> bool:
        """Whether `take` would give a hand now."""
        ...

    def take(self) -> Hand: ...

    def give_back(self, hand: Hand) -> None: ...

    def end(self, hand: Hand) -> str:
        """It has died, or shall. How it came to that, for people."""
        ...


def drive(crew: Crew, next_task: Next, deadline_s: float) -> Iterator[Result]:
    """As Worker.run has it. `deadline_s`: a task that takes longer is ended, since its function seems to hang."""
    work = _Work(crew, next_task)
    try:
        while True:
            work.fill()
            if not work.busy:
                return
            yield from work.listen()
            yield from work.give_up(deadline_s)
    finally:
        work.close()


class _Work:
    def __init__(self, crew: Crew, next_task: Next) -> None:
        self._crew, self._next_task = crew, next_task
        self.busy: dict[Hand, deque[Task]] = {}
        self._since_s: dict[Hand, float] = {}  # when it began what it is at
        self._orphans: deque[Task] = deque()  # waited behind a task that ended its process
        self._ready = selectors.DefaultSelector()

    def fill(self) -> None:
        """As far as there are tasks: first everybody gets one, then the next."""
        for depth in range(1, _DEPTH + 1):
            while (hand := self._hand(depth)) is not None:
                task = self._orphans.popleft() if self._orphans else self._next_task()
                if task is None:
                    if not self.busy[hand]:
                        self._rest(hand)
                    return
                if not self.busy[hand]:
                    self._since_s[hand] = time.monotonic()
                self.busy[hand].append(task)
                hand.begin(task)

    def _hand(self, depth: int) -> Hand | None:
        """One with fewer tasks than that."""
        if len(self.busy) < self._crew.slots and self._crew.ready():
            hand = self._crew.take()
            self.busy[hand] = deque()
            self._ready.register(hand, selectors.EVENT_READ)
            return hand
        return next((hand for hand, tasks in self.busy.items() if len(tasks) < depth), None)

    def _rest(self, hand: Hand) -> None:
        self._forget(hand)
        self._crew.give_back(hand)

    def _forget(self, hand: Hand) -> None:
        self._ready.unregister(hand)
        del self.busy[hand]
        self._since_s.pop(hand, None)

    def listen(self) -> Iterator[Result]:
        idle = any(len(tasks) < _DEPTH for tasks in self.busy.values()) or len(self.busy) < self._crew.slots
        for key, _ in self._ready.select(timeout=_LOOK_S if idle else 1.0):
            hand: Hand = key.fileobj  # type: ignore[assignment]
            result = hand.result()
            if result is None:
                yield self._bury(hand)
                continue
            assert result.unit == self.busy[hand][0].unit, result
            self.busy[hand].popleft()
            self._since_s[hand] = time.monotonic()
            if not self.busy[hand]:
                self._rest(hand)
            yield result

    def give_up(self, deadline_s: float) -> Iterator[Result]:
        now_s = time.monotonic()
        for hand in [hand for hand in self.busy if now_s - self._since_s[hand] > deadline_s]:
            yield self._bury(hand, f"no result within {deadline_s:g} s; its process was ended")

    def _bury(self, hand: Hand, reason: str | None = None) -> Failed:
        tasks, wall_s = self.busy[hand], time.monotonic() - self._since_s[hand]
        self._forget(hand)
        died_of = self._crew.end(hand)
        self._orphans.extend(list(tasks)[1:])
        return Failed(tasks[0].unit, Failure(reason or died_of), Cost(wall_s=wall_s))

    def close(self) -> None:
        """Whoever asked does not want the rest."""
        for hand in list(self.busy):
            self._forget(hand)
            self._crew.end(hand)
        self._ready.close()
