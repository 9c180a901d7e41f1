"""A writer: takes what readers upstream send, and puts it into this cluster's storage.

A durable operation has two threads: one takes batches off the wire and appends them, the other makes durable what has
come meanwhile, all of it at once. What is not durable yet is bounded by the window that the reader was told. A cache
operation has one: nothing in it waits, and each hand-over between threads would cost as much as the chunks of a small
batch.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ..env import Clock, SystemClock
from ..errors import Busy, Closed, Superseded, TailraceError, WireRefused
from ..files import Files
from ..wire import Batch, Opening, Operation, Standing
from .compression import expand
from .durable_target import WINDOW_BYTES, DurableTarget
from .settings import StreamSettings, adopt

_BATCHES_MAX = 4096  # that may wait, however small they are
_MEMORY_BYTES = 256 << 20  # for what is on its way: a window is a share of it, as many operations as there are then
_WINDOW_BYTES_MIN, _CACHE_WINDOW_BYTES = 1 << 20, 8 << 20  # what waits for a cache is late, so that less is enough
_GROUP_S = 0.01  # how long to wait at most for more to make durable at once
_UNSAID_MAX = 2  # batches, before the reader hears of them: each word wakes half a dozen threads, and it has room for 4


class Target(Protocol):
    """The writing half of an operation."""

    @property
    def waits(self) -> bool:
        """Whether it waits for a disk when it settles: then another thread goes on taking."""
        ...

    def begin(self) -> Standing: ...

    def take(self, batch: Batch) -> None: ...

    def settle(self) -> Standing:
        """What was taken is safe now, and visible. How it stands."""
        ...

    def close(self) -> None: ...


class Place(Protocol):
    """What a writer needs of its cluster."""

    @property
    def files(self) -> Files: ...

    def flushed(self, settings: StreamSettings) -> None:
        """More has become visible: wake those who wait for it."""
        ...

    def rolled(self, stream: str, shard: int) -> None:
        """A new segment has begun: the moment to collect old ones."""
        ...

    def cache_target(self, opening: Opening, settings: StreamSettings) -> Target:
        """Closed or Busy if there is no cache here now."""
        ...


@dataclass(frozen=True, slots=True)
class _Came:
    """Batches that are to be settled."""

    batches: int = 0
    size: int = 0
    behind_bytes: int = 0  # of the last one: what its reader had still to send
    beats: bool = False  # the last one was nothing but a sign of life

    def and_then(self, batch: Batch) -> "_Came":
        return _Came(self.batches + 1, self.size + batch.size, batch.behind_bytes, not batch.pieces)


class _Waiting:
    """What has come and is not settled, between the two threads. What a sync costs hardly depends on how much it
    covers: so while the source is far behind, a quarter of the window is worth waiting for."""

    def __init__(self, window_bytes: int) -> None:
        self._limit_bytes = window_bytes + (16 << 20)  # the last batch may go over the window
        self._group_bytes = window_bytes // 4
        self._wanted_bytes = 0  # by who waits
        self._came = _Came()
        self._changing = threading.Condition()
        self._over = False
        self._problem: Exception | None = None

    def admit(self, batch: Batch) -> None:
        """Before it is taken: a reader that ignores its window fills no disk's memory here."""
        size = self._came.size + batch.size
        if size > self._limit_bytes or self._came.batches >= _BATCHES_MAX:
            raise WireRefused(f"{size} bytes on their way, more than the window that was given")

    def put(self, batch: Batch) -> None:
        with self._changing:
            self._came = self._came.and_then(batch)
            if self._came.size >= self._wanted_bytes:
                self._changing.notify()

    def end(self, problem: Exception | None) -> None:
        with self._changing:
            self._over, self._problem = True, self._problem or problem
            self._changing.notify()

    def displace(self, problem: Superseded) -> None:
        """What waits is not settled any more: it is another's now."""
        with self._changing:
            self._came = _Came()
            self._over, self._problem = True, self._problem or problem
            self._changing.notify()

    def take(self) -> _Came | None:
        """All that waits, at least a batch; None: there will be no more, and all that came is settled."""
        with self._changing:
            while not self._came.batches and not self._over:
                self._changing.wait()
            if self._came.behind_bytes >= self._group_bytes:
                self._wanted_bytes = self._group_bytes
                self._changing.wait_for(lambda: self._over or self._came.size >= self._group_bytes, _GROUP_S)
                self._wanted_bytes = 0
            came, self._came = self._came, _Came()
            if not came.batches and self._problem is not None:
                raise self._problem
            return came if came.batches else None


@dataclass(slots=True)
class Arrival:
    """How an operation stands here: when its reader was last heard, and how much it had still to send."""

    opening: Opening
    stop: Callable[[], None]
    window_bytes: int
    waiting: _Waiting
    heard_s: float
    behind_bytes: int | None = None
    displaced: Superseded | None = None

    def displace(self, problem: Superseded) -> None:
        """By a word, not by a broken call: that would be tried again at once, and would displace its successor. Who
        waits for the wire hears it with the next batch, or beat."""
        self.displaced = problem
        self.waiting.displace(problem)


