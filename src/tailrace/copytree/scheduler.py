"""A scheduler: gives the operations of its cluster to the readers there, and to others when a reader dies.

A reader keeps a call open to it, so that the end of a reader is noticed when its connection ends, in milliseconds. One
that hangs, or whose machine went down without a word, is given up when its reports stay away. New streams are looked
for when a producer says that there is one, and now and then without being told.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from ..env import Clock
from ..errors import Busy, Closed, CoordinationError, FileProblem
from ..files import Files
from ..wire import Operation, Order, Orders, Report, Running
from .routes import Route, Share, orders_for
from .schedule import GATHER_S, Event, Joined, Left, Reported, Schedule, Tick, Wanted
from .settings import read_settings

LOOK_S = 1.0
SILENT_S = 3.0  # a reader reports twice a second; one that has not for so long does not work any more


class _Line:
    """Orders for one reader: only the newest count."""

    def __init__(self, heard_s: float) -> None:
        self.heard_s = heard_s
        self._changing = threading.Condition()
        self._orders: deque[Orders] = deque(maxlen=1)
        self._over = False

    def put(self, orders: Sequence[Order]) -> None:
        with self._changing:
            self._orders.append(Orders(orders=tuple(orders)))
            self._changing.notify()

    def end(self) -> None:
        with self._changing:
            self._over = True
            self._changing.notify()

    def __iter__(self) -> Iterator[Orders]:
        while True:
            with self._changing:
                while not self._orders and not self._over:
                    self._changing.wait()
                if self._over:
                    return
                orders = self._orders.popleft()
            yield orders


class Scheduler:
    """Implements WorkService. `routes` says what the cluster sends on, `mine` which of that this scheduler sees to.
    `wait` sleeps until a producer or the coordination store has news, or so long."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        routes: Callable[[], Sequence[Route]],
        *,
        mine: Share = lambda operation: True,
        wait: Callable[[float], None] | None = None,
        readers_max: int = 1000,
        schedule: Schedule | None = None,
    ) -> None:
        self._files, self._clock, self._routes, self._mine = files, clock, routes, mine
        self._schedule = schedule or Schedule()
        self._lock = threading.Lock()
        self._lines: dict[str, _Line] = {}
        self._readers_max = readers_max
        self._closed = threading.Event()
        self._nudged = threading.Event()
        self._wait = wait or self._wait_for_nudge
        self.problem = ""
        self._begun_s = clock.monotonic_s()
        self._thread = threading.Thread(target=self._run, name="tailrace scheduler", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Look again now: routes or streams may have changed."""
        self._nudged.set()

    def _wait_for_nudge(self, timeout_s: float) -> None:
        self._nudged.wait(timeout_s)

    def work(self, reports: Iterator[Report]) -> Iterator[Orders]:
        first = next(reports, None)
        if first is None:
            return
        line = self._enter(first.reader)
        listener = threading.Thread(
            target=self._listen, args=(first, reports, line), name=f"tailrace {first.reader}", daemon=True
        )
        listener.start()
        try:
            yield from line
        finally:
            self._leave(first.reader, line)

    @property
    def owners(self) -> dict[Operation, str]:
        with self._lock:
            return dict(self._schedule.owners)

    @property
    def running(self) -> dict[Operation, Running]:
        with self._lock:
            return self._schedule.running()

    @property
    def waiting(self) -> int:
        with self._lock:
            return self._schedule.waiting

    @property
    def gathered(self) -> bool:
        """Whether it has heard what readers run already, and gives orders."""
        return self._clock.monotonic_s() >= self._begun_s + GATHER_S

    def close(self) -> None:
        """Readers go on with what they run."""
        self._closed.set()
        self._nudged.set()
        with self._lock:
            for line in self._lines.values():
                line.end()
        self._thread.join(5.0)

    # ---- inside

    def _enter(self, reader: str) -> _Line:
        with self._lock:
            if self._closed.is_set():
                raise Closed("this scheduler is stopping")
            if reader not in self._lines and len(self._lines) >= self._readers_max:
                raise Busy(f"{self._readers_max} readers are here already")
            if (before := self._lines.pop(reader, None)) is not None:  # it came back before we noticed that it had gone
                before.end()
                self._handle(Left(reader))
            line = self._lines[reader] = _Line(self._clock.monotonic_s())
            self._handle(Joined(reader))
            return line

    def _leave(self, reader: str, line: _Line) -> None:
        with self._lock:
            if self._lines.get(reader) is line:
                del self._lines[reader]
                self._handle(Left(reader))

    def _listen(self, report: Report | None, reports: Iterator[Report], line: _Line) -> None:
        reader = "" if report is None else report.reader
        try:
            while report is not None and report.reader == reader:
                with self._lock:
                    if self._lines.get(reader) is not line:
                        return
                    line.heard_s = self._clock.monotonic_s()
                    self._handle(Reported(reader, report.running))
                report = next(reports, None)
        finally:
            self._leave(reader, line)
            line.end()

    def _run(self) -> None:
        while not self._closed.is_set():
            self._nudged.clear()
            try:
                wanted = orders_for(self._routes(), lambda stream: read_settings(self._files, stream), self._mine)
                self.problem = ""
            except (FileProblem, CoordinationError) as problem:  # what runs goes on; the next look may succeed
                self.problem = str(problem)
                wanted = None
            with self._lock:
                self._handle(Tick() if wanted is None else Wanted(wanted))
                silent_s = self._clock.monotonic_s() - SILENT_S
                silent = [(reader, line) for reader, line in self._lines.items() if line.heard_s < silent_s]
            for reader, line in silent:
                self._leave(reader, line)
                line.end()
            self._wait(LOOK_S if self.gathered else GATHER_S / 3)

    def _handle(self, event: Event) -> None:
        for tell in self._schedule.handle(event, self._clock.monotonic_s()):
            if (line := self._lines.get(tell.reader)) is not None:
                line.put(tell.orders)
