"""The ways from this process to a cache's backends: memory on one host, engines between hosts, RPC everywhere.

A native client belongs to one thread at a time, so there is a pool of them. Each is attached to the backends as they
were at some epoch; when the registry tells of a change the epoch moves on, and clients attach anew when next used.
A backend that is gone keeps its way as long as its memory can be read: it is asked last.
"""

import math
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ..config import CacheClientConfig
from ..env import Clock
from ..errors import CacheMissing, Closed, CoordinationError, TailraceError, Unreachable
from ..native.client import CellClient
from ..wire import Engine as EngineDoor
from .backend import Backend
from .peer import LocalPeer, Peer
from .registry import BackendRecord, CacheRecord, Registry, Standing

CONNECT_S = 0.2  # for a ticket and a connection: somebody may be waiting to read
# … and for the first one to a backend that nothing is known of. Where hundreds come at once, those who gave up early
# would ask again by other ways, and take from the others the processor that their answers wait for.
_FIRST_CONNECT_S = 1.0
_RETRY_S = 0.2  # before a way that failed is tried again; doubled each time
_RETRY_S_MAX = 5.0
_FOLLOW_S = 0.2  # how often the registry is looked at while somebody mutates or asks
_READING_S = 1.0  # … and while all only read: memory that is revoked and links that break say so themselves
_FRAME_BYTES, _FRAME_BYTES_MAX, _FRAME_BYTES_HERE = 64 << 10, 640 << 10, 4 << 20
_FRAME_VALUES, _VALUE_MORE_BYTES = 8, 256  # with what a value has besides its bytes


@dataclass(slots=True)
class Reading:
    """A native client, and what it is attached to."""

    native: CellClient
    epoch: int = 0
    attached: dict[int, BackendRecord] = field(default_factory=dict)
    known: frozenset[int] = frozenset()  # backends that were there when it was attached, whether that succeeded or not
    retry_at_s: float = 0.0
    inquorate: int = 0

    def may_have_failed(self) -> bool:
        """Whether what was just found missing may be there all the same: some backend has no way now, and the others
        did not agree. They may be the memory of a dead one and one that lives; then those that live must be asked."""
        if not self.retry_at_s and not self.native.troubled:
            return False
        before, self.inquorate = self.inquorate, self.native.stats()["inquorate"]
        return self.inquorate > before