class Writer:
    """Implements CopyService. `admit` raises for what this cluster does not take."""

    def __init__(
        self,
        cluster: str,
        place: Place,
        *,
        admit: Callable[[Opening], None] = lambda opening: None,
        window_bytes: int = WINDOW_BYTES,
        operations_max: int = 256,
        clock: Clock | None = None,
    ) -> None:
        self.cluster, self._place, self._admit = cluster, place, admit
        self._window_bytes, self._operations_max = window_bytes, operations_max
        self._clock = clock or SystemClock()
        self._lock, self._adopting = threading.Lock(), threading.Lock()
        self._running: dict[Operation, Arrival] = {}
        self._closed = False
        self.taken_bytes = 0

    @property
    def running(self) -> list[Opening]:
        with self._lock:
            return [arrival.opening for arrival in self._running.values()]

    @property
    def arrivals(self) -> list[Arrival]:
        with self._lock:
            return list(self._running.values())

    def close(self) -> None:
        """End all operations; their readers look for another writer."""
        with self._lock:
            self._closed = True
            stops = [arrival.stop for arrival in self._running.values()]
        for stop in stops:
            stop()

    def copy(self, opening: Opening, batches: Iterator[Batch], stop: Callable[[], None]) -> Iterator[Standing]:
        operation = opening.operation
        if operation.target != self.cluster:
            raise WireRefused(f"{operation}: this writer belongs to {self.cluster}")
        self._admit(opening)
        settings = StreamSettings.parse(opening.settings, operation.stream)
        if operation.shard >= settings.config.shards:
            raise WireRefused(f"{operation}: the stream has shards 0 to {settings.config.shards - 1}")
        arrival = self._enter(opening, stop)
        try:
            with self._adopting:  # all shards come at once: one does it, the others find it done
                here = adopt(self._place.files, operation.stream, opening.origin, settings)
            yield from self._run(self._target(opening, here, arrival.window_bytes), batches, arrival)
        finally:
            self._leave(opening)

    def _run(self, target: Target, batches: Iterator[Batch], arrival: Arrival) -> Iterator[Standing]:
        window_bytes = arrival.window_bytes
        try:
            yield replace(target.begin(), window_bytes=window_bytes)
            said_bytes = unsaid = 0
            for came in _beside(target, batches, arrival.waiting) if target.waits else _in_turn(target, batches):
                if arrival.displaced is not None:
                    raise arrival.displaced
                standing = target.settle()
                arrival.heard_s, arrival.behind_bytes = self._clock.monotonic_s(), came.behind_bytes
                self.taken_bytes += came.size
                unsaid += came.batches
                unsaid_bytes = standing.taken_bytes - said_bytes
                if unsaid >= _UNSAID_MAX or unsaid_bytes * 4 >= window_bytes or came.beats:
                    said_bytes, unsaid = standing.taken_bytes, 0
                    yield replace(standing, window_bytes=window_bytes)
        finally:
            target.close()

    def _window(self, operation: Operation) -> int:
        share = max(_WINDOW_BYTES_MIN, _MEMORY_BYTES // len(self._running.keys() | {operation}))
        return min(self._window_bytes, share, _CACHE_WINDOW_BYTES if operation.storage == "cache" else share)

    def _target(self, opening: Opening, settings: StreamSettings, window_bytes: int) -> Target:
        operation = opening.operation
        if operation.storage == "cache":
            return self._place.cache_target(opening, settings)
        return DurableTarget(
            self._place.files,
            opening,
            incarnation=settings.incarnation,
            window_bytes=window_bytes,
            cached=settings.config.cached,
            on_flushed=lambda: self._place.flushed(settings),
            on_roll=lambda: self._place.rolled(operation.stream, operation.shard),
        )

    def _enter(self, opening: Opening, stop: Callable[[], None]) -> Arrival:
        """A newer operation displaces the one that runs here; one of an older tree does not."""
        operation = opening.operation
        with self._lock:
            if self._closed:
                raise Closed(f"{operation}: this writer is stopping; try another")
            before = self._running.get(operation)
            if before is not None and before.opening.epoch > opening.epoch:
                raise Superseded(f"{operation}: {before.opening.source} copies to it, by a newer tree")
            if before is None and len(self._running) >= self._operations_max:
                raise Busy(f"{operation}: this writer has {self._operations_max} operations; try another")
            window_bytes, now_s = self._window(operation), self._clock.monotonic_s()
            arrival = Arrival(opening, stop, window_bytes, _Waiting(window_bytes), now_s)
            self._running[operation] = arrival
        if before is not None:
            before.displace(Superseded(f"{operation}: {opening.reader} copies to it now"))
        return arrival

    def _leave(self, opening: Opening) -> None:
        with self._lock:
            now = self._running.get(opening.operation)
            if now is not None and now.opening is opening:
                del self._running[opening.operation]


def _in_turn(target: Target, batches: Iterator[Batch]) -> Iterator[_Came]:
    for batch in map(_expanded, batches):
        target.take(batch)
        yield _Came().and_then(batch)


def _beside(target: Target, batches: Iterator[Batch], waiting: _Waiting) -> Iterator[_Came]:
    threading.Thread(target=_receive, args=(target, batches, waiting), name="tailrace copies", daemon=True).start()
    while (came := waiting.take()) is not None:
        yield came


def _receive(target: Target, batches: Iterator[Batch], waiting: _Waiting) -> None:
    problem: Exception | None = None
    try:
        for batch in map(_expanded, batches):
            waiting.admit(batch)
            target.take(batch)
            waiting.put(batch)
    except TailraceError as refused:
        problem = refused
    finally:
        waiting.end(problem)


def _expanded(batch: Batch) -> Batch:
    return replace(batch, pieces=tuple(map(expand, batch.pieces)))
