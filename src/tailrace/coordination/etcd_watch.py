"""One watch in etcd: a thread reads what a member sends, and goes on with another member where the last one stopped.

Invariants: every change of our keys is taken once, in order of revisions; what waits to be handed out is bounded, and
beyond that the member waits, too. A member that stands still without a word is found out by whoever polls: now and then
another is asked how far the store is, and if the watch does not get there it goes on with that one.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from tailrace.env import Clock
from tailrace.errors import Closed, CoordinationError, WireProblem
from tailrace.wire import EtcdWatch, WatchEvent

from .etcd_members import Members
from .interface import Compacted, Event, Watch

if TYPE_CHECKING:
    from .etcd import EtcdCoordination

_PENDING_MAX = 10_000  # events that wait to be handed out
_AT_ONCE_S = 0.05  # whoever waits for less wants to know what is there now: then etcd is asked how far it is
_SEND_S = 0.25  # what is stored is sent within this, if it is for us at all
_LOOK_S = 0.5
_DOUBT_S = 1.0  # after so long without a change, and then less and less often, it is asked how far the store is
_DOUBT_MAX_S = 30.0


class EtcdFollowing(Watch):
    def __init__(
        self,
        store: "EtcdCoordination",
        members: Members,
        clock: Clock,
        tried: str,
        bounds: tuple[bytes, bytes],
        after: int,
    ) -> None:
        self._store, self._members, self._clock = store, members, clock
        self._tried, self._bounds = tried, bounds
        self._after = after  # all up to here was taken from etcd
        self._pending: deque[Event] = deque()
        self._problem: CoordinationError | None = None
        self._changing = threading.Condition()
        self._wake = threading.Event()
        self._closed = False
        self._doubt_s = _DOUBT_S
        self._sure_s = time.monotonic()  # then the watch was known to be up to date
        self._call: EtcdWatch | None = None
        self._thread = threading.Thread(target=self._follow, name="tailrace etcd watch", daemon=True)
        self._thread.start()

    @property
    def revision(self) -> int:
        with self._changing:
            return self._pending[0].revision - 1 if self._pending else self._after

    def poll(self, timeout_s: float) -> list[Event]:
        self._check_open()
        if timeout_s < _AT_ONCE_S:
            self._catch_up()
        deadline_s = self._clock.monotonic_s() + timeout_s
        while True:
            self._wake.clear()
            if events := self._take():
                return events
            if (left_s := deadline_s - self._clock.monotonic_s()) <= 0:
                return []
            self._doubt()
            self._clock.wait(self._wake, min(left_s, _LOOK_S))

    def close(self) -> None:
        self._closed = True
        self.end()

    def end(self) -> None:
        """The store was closed, or this watch: whoever waits notices."""
        with self._changing:
            call = self._call
            self._changing.notify_all()
        if call is not None:
            call.close()
        self._wake.set()

    def __iter__(self) -> Iterator[Event]:
        while not self._closed:
            try:
                self._check_open()
                self._wake.clear()
                with self._changing:
                    event = self._pending.popleft() if self._pending else None
                    self._changing.notify_all()
                    if event is None and self._problem is not None:
                        raise self._problem
                if event is not None:
                    yield event
                else:
                    self._doubt()
                    self._clock.wait(self._wake, _LOOK_S)
            except Closed:
                if not self._closed:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"{self._tried}: the watch was closed; make a new one, from revision {self.revision}")
        self._members.check_open(self._tried)

    def _take(self) -> list[Event]:
        self._check_open()
        with self._changing:
            events = list(self._pending)
            self._pending.clear()
            self._changing.notify_all()
            if not events and self._problem is not None:
                raise self._problem
            return events

    def _catch_up(self) -> bool:
        """Wait until all that is stored by now has come, or so much that it must be handed out first."""
        target = self._store.revision(self._tried)
        with self._changing:
            came = self._changing.wait_for(
                lambda: self._after >= target or self._problem or self._closed or len(self._pending) >= _PENDING_MAX,
                _SEND_S,
            )
        self._sure_s = time.monotonic()
        return bool(came)

    def _doubt(self) -> None:
        if time.monotonic() - self._sure_s < self._doubt_s:
            return
        try:
            if self._catch_up():
                return
        except CoordinationError:
            return  # nobody answers: then nothing changes either
        # Either the member stands still, or others write to this etcd, too, which the watch does not see.
        self._doubt_s = min(2 * self._doubt_s, _DOUBT_MAX_S)
        with self._changing:
            call = self._call
        if call is not None:
            call.close()

    def _follow(self) -> None:
        while not self._closed and self._problem is None:
            try:
                self._follow_one()
            except Closed:
                return
            except WireProblem:
                if not self._closed:
                    self._members.pause()
            except Exception as bug:  # whoever polls must hear of it, or would wait forever
                self._fail(CoordinationError(f"{self._tried} in etcd: {type(bug).__name__}: {bug}; watch anew"))
                raise

    def _follow_one(self) -> None:
        """Follow one member until it fails, or there is nothing more to follow."""
        number, peer = self._members.current(self._tried)
        first, end = self._store.bounds
        call = peer.watch(first, end, self._after + 1 + self._store.first_revision)
        with self._changing:
            self._call = call
        if self._closed:
            call.close()
            return
        try:
            for part in call:
                if part.compacted:
                    self._fail(self._forgotten(part.compacted - self._store.first_revision))
                    return
                self._put(part.events)
                if self._closed:
                    return
        except WireProblem:
            self._members.leave(number)
            raise
        finally:
            call.close()

    def _put(self, events: Sequence[WatchEvent]) -> None:
        taken = list(self._mine(events))
        with self._changing:
            self._changing.wait_for(lambda: len(self._pending) < _PENDING_MAX or self._closed)
            self._pending.extend(event for _, event in taken if event is not None)
            self._after = max([self._after, *(revision for revision, _ in taken)])
            if taken:
                self._doubt_s, self._sure_s = _DOUBT_S, time.monotonic()
            self._changing.notify_all()
        self._wake.set()

    def _mine(self, events: Sequence[WatchEvent]) -> Iterator[tuple[int, Event | None]]:
        """(revision, the event if its key is under our prefix), for all of them."""
        first, end = self._bounds
        store = self._store
        for one in events:
            revision = one.entry.revision - store.first_revision
            if first <= one.entry.key < end:
                entry = None if one.deleted else store.entry(one.entry)
                yield revision, Event(store.key(one.entry.key), revision, entry)
            else:
                yield revision, None

    def _forgotten(self, compacted: int) -> Compacted:
        return Compacted(
            f"{self._tried} after revision {self._after} in etcd: changes up to revision {compacted} are forgotten; "
            "read with range() and watch from the revision it gives",
            after_revision=self._after,
            compacted=compacted,
        )

    def _fail(self, problem: CoordinationError) -> None:
        with self._changing:
            self._problem = problem
            self._changing.notify_all()
        self._wake.set()
