"""One backend of a cache: its memory, its doors, and how it stays whole.

Its memory is read by others without its help. What it does itself: apply mutations, answer what cannot be read
one-sidedly, collect what has expired, compare itself with its cohort, and say that it is alive.
"""

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from struct import Struct

from ..config import CacheConfig
from ..env import Clock
from ..errors import CacheMissing, Closed, LeaseExpired, TailraceError, WireRefused
from ..native.cell import SLAB_BYTES, Cell
from ..native.engine import Engine
from ..wire import (
    HASH_BYTES,
    TICKET_BYTES,
    Answer,
    AttachReply,
    DigestReply,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
)
from ..wire import Engine as EngineDoor
from .peer import Peer
from .registry import BackendRecord, Changes, Registry, Tenure
from .versions import NOTHING, Version
from .whole import Healer

_TICK_S = 0.25  # how often it collects, and looks if it is due for something else
_ALIVE_S = 1.0  # how often it says that it is alive
_COLLECT_KEYS = 4096  # looked at in one tick
_JOINED_PAGES = 4  # in one tick: it takes milliseconds, though nobody waits for them
_TICKET_S = 10.0
_REQUEST_BYTES = 1 << 20  # of a frame of mutations that an engine takes
_PART_BYTES = 512 << 10  # of an answer that comes in parts; a multiple of a record's 32 bytes
_VERSION = Struct("<QII")


