"""Pipelines in memory, for the simulation: a store, a log that several sites have copies of, a sink; no threads."""

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tailrace.coordination import (
    Coordination,
    Delete,
    Entry,
    Lease,
    Operation,
    Outcome,
    Requirement,
    Snapshot,
    Watch,
)
from tailrace.coordination.transaction import changes, check_transaction, unmet
from tailrace.errors import CoordinationError, LeaseExpired
from tailrace.model import MessageFile
from tailrace.pipeline.ranges import ByteRange
from tailrace.pipeline.staging import Footer, StagedMissing
from tailrace.pipeline.tracking import Report
from tailrace.testing import ManualClock

STREAM = "clicks"


class Killed(Exception):
    """The process is gone, in the middle of whatever it did."""


class MemoryStore:
    """A coordination store as the contract wants it, in a dict, on a clock that the test moves."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.entries: dict[str, Entry] = {}
        self.revision = 0
        self.operations = 0
        self._leases: dict[int, tuple[float, float]] = {}  # deadline, time to live
        self._ids = itertools.count(1)

    def get(self, key: str) -> Entry | None:
        self._expire()
        self.operations += 1
        return self.entries.get(key)

    def range(self, prefix: str) -> Snapshot:
        self._expire()
        self.operations += 1
        found = tuple(self.entries[key] for key in sorted(self.entries) if key.startswith(prefix))
        return Snapshot(found, self.revision)

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        check_transaction(requires, then, otherwise)
        self._expire()
        self.operations += 1
        conflicts = unmet(requires, self.entries)
        self._do(otherwise if conflicts else then)
        return Outcome(not conflicts, self.revision, conflicts)

    def _do(self, operations: Sequence[Operation]) -> None:
        events = changes(operations, self.entries, self.revision + 1)
        self.revision += bool(events)
        for event in events:
            if event.entry is None:
                del self.entries[event.key]
            else:
                self.entries[event.key] = event.entry

    def lease(self, ttl_s: float) -> "MemoryLease":
        lease = MemoryLease(next(self._ids), ttl_s, self)
        self._leases[lease.id] = (self.clock.monotonic_s() + ttl_s, ttl_s)
        return lease

    def keep_alive(self, lease: int) -> None:
        self._expire()
        if lease not in self._leases:
            raise LeaseExpired(f"lease {lease} is over")
        self._leases[lease] = (self.clock.monotonic_s() + self._leases[lease][1], self._leases[lease][1])

    def revoke(self, lease: int) -> None:
        self._leases.pop(lease, None)
        self._do([Delete(entry.key) for entry in self.entries.values() if entry.lease == lease])

    def _expire(self) -> None:
        for lease in [one for one, (deadline_s, _) in self._leases.items() if deadline_s <= self.clock.monotonic_s()]:
            self.revoke(lease)

    def watch(self, prefix: str, after_revision: int | None = None) -> Watch:
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


@dataclass(frozen=True)
class MemoryLease:
    id: int
    ttl_s: float
    store: MemoryStore = field(repr=False)

    def keep_alive(self) -> None:
        self.store.keep_alive(self.id)

    def revoke(self) -> None:
        self.store.revoke(self.id)


class Mortal(Coordination):
    """A process's way to the store. It dies when `fuse` operations are done: before the next one, or right after it.
    `meddle`: what others do between its reading and its writing. `loses`: whether an answer is lost, after all was
    done."""

    def __init__(
        self,
        store: MemoryStore,
        meddle: Callable[[], None] = lambda: None,
        loses: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store, self._meddle, self._loses = store, meddle, loses
        self.fuse: int | None = None
        self.after = False

    def _burn(self) -> bool:
        """Whether this operation is the last."""
        if self.fuse is None:
            return False
        self.fuse -= 1
        if self.fuse < 0 and not self.after:
            raise Killed
        return self.fuse < 0

    def get(self, key: str) -> Entry | None:
        return self._last(self._burn(), self._store.get(key))

    def range(self, prefix: str) -> Snapshot:
        return self._last(self._burn(), self._store.range(prefix))  # type: ignore[no-any-return]

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        self._meddle()
        done: Outcome = self._last(self._burn(), self._store.transact(requires, then, otherwise))
        if self._loses():
            raise CoordinationError("the answer was lost")
        return done

    def _last(self, last: bool, result: Any) -> Any:
        if last:
            raise Killed
        return result

    def lease(self, ttl_s: float) -> Lease:
        return self._store.lease(ttl_s)

    def watch(self, prefix: str, after_revision: int | None = None) -> Watch:
        raise NotImplementedError

    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...


class Truth:
    """What was produced: for each shard its message files and where messages begin."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.files: list[list[tuple[int, int]]] = [[(shard + 1, 0)] for shard in range(shards)]  # created_us, base
        self.starts: list[list[int]] = [[] for _ in range(shards)]
        self.times: list[list[int]] = [[] for _ in range(shards)]
        self.ends = [0] * shards
        self.poison: set[tuple[int, int]] = set()  # shard, where the message begins

    def produce(self, shard: int, sizes: Sequence[int], time_us: int, *, poison: bool, roll: bool) -> None:
        if roll and self.ends[shard] > self.files[shard][-1][1]:
            self.files[shard].append((max(time_us, self.files[shard][-1][0] + 1), self.ends[shard]))
        for size in sizes:
            self.starts[shard].append(self.ends[shard])
            self.times[shard].append(time_us)
            self.ends[shard] += size
        if poison and sizes:
            self.poison.add((shard, self.starts[shard][-1]))

    def message_at(self, shard: int, position: int) -> tuple[int, int]:
        place = bisect_right(self.starts[shard], position) - 1
        starts = self.starts[shard]
        return starts[place], starts[place + 1] if place + 1 < len(starts) else self.ends[shard]

    def messages(self, one: ByteRange) -> list[int]:
        return [at for at in self.starts[one.shard] if one.begin <= at < one.end]

    def poisonous(self, one: ByteRange) -> list[ByteRange]:
        return [
            ByteRange(one.stream, one.shard, one.file, *self.message_at(one.shard, at))
            for at in self.messages(one)
            if (one.shard, at) in self.poison
        ]