class Ways:
    """Safe to share between threads. `local` has the backends that live in this process, by number."""

    def __init__(
        self,
        registry: Registry,
        config: CacheClientConfig,
        clock: Clock,
        host: str,
        local: Mapping[int, Backend],
        connect: Callable[[str], Peer],
        revive: Callable[[], None] = lambda: None,
    ) -> None:
        self._registry, self._config, self._clock, self._host = registry, config, clock, host
        self._local, self._connect, self._revive = local, connect, revive
        self._changing = threading.Lock()
        self._idle: list[Reading] = []
        self._all: list[Reading] = []
        self._peers: dict[int, tuple[BackendRecord, Peer]] = {}
        self._former: dict[int, Peer] = {}
        self._name = f"{os.uname().nodename} {os.getpid()}"[:64]  # for the backends' logs
        self._standing: Standing = registry.standing()
        self._shunned: dict[int, tuple[BackendRecord | None, float, float]] = {}
        self._tried: set[int] = set()  # engines that somebody has tried to connect to
        self._epoch = 1
        self._closed = threading.Event()
        self._used, self._look_at_s = threading.Event(), 0.0
        self._read, self._dozing = False, True  # plain words, not a clock: each read looks at them
        self._changes = registry.changes(self._standing.revision)
        self._follower = threading.Thread(target=self._follow, name=f"cache-{registry.name}", daemon=True)
        self._follower.start()

    @property
    def name(self) -> str:
        return self._registry.name

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    @property
    def epoch(self) -> int:
        """Changes whenever backends come or go."""
        return self._epoch

    @property
    def records(self) -> bool:
        """Whether backends want to be told what was read."""
        return self._standing.record.config.policy != "lrm"

    @property
    def record(self) -> CacheRecord:
        self._keep_up()
        return self._standing.record

    # ---- reading

    def take(self) -> Reading:
        """A native client for this thread, until it is given back."""
        self._read = True
        if self._dozing:
            self._used.set()
        try:
            reading = self._idle.pop()
        except IndexError:
            reading = self._make()
        if reading.epoch != self._epoch or (reading.retry_at_s and self._clock.monotonic_s() >= reading.retry_at_s):
            self._attach(reading)
        return reading

    def give(self, reading: Reading) -> None:
        if reading.native.troubled:
            for backend in reading.native.troubles():
                reading.attached.pop(backend, None)  # whatever is wrong with it: attach it anew
            reading.retry_at_s = self._clock.monotonic_s()
            self.refresh()
        self._idle.append(reading)

    def _make(self) -> Reading:
        config = self.record.config
        reading = Reading(
            CellClient(
                config.backends,
                config.copies,
                config.quorum,
                attempts_max=self._config.attempts_max,
                data_bytes_max=self._config.inline_bytes_max,
                hedge_s=self._config.hedge_s,
                recording=config.policy != "lrm",
            )
        )
        with self._changing:
            self._all.append(reading)
        return reading

    def _attach(self, reading: Reading) -> None:
        # The epoch first: with an older standing it would be believed for good, with a newer one for a moment.
        reading.epoch, reading.retry_at_s = self._epoch, 0.0
        standing = self._standing
        reading.known = frozenset(standing.backends)
        for number in range(standing.record.config.backends):
            backend = standing.backends.get(number)
            reading.native.suspect(number, backend is None)
            if backend is None or reading.attached.get(number) == backend:
                continue
            waits = not self._in_memory(backend)  # a map is there at once or not at all, whoever hangs
            if waits and self.shunned(number):
                reading.retry_at_s = self._clock.monotonic_s() + _RETRY_S
                continue
            reading.attached.pop(number, None)
            try:
                self._attach_one(reading.native, number, backend)
                reading.attached[number] = backend
            except (OSError, ValueError, TailraceError):  # it is just starting, or just gone, or hangs
                reading.native.detach(number)
                reading.retry_at_s = self._clock.monotonic_s() + _RETRY_S
                if waits:
                    self.shun(number)

    def _in_memory(self, backend: BackendRecord) -> bool:
        transport = self._config.transport
        return transport == "memory" or (transport == "best" and backend.host == self._host)

    def _attach_one(self, native: CellClient, number: int, backend: BackendRecord) -> None:
        config_id, transport = self.record.config_id, self._config.transport
        if self._in_memory(backend):
            native.attach_view(number, backend.folder, config_id)
            if native.instance_of(number) != backend.instance:
                raise ValueError(f"{backend.folder} has another instance than the registry tells")
        elif transport != "rpc" and backend.engine:
            patience_s = CONNECT_S if number in self._tried else _FIRST_CONNECT_S
            self._tried.add(number)
            door = self.door(number, patience_s)
            if door is None:
                raise ValueError(f"backend {number} has no engine any more")
            native.attach_link(number, door.host, door.port, door.ticket, config_id, patience_s)
            self.forgive(number)
        else:
            native.detach(number)  # by RPC

    def shunned(self, number: int) -> bool:
        """Whether it failed so lately that nobody should wait for it again."""
        backend, until_s, _ = self._shunned.get(number, (None, 0.0, 0.0))
        return backend == self._standing.backends.get(number) and self._clock.monotonic_s() < until_s

    def shun(self, number: int) -> None:
        """A way to this backend failed: no more of them for a while, which is longer each time."""
        backend, (before, _, last_s) = self._standing.backends.get(number), self._shunned.get(number, (None, 0.0, 0.0))
        pause_s = min(2 * last_s, _RETRY_S_MAX) if before == backend and last_s else _RETRY_S
        self._shunned[number] = (backend, self._clock.monotonic_s() + pause_s, pause_s)

    def forgive(self, number: int) -> None:
        """A way to this backend was found: what failed before does not count any more."""
        self._shunned.pop(number, None)

    # ---- asking

    def client_id(self) -> int:
        return self._registry.client_id()

    def alive(self) -> list[int]:
        self._keep_up()
        return sorted(self._standing.backends)

    def instance(self, number: int) -> int:
        """Unreachable: there is no such backend now."""
        self._keep_up()
        backend = self._standing.backends.get(number)
        if backend is None:
            raise self._absent(number)
        return backend.instance

    def backend(self, number: int) -> BackendRecord | None:
        """Where it is, if it is there."""
        self._keep_up()
        return self._standing.backends.get(number)

    def local(self, number: int) -> Backend | None:
        """The backend itself, if it lives in this process."""
        local, entered = self._local.get(number), self._standing.backends.get(number)
        return local if local is not None and entered is not None and local.instance == entered.instance else None

    def frame_bytes_max(self, value_bytes: int) -> int:
        """How much to send at once, of values like this: to this process all there is, since every piece waits for the
        interpreter's lock; to others so little that they work on one while the next one is on its way, but a few of
        them even if they are large."""
        if all(self.local(number) is not None for number in range(self.record.config.backends)):
            return _FRAME_BYTES_HERE
        return max(_FRAME_BYTES, min(_FRAME_VALUES * (value_bytes + _VALUE_MORE_BYTES), _FRAME_BYTES_MAX))

    def door(self, number: int, deadline_s: float = CONNECT_S) -> EngineDoor | None:
        """The engine to use for this backend, with a ticket for one connection; None: there is none, or none is
        wanted."""
        backend = self._standing.backends.get(number)
        if backend is None or self._config.transport == "rpc":
            return None
        near = self._config.transport != "engine" and backend.host == self._host
        if not (backend.door if near else backend.engine):
            return None
        told = self.peer(number).attach(self._name, True, deadline_s=deadline_s).engine
        if told is None:
            return None
        return EngineDoor(host=backend.door, port=0, ticket=told.ticket) if near else told

    def _absent(self, number: int) -> Unreachable:
        problem = Unreachable(f"backend {number} of the cache {self.name} is not there; nothing was sent")
        problem.took_effect = False
        return problem

    def peer(self, number: int) -> Peer:
        """Whom to ask by RPC, or directly when it lives in this process. Unreachable: nobody is there."""
        self._keep_up()
        backend = self._standing.backends.get(number)
        if backend is None:
            raise self._absent(number)
        local = self.local(number)
        if local is not None:
            return LocalPeer(local)
        with self._changing:
            if self._closed.is_set():
                raise Closed(f"the ways to the cache {self.name} were closed; nothing was sent")
            known = self._peers.get(number)
            # Not for another configuration alone: others have calls on their way.
            if known is not None and (known[0].instance, known[0].rpc) == (backend.instance, backend.rpc):
                return known[1]
            if known is not None:
                if number in self._former:
                    self._former.pop(number).close()
                self._former[number] = known[1]  # not closed yet: some may still wait for its answers
            addresses = [at for at in backend.rpc if at.startswith("unix:") == (backend.host == self._host)]
            peer = self._connect((addresses or list(backend.rpc))[0])
            self._peers[number] = (backend, peer)
            return peer

    def revive(self) -> None:
        """Backends are missing: start them again, where that is this process's business."""
        with suppress(CoordinationError):  # without a registry nobody can be brought back
            self._revive()
        self.refresh()

    # ---- following

    def refresh(self) -> None:
        """Look at the registry again. Whoever cannot see it goes on with what is known."""
        try:
            standing = self._registry.standing()
        except CacheMissing:
            return  # it was deleted: those who use it still have its memory, and nobody takes their mutations
        except CoordinationError:
            return
        with self._changing:
            if standing.revision < self._standing.revision:
                return  # another thread was slower to look, but quicker to come here
            if standing.backends != self._standing.backends or standing.record != self._standing.record:
                self._standing = standing
                self._epoch += 1

    def _keep_up(self) -> None:
        """Somebody uses this: look at the registry if that was not done lately. Who is idle costs nobody anything."""
        if self._clock.monotonic_s() >= self._look_at_s:
            self._look_at_s = math.inf  # until it is done
            self._used.set()

    def _follow(self) -> None:
        while not self._closed.is_set():
            asked = self._used.wait(None if self._dozing else _READING_S)
            self._used.clear()
            if not asked and not self._read:  # for a while nobody has read; the next one who does wakes us
                self._dozing = True
                continue
            self._read = self._dozing = False
            try:
                if self._changes.wait(0.0):
                    self.refresh()
            except TailraceError:
                pass  # what was known stays known; the next one who asks makes us look again
            self._look_at_s = self._clock.monotonic_s() + _FOLLOW_S

    def touches(self) -> dict[int, bytes]:
        """What was read since the last time, for each backend: 16 bytes a key."""
        gathered: dict[int, list[bytes]] = {}
        taken: list[Reading] = []
        while self._idle:
            try:
                taken.append(self._idle.pop())
            except IndexError:
                break  # another thread was quicker, and is reading with it
        for reading in taken:
            for number, hashes in reading.native.touches().items():
                gathered.setdefault(number, []).append(hashes)
            self._idle.append(reading)
        return {number: b"".join(parts) for number, parts in gathered.items()}

    def stats(self) -> dict[str, int]:
        """Of all native clients together."""
        total: dict[str, int] = {}
        if not self._all:  # nobody has read yet: all counts are there all the same
            self._idle.append(self._make())
        for reading in list(self._all):
            for name, count in reading.native.stats().items():
                total[name] = total.get(name, 0) + count
        return total

    def close(self) -> None:
        self._closed.set()
        self._used.set()
        self._changes.close()
        if threading.current_thread() is not self._follower:
            self._follower.join()
        with self._changing:
            for peer in [*(peer for _, peer in self._peers.values()), *self._former.values()]:
                peer.close()
            self._peers.clear()
            self._former.clear()
            self._idle.clear()
            self._all.clear()