class Backend:
    """A peer to everyone in this process; `wire` makes it one for others. Close it, or let it be superseded."""

    def __init__(
        self,
        registry: Registry,
        index: int,
        *,
        folder: str,
        host: str,
        clock: Clock,
        engine_host: str | None = None,
        engine_port: int = 0,
    ) -> None:
        standing = registry.standing()
        config = standing.record.config
        assert 0 <= index < config.backends, (index, config.backends)
        self.index, self._registry, self._clock = index, registry, clock
        self._standing = standing
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self._cell = Cell(
            folder,
            max(config.memory_bytes, SLAB_BYTES),
            max(config.memory_bytes, SLAB_BYTES),
            max(1, config.keys_expected // 4),
            config.policy,  # type: ignore[arg-type]  # checked by the configuration
            standing.record.config_id,
            chaining=config.chaining,
            tombstones=config.tombstones,
        )
        self._engines: list[Engine] = []
        self._tenure: Tenure | None = None
        self._threads: list[threading.Thread] = []
        self._changes: Changes | None = None
        self._stopping = threading.Event()
        self._healer: Healer | None = None
        self._retired: Callable[[], None] | None = None
        self._shut = self.closing = False
        self.start, self._fence, self.fenced = NOTHING, NOTHING, 0
        self.fencing = threading.Lock()
        try:
            self._begin_anew()
            mutator = self._cell.mutator(int(config.clock_error_s * 1_000_000))
            listening = [(f"unix:{folder}/engine", 0)] + ([] if engine_host is None else [(engine_host, engine_port)])
            for where, port in listening:
                self._engines.append(Engine(folder, where, port, request_bytes_max=_REQUEST_BYTES, mutator=mutator))
            self._set_budgets(config)
            self._record = BackendRecord(
                instance=self._cell.instance_id,
                config_id=standing.record.config_id,
                host=host,
                folder=folder,
                rpc=(),
                door=self._engines[0].address[0],
                engine="" if engine_host is None else "{}:{}".format(*self._engines[1].address),
                pid=os.getpid(),
            )
        except BaseException:
            self.close()
            raise

    @property
    def instance(self) -> int:
        return self._record.instance

    @property
    def engine_address(self) -> str:
        """Empty: it has none."""
        return self._record.engine

    @property
    def _open(self) -> Cell:
        """The memory, for those who ask. One that is shut says so in words that callers understand."""
        if self._shut or self.stopped:
            raise Closed(f"backend {self.index} of the cache {self._registry.name} is shut; nothing was changed")
        return self._cell

    @property
    def _config_id(self) -> int:
        return self._standing.record.config_id

    @property
    def config(self) -> CacheConfig:
        return self._standing.record.config

    @property
    def whole(self) -> bool:
        """Whether it has what its cohort has, as of its last comparison."""
        return self.config.copies == 1 if self._healer is None else self._healer.whole

    @property
    def stopped(self) -> bool:
        """It was closed, or another took its place."""
        return self._stopping.is_set()

    def open(self, rpc: Sequence[str], peer: Callable[[int], Peer], retired: Callable[[], None] = lambda: None) -> None:
        """Tell the world where it is reached, and begin to stay whole. `peer`: how to reach the cohort. `retired` is
        called when its cache is deleted or another has taken its place, from a thread of its own."""
        self._retired = retired
        self._record = replace(self._record, rpc=tuple(rpc))
        if self.config.copies > 1:
            self._healer = Healer(self, self._cell, peer, self.config)
            self._healer.whole = self.start == NOTHING
            self._wait_for_start()
        self._tenure = self._registry.enter(self.index, self._record)
        self._changes = self._registry.changes(self._standing.revision)
        for name, work in (("keep", self._keep), ("tend", self._tend)):
            thread = threading.Thread(target=work, name=f"backend-{self.index}-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _begin_anew(self) -> None:
        """A predecessor may have taken anything up to now, by any clock of the cache. Before anybody can ask: what
        comes from before that is stale."""
        if self.config.copies == 1 or self._registry.is_first(self.index):
            return
        start_us = self._clock.time_us() + 2 * int(self.config.clock_error_s * 1_000_000)
        self.start = Version(start_us, (1 << 32) - 1, (1 << 32) - 1)
        self._cell.fence(self.start)

    def _wait_for_start(self) -> None:
        """Nobody is told of this backend before its own clock is past its start: else clients would have to nominate
        versions that are too far ahead."""
        while (left_us := self.start.clock_us - self._clock.time_us()) >= 0 and not self._stopping.is_set():
            self._clock.wait(self._stopping, left_us / 1e6 + 0.001)

    # ---- what it answers

    def attach(self, client: str, wants_engine: bool) -> AttachReply:
        door = None
        if wants_engine:
            host, port = self._engines[-1].address
            door = EngineDoor(host=host, port=port, ticket=secrets.token_bytes(TICKET_BYTES))
            for engine in self._engines:
                engine.admit(door.ticket, _TICKET_S)
        return AttachReply(
            instance=self.instance,
            config_id=self._config_id,
            cache=self._registry.name,
            backend=self.index,
            host=self._record.host,
            folder=self._record.folder,
            engine=door,
            time_us=self._clock.time_us(),
            mode=self.config.mode,
        )

    def mutate(self, instance: int, config_id: int, frame: memoryview) -> MutateReply:
        outcomes, floor = b"", (0, 0, 0)
        if instance == self.instance:
            now_us = self._clock.time_us()
            try:
                outcomes, floor = self._open.apply(
                    frame, now_us // 1_000_000, now_us + int(self.config.clock_error_s * 1_000_000)
                )
            except ValueError as wrong:
                raise WireRefused(f"mutations for backend {self.index}: {wrong}; nothing was changed") from None
        return MutateReply(instance=self.instance, config_id=self._config_id, outcomes=outcomes, floor=floor)

    def lookup(self, instance: int, keys: Sequence[bytes], now_s: int) -> LookupReply:
        answers: list[Answer | None] = []
        if instance == self.instance:
            found = self._open.get_many(keys, now_s)
            answers = [None if pair is None else Answer(pair[0], pair[1], 0) for pair in found]
        return LookupReply(instance=self.instance, config_id=self._config_id, answers=answers)

    def touch(self, hashes: bytes) -> TouchReply:
        self._open.touch([hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)])
        return TouchReply(instance=self.instance, config_id=self._config_id)

    def digest(self, shared: Shared) -> DigestReply:
        digests = self._open.digest(shared.home, shared.backends)
        return DigestReply(instance=self.instance, config_id=self._config_id, digests=digests)

    def list_hashes(self, shared: Shared) -> Iterator[ListPart]:
        """The summary is read last: what is dropped meanwhile raises it, and is then believed to have been newer. What
        it lost when it started was dropped, too."""
        with self.fencing:  # a repair by older lists is either in the list that follows, or is not done
            self._open.fence(shared.start)
            if shared.start > self._fence:
                self._fence, self.fenced = Version(*shared.start), self.fenced + 1
        records = self._open.known(shared.home, shared.backends, shared.partitions)
        tombstones = b"".join(key + _packed(version) for key, version in self._open.tombstones())
        summary = max(self.start, self._open.summary_version)
        for at in range(0, max(len(records), len(tombstones), 1), _PART_BYTES):
            end = at + _PART_BYTES
            yield ListPart(
                instance=self.instance,
                config_id=self._config_id,
                records=records[at:end],
                tombstones=tombstones[at:end],
                summary=summary,
                complete=end >= max(len(records), len(tombstones)),
            )

    def fetch(self, hashes: bytes) -> Iterator[FetchPart]:
        while hashes:
            frame, done = self._open.fetch(hashes, _PART_BYTES)
            yield FetchPart(instance=self.instance, config_id=self._config_id, frame=frame)
            hashes = hashes[HASH_BYTES * done :]

    def stats(self) -> StatsReply:
        found = self._open.stats() | {"whole": int(self.whole), "pid": os.getpid()}
        if self._healer is not None:
            found |= self._healer.stats()
        for engine in self._engines:
            for name, count in engine.stats().items():
                found[f"engine_{name}"] = found.get(f"engine_{name}", 0) + count
        return StatsReply(instance=self.instance, config_id=self._config_id, counters=found)

    # ---- how it stays

    def _tend(self) -> None:
        """What is done to its memory. Apart from staying entered, since a repair waits for others: one that hangs must
        not cost those who ask it their leases."""
        first_s = self.config.repair_s if self.whole else 0.0  # one that was never there before lacks nothing
        repair_at_s = self._clock.monotonic_s() + first_s
        while not self._stopping.is_set():
            self._cell.collect(self._clock.time_us() // 1_000_000, _COLLECT_KEYS)
            self._cell.join(_JOINED_PAGES)
            if self._healer is not None and self._clock.monotonic_s() >= repair_at_s:
                whole = self._healer.heal()
                repair_at_s = self._clock.monotonic_s() + (self.config.repair_s if whole else _TICK_S)
            self._clock.wait(self._stopping, _TICK_S)

    def _keep(self) -> None:
        """What others know of it."""
        assert self._changes is not None
        changes = self._changes
        alive_at_s = self._clock.monotonic_s()
        try:
            while not self._stopping.is_set():
                try:
                    if self._clock.monotonic_s() >= alive_at_s:
                        self._stay_entered()
                        alive_at_s = self._clock.monotonic_s() + _ALIVE_S
                    if changes.wait(_TICK_S):
                        self._follow()
                except TailraceError:  # coordination is away: serve on, and try again
                    self._clock.wait(self._stopping, _TICK_S)
        finally:
            changes.close()
        if self._retired is not None and not self.closing:
            self._retired()

    def _lives(self) -> bool:
        assert self._tenure is not None
        try:
            self._tenure.keep_alive()
        except LeaseExpired:
            return False
        return True

    def _stay_entered(self) -> None:
        if not self._lives():
            self._tenure = self._registry.enter(self.index, self._record)

    def _follow(self) -> None:
        """Take up another configuration; make way for a successor."""
        try:
            standing = self._registry.standing()
        except CacheMissing:
            self._retire()
            return
        entered = standing.backends.get(self.index)
        # Without an entry although its lease lives: the cache was deleted, and made again since.
        if self._lives() if entered is None else entered.instance != self.instance:
            self._retire()
            return
        if standing.record.config_id != self._standing.record.config_id:
            self._cell.configure(standing.record.config_id)
            self._set_budgets(standing.record.config)
            self._record = replace(self._record, config_id=standing.record.config_id)
            self._tenure = self._registry.enter(self.index, self._record)
        self._standing = standing

    def _set_budgets(self, config: CacheConfig) -> None:
        """Of those who come from other hosts; on this one reading costs the backend nothing."""
        for engine in self._engines[1:]:
            engine.budget(int(config.read_bytes_per_s or 0), int(config.write_bytes_per_s or 0))

    def _retire(self) -> None:
        """Nobody's any more: from now on it takes nothing, by any way."""
        self._stopping.set()
        for engine in self._engines:
            engine.close()

    def stop(self) -> None:
        """Begin to close. What it still waits for at others is theirs to break off, and close() waits for that."""
        self.closing = True
        self._stopping.set()
        if self._changes is not None:
            self._changes.close()  # its keeper waits there

    def close(self, *, remove: bool = False) -> None:
        """Its memory stays readable until a successor takes the folder, unless it is removed."""
        self.stop()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()
        if self._tenure is not None:
            with suppress(TailraceError):  # it runs out by itself
                self._tenure.leave()
        for engine in self._engines:
            engine.close()
        self._shut = True
        self._cell.close(remove=remove)


def _packed(version: tuple[int, int, int]) -> bytes:
    return _VERSION.pack(*version)