class CopiedLogs:
    """A site's copy of it: a prefix of each shard. Now and then it shows an older look, as a delayed report would."""

    def __init__(self, truth: Truth) -> None:
        self.truth = truth
        self.ends = [0] * truth.shards
        self.stale: dict[int, Report] = {}

    def copy(self, shard: int, upto: int) -> None:
        self.ends[shard] = max(self.ends[shard], min(upto, self.truth.ends[shard]))
        starts = self.truth.starts[shard]
        place = bisect_right(starts, self.ends[shard]) - 1  # at a message's end, as flushes are
        if self.ends[shard] < self.truth.ends[shard] and place >= 0:
            self.ends[shard] = starts[place]

    def shards(self, stream: str) -> int:
        return self.truth.shards

    def report(self, site: str, stream: str, shard: int) -> Report:
        if shard in self.stale:
            return self.stale.pop(shard)
        end = self.ends[shard]
        files = [MessageFile(*file, "data").name for file in self.truth.files[shard] if file[1] < end]
        return Report(site, stream, shard, "one", tuple(files), end)

    def start(self, stream: str, shard: int, start: Any) -> int | None:
        return None

    def cuts(self, stream: str, shard: int, begin: int, end: int, bytes_max: int) -> list[int]:
        found, at = [], begin
        while end - at > bytes_max:
            start, stop = self.truth.message_at(shard, at + bytes_max)
            at = start if start > at else stop
            if at >= end:
                break
            found.append(at)
        return found

    def time_us(self, one: ByteRange) -> int:
        return self.truth.times[one.shard][bisect_right(self.truth.starts[one.shard], one.begin) - 1]

    def middle(self, one: ByteRange) -> int | None:
        inside = [at for at in self.truth.messages(one) if at > one.begin]
        return inside[len(inside) // 2] if inside else None


class MemoryStaging:
    """Staged outputs by name. `reachable`: whether others see them, too."""

    folder = "memory"

    def __init__(self, shared: dict[str, Footer]) -> None:
        self.shared = shared
        self.missing = 0

    def stage(self, name: str, footer: Footer) -> dict[str, Any]:
        self.shared[name] = footer
        return {"name": name, "folder": self.folder, "rows": 1}

    def find(self, receipt: Mapping[str, Any]) -> str:
        if receipt["name"] not in self.shared:
            self.missing += 1
            raise StagedMissing(receipt["name"])
        return str(receipt["name"])

    def discard(self, name: str, folders: Any = ()) -> None:
        self.shared.pop(name, None)

    def names(self) -> list[str]:
        return list(self.shared)


class MemorySink:
    """What was published, and how often each was tried: a second time has no effect."""

    place = "memory"

    def __init__(self) -> None:
        self.published: dict[str, Footer] = {}
        self.kill_after: int | None = None  # publications

    def staging_folder(self, default: str) -> str:
        return default

    def prepare(self) -> None: ...

    def has(self, footer: Footer) -> bool:
        return footer.unit in self.published

    def close(self) -> None: ...

    def publish(self, footer: Footer, staged: str) -> None:
        self.published.setdefault(footer.unit, footer)
        if self.kill_after is not None:
            self.kill_after -= 1
            if self.kill_after < 0:
                self.kill_after = None
                raise Killed

    def outputs(self) -> Iterator[Footer]:
        return iter(self.published.values())
