"""A reader: runs the operations that its scheduler orders, and goes on with them while the scheduler is away.

One thread for the whole reader waits for news of all streams it copies, and wakes the operations they concern (A26).
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ..config import TlsConfig
from ..env import Clock
from ..errors import StreamMissing
from ..files import Files
from ..native.hints import WAIT_MAX, Waiter
from ..wire import Opening, Operation, Order, Running
from .copying import Copying, Source
from .durable_source import DurableSource
from .settings import StreamSettings, read_settings

if TYPE_CHECKING:  # with it comes gRPC
    from ..wire import CopyPeer

POLL_S = 0.05  # how soon operations look without being told
SHED_S = 5.0  # how often an operation may move to the writer that it prefers
BACK_S, BACK_S_MAX = 2.0, 60.0  # before an operation that was displaced is tried again


class SourcePlace(Protocol):
    """What a reader needs of its cluster."""

    @property
    def files(self) -> Files: ...

    def waiter(self, incarnations: Iterable[str]) -> Waiter | None:
        """What to sleep on until one of these streams has news; None: there is no such thing here."""
        ...

    def durable_source(self, operation: Operation, settings: StreamSettings) -> DurableSource: ...

    def cache_source(self, operation: Operation, settings: StreamSettings, wake: Callable[[], object]) -> Source: ...

    def changed(self, shards: Iterable[tuple[str, int]]) -> "set[tuple[str, int]] | None":
        """Which of these (incarnation, shard) have news; None: all of them may."""
        ...


class Reader:
    def __init__(
        self,
        name: str,
        cluster: str,
        place: SourcePlace,
        clock: Clock,
        *,
        tls: TlsConfig | None = None,
        poll_s: float = POLL_S,
        connect: "Callable[[str], CopyPeer] | None" = None,
    ) -> None:
        self.name, self.cluster, self._place, self._clock = name, cluster, place, clock
        self._poll_s = poll_s
        self._tls = tls
        self._dial = connect or self._make_peer
        self._lock = threading.Lock()
        self._peers: dict[str, CopyPeer] = {}
        self._copyings: dict[Operation, Copying] = {}
        self._incarnations: dict[str, str] = {}
        self._moving: tuple[Copying, Copying] | None = None  # one that is to have another writer, and its successor
        self._shed_s = clock.monotonic_s() + SHED_S
        self._displaced: dict[Operation, tuple[float, float]] = {}  # when to try again, and the pause before that
        self._waiter: Waiter | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=f"tailrace reader {name}", daemon=True)
        self._thread.start()

    def order(self, orders: Iterable[Order]) -> None:
        """These operations and no others."""
        wanted = {order.operation: order for order in orders}
        with self._lock:
            if self._closed.is_set():
                return
            running = dict(self._copyings)
        for operation, copying in running.items():
            order = wanted.get(operation)
            if order is not None and replace(order, writers=()) == replace(copying.order, writers=()):
                copying.order = order  # writers come and go: that is no reason to stop
            else:
                copying.stop()
                with self._lock:
                    self._copyings.pop(operation, None)
                    self._displaced.pop(operation, None)
        for operation, order in wanted.items():
            with self._lock:
                if operation not in self._copyings and not self._closed.is_set():
                    self._copyings[operation] = Copying(order, self._clock, self._begin, self._connect)

    def wait_for_change(self, timeout_s: float, over: threading.Event) -> None:
        """Until an operation has begun or ended, or so long."""
        end_s, before = self._clock.monotonic_s() + timeout_s, self._states()
        while not over.is_set() and self._clock.monotonic_s() < end_s and self._states() == before:
            over.wait(0.02)

    def _states(self) -> list[str]:
        return [running.state for running in self.running]

    @property
    def running(self) -> list[Running]:
        with self._lock:
            return [copying.running for copying in self._copyings.values()]

    def close(self) -> None:
        self._closed.set()
        if (waiter := self._waiter) is not None:
            waiter.stop()
        with self._lock:
            copyings, self._copyings = list(self._copyings.values()), {}
            copyings += self._moving or ()
        for copying in copyings:
            copying.stop()
        for copying in copyings:
            copying.join(5.0)
        self._thread.join(5.0)
        for peer in self._peers.values():
            peer.close()

    # ---- inside

    def _connect(self, address: str) -> "CopyPeer":
        with self._lock:
            if address not in self._peers:
                self._peers[address] = self._dial(address)
            return self._peers[address]

    def _wake_one(self, operation: Operation) -> None:
        for copying in (self._copyings.get(operation), *(self._moving or ())):
            if copying is not None:
                copying.wake()

    def _make_peer(self, address: str) -> "CopyPeer":
        from ..wire import CopyPeer

        return CopyPeer(address, tls=self._tls)

    def _begin(self, order: Order) -> tuple[Opening, Source]:
        operation = order.operation
        settings = read_settings(self._place.files, operation.stream)
        if settings is None:
            raise StreamMissing(f"{operation}: there is no such stream in {self.cluster} yet")
        with self._lock:
            if self._incarnations.get(operation.stream) != settings.incarnation:
                self._incarnations[operation.stream] = settings.incarnation
                if (waiter := self._waiter) is not None:
                    waiter.stop()  # it is to wait for this one, too
        opening = Opening(
            operation=operation,
            source=self.cluster,
            origin=order.origin,
            settings=settings.raw,
            epoch=order.epoch,
            reader=self.name,
        )
        if operation.storage == "cache":
            return opening, self._place.cache_source(operation, settings, lambda: self._wake_one(operation))
        return opening, self._place.durable_source(operation, settings)

    def _listen(self) -> None:
        watched_s = 0.0
        while not self._closed.is_set():
            with self._lock:
                incarnations = dict(self._incarnations)
                copyings = dict(self._copyings)
                self._waiter = waiter = self._make_waiter(incarnations.values())
            told = True
            while told and not self._closed.is_set() and incarnations == self._incarnations:
                if waiter is not None:
                    waiter.look()
                with self._lock:
                    copyings = dict(self._copyings)
                self._wake(copyings, incarnations)
                now_s = self._clock.monotonic_s()
                if now_s >= watched_s + 0.25:
                    watched_s = now_s
                    for operation, copying in copyings.items():
                        copying.watch(now_s)
                        if copying.over:
                            self._come_back(operation, copying, now_s)
                        elif now_s >= self._displaced.get(operation, (now_s + 1.0, 0.0))[0]:
                            del self._displaced[operation]  # it has held for as long as it had waited: all is well
                    self._shed(copyings, now_s)
                if waiter is None:
                    told = False
                    self._closed.wait(self._poll_s)
                else:
                    waiter.wait(self._poll_s)

    def _shed(self, copyings: dict[Operation, Copying], now_s: float) -> None:
        """Now and then one operation moves to the writer that it prefers: a writer that came back gets its share again.
        The new one is begun first, and displaces the old one; but if that writer is not there, all stays as it is."""
        if self._moving is not None:
            self._move(*self._moving, now_s)
        if now_s < self._shed_s:
            return
        self._shed_s = now_s + SHED_S
        for copying in copyings.values():
            running, preferred = copying.running, copying.order.writers[0]
            if running.state == "running" and running.writer != preferred and self._moving is None:
                order = replace(copying.order, writers=(preferred,))
                with self._lock:
                    if not self._closed.is_set():
                        self._moving = copying, Copying(order, self._clock, self._begin, self._connect)
                return

    def _move(self, old: Copying, new: Copying, now_s: float) -> None:
        operation, state = old.order.operation, new.running.state
        new.watch(now_s)
        with self._lock:
            wanted = self._copyings.get(operation) is old
            if wanted and state == "starting":
                return
            if moves := wanted and state == "running":
                new.order = old.order
                self._copyings[operation] = new
                self._displaced.pop(operation, None)
            self._moving = None
        (old if moves else new).stop()
        if wanted and not moves and old.over:
            self._displaced[operation] = (now_s, BACK_S)  # it was displaced by a successor that is no more

    def _come_back(self, operation: Operation, copying: Copying, now_s: float) -> None:
        """A newer operation has displaced this one, and yet it is still ordered: the other may have been a mistake. It
        is tried again, but later each time, so that two that are both ordered do not keep each other from work."""
        if operation not in self._displaced:
            self._displaced[operation] = (now_s + BACK_S, BACK_S)
            return
        due_s, pause_s = self._displaced[operation]
        if now_s >= due_s:
            pause_s = min(pause_s * 2, BACK_S_MAX)
            self._displaced[operation] = (now_s + pause_s, pause_s)
            with self._lock:
                if self._copyings.get(operation) is copying and not self._closed.is_set():
                    self._copyings[operation] = Copying(copying.order, self._clock, self._begin, self._connect)

    def _wake(self, copyings: dict[Operation, Copying], incarnations: dict[str, str]) -> None:
        places = {
            (incarnations[operation.stream], operation.shard)
            for operation in copyings
            if operation.stream in incarnations
        }
        changed = self._place.changed(places)
        for operation, copying in copyings.items():
            if changed is None or (incarnations.get(operation.stream, ""), operation.shard) in changed:
                copying.wake()
        if (moving := self._moving) is not None:
            moving[1].wake()

    def _make_waiter(self, incarnations: Iterable[str]) -> Waiter | None:
        known = set(incarnations)
        return self._place.waiter(known) if 0 < len(known) <= WAIT_MAX else None
