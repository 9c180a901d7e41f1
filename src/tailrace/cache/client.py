"""A cache, as a program uses it: get, set, erase and compare-and-set, of one key or of many at once.

Reads go straight to the backends' memory, or to their engines on other hosts, and are decided in C (cell_client.c).
Mutations go to every backend that has a copy, and are done when a quorum has taken them (tally.py).
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from typing_extensions import Buffer

from ..config import CacheClientConfig, CacheConfig
from ..env import Clock
from ..errors import (
    CacheFull,
    CacheRefused,
    CacheUnavailable,
    CacheUnconfirmed,
    ClockAhead,
    Closed,
    KeyExists,
    TailraceError,
    ValueTooLarge,
)
from ..native.client import KIND_CAS, KIND_ERASE, KIND_SET, pack, replicas_of
from ..wire import LookupReply
from .aio import AsyncCache
from .grip import Grip
from .lookup import Found, decide
from .mutations import Post
from .tally import Tally, Verdict
from .versions import NOTHING, HybridClock, Version, Versions
from .watch import Watch
from .ways import Reading, Ways

_STALE_RETRIES = 8
_SETTLE_S = 0.05  # for a compare-and-set that is on its way
_ASKERS = 16  # calls at once, for what cannot be read one-sidedly


class Cache:
    """One cache. Safe to share between threads. Close it, or use `with`."""

    def __init__(self, ways: Ways, config: CacheClientConfig, clock: Clock, on_close: Callable[[], None]) -> None:
        self._ways, self._config, self._clock, self._on_close = ways, config, clock, on_close
        self._post = Post(ways, clock)
        self._versions: HybridClock | None = None
        self._nominating = threading.Lock()
        self._closing = threading.Event()
        self._closed = False  # the same for those in a hurry
        self._asked_by_rpc = 0
        self._askers = ThreadPoolExecutor(_ASKERS, thread_name_prefix=f"cache-{ways.name}-ask")
        self._toucher: threading.Thread | None = None
        if self.settings.policy != "lrm":
            self._toucher = threading.Thread(target=self._tell_touches, name=f"cache-{self.name}-touches", daemon=True)
            self._toucher.start()

    @property
    def name(self) -> str:
        return self._ways.name

    @property
    def settings(self) -> CacheConfig:
        return self._ways.record.config

    @property
    def aio(self) -> AsyncCache:
        """The same for coroutines."""
        return AsyncCache(self)

    @property
    def in_memory(self) -> bool:
        """Whether all backends are read in this host's memory, without waiting for anybody."""
        return all(way == "memory" for way in self.ways().values())

    # ---- reading

    def get(self, key: bytes, *, relaxed: bool = False, deadline_s: float | None = None) -> bytes | None:
        """The value, or None. A relaxed read believes one replica, and may be behind."""
        deadline = self._config.deadline_s if deadline_s is None else deadline_s
        reading = self._take()
        native = reading.native
        try:
            value = native.get(key, 0, relaxed, deadline)
            rest = native.asks or native.unreachable or (value is None and reading.may_have_failed())
        finally:
            self._ways.give(reading)
        return self._get([key], relaxed, deadline_s, versions=False)[0] if rest else value

    def get_many(
        self, keys: Sequence[bytes], *, relaxed: bool = False, deadline_s: float | None = None
    ) -> list[bytes | None]:
        """The value or None, for each key."""
        return self._get(keys if type(keys) is list else list(keys), relaxed, deadline_s, versions=False)

    def get_with_version(
        self, key: bytes, *, relaxed: bool = False, deadline_s: float | None = None
    ) -> tuple[bytes, Version] | None:
        """The value and its version, which cas() expects."""
        found = self._get([key], relaxed, deadline_s, versions=True)[0]
        return None if found is None else (found[0], Version(*found[1]))

    def get_into(
        self, key: bytes, buffer: Buffer, *, relaxed: bool = False, deadline_s: float | None = None
    ) -> int | None:
        """The value's size, once it lies at the buffer's start; or None, with the buffer in any state."""
        deadline = self._config.deadline_s if deadline_s is None else deadline_s
        reading = self._take()
        try:
            size = reading.native.get_into(key, buffer, relaxed=relaxed, deadline_s=deadline)
            rest = reading.native.asks or reading.native.unreachable or (size is None and reading.may_have_failed())
        finally:
            self._ways.give(reading)
        if rest and (value := self._get([key], relaxed, deadline_s, versions=False)[0]) is not None:
            memoryview(buffer).cast("B")[: len(value)] = value
            return len(value)
        return size

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]:
        """Many values that belong together, in one buffer: those of the keys `prefix` + first, first + 1 … (4 bytes,
        little-endian), each `stride` bytes behind the one before. Their sizes; -1 for what is not there, does not fit,
        or could not be had: nobody is asked twice for what the caller has elsewhere. `only`: of these, from 0 on; the
        rest of the buffer is left alone."""
        reading = self._take()
        try:
            return reading.native.get_parts(
                prefix, first, count, buffer, stride, relaxed=relaxed, deadline_s=self._config.deadline_s, only=only
            )
        finally:
            self._ways.give(reading)

    def watch(self, keys: Sequence[bytes], *, skip: tuple[int, int] = (0, 0)) -> Watch:
        """What to sleep on until one of the keys has another value. Bytes `skip[0]` to `skip[1]` of it do not count."""
        return Watch(self._ways, keys, skip, self._clock)

    def grip(self, data: "Cache") -> Grip:
        """For who follows the head of a segment, of whose shard this cache has the lengths, and `data` the chunks."""
        return Grip(self._ways, data._ways, self._config.deadline_s)

    def _take(self) -> Reading:
        if self._closed:
            raise Closed(f"the cache {self.name} was closed; open it again")
        return self._ways.take()

    def _get(self, keys: list[bytes], relaxed: bool, deadline_s: float | None, *, versions: bool) -> list[Any]:
        deadline = self._config.deadline_s if deadline_s is None else deadline_s
        values, rest, known, is_old = self._read(keys, relaxed, deadline, versions)
        if rest and is_old:  # backends have come or gone since it was attached: perhaps memory tells now
            values, rest, known, _ = self._read(keys, relaxed, deadline, versions)
        if rest and known:
            answers = self._ask([keys[i] for i in rest], relaxed, deadline, known)
            for number, found in zip(rest, answers, strict=True):
                if found is not None:
                    values[number] = (found.value, found.version) if versions else found.value
        return values

    def _read(
        self, keys: list[bytes], relaxed: bool, deadline_s: float, versions: bool
    ) -> tuple[list[Any], list[int], frozenset[int], bool]:
        """What memory and engines have; the numbers of the keys of which they cannot tell; who can be asked for those;
        and whether the next reading has other ways."""
        reading = self._take()
        native, known, epoch = reading.native, reading.known, reading.epoch
        try:
            values: list[Any] = native.get_many(keys, relaxed=relaxed, deadline_s=deadline_s, versions=versions)
            rest = native.asks + native.unreachable if native.asks or native.unreachable else []
            if reading.may_have_failed() and None in values:
                rest = [number for number, value in enumerate(values) if value is None]
        finally:
            self._ways.give(reading)
        return values, rest, known, epoch != self._ways.epoch

    def _ask(self, keys: list[bytes], relaxed: bool, deadline_s: float, known: frozenset[int]) -> list[Found | None]:
        """Ask the backends themselves: for keys in overflowed buckets, and where memory and engines cannot be had. Only
        those that were known when memory was looked at: one that has come since is read in memory next time, and a
        call's connection has threads that tick for as long as this process lives."""
        end_s = self._clock.monotonic_s() + deadline_s
        found: list[Found | None] = [None] * len(keys)
        left = list(range(len(keys)))
        for _ in range(self._config.attempts_max):
            left_s = end_s - self._clock.monotonic_s()
            if not left or left_s <= 0:
                break
            self._asked_by_rpc += len(left)
            disagreed = []
            for number, told in zip(left, self._lookups([keys[i] for i in left], relaxed, left_s, known), strict=True):
                found[number] = decide(told, 1 if relaxed else self.settings.quorum)
                if found[number] is None and any(told):
                    disagreed.append(number)  # a mutation may be on its way
            left = disagreed
        return found

    def _lookups(
        self, keys: list[bytes], relaxed: bool, deadline_s: float, known: frozenset[int]
    ) -> list[list[Found | None]]:
        """What the backends of each key said, of as many as it takes: nobody waits for one that hangs."""
        config = self.settings
        wanted: dict[int, list[int]] = {}
        for number, key in enumerate(keys):
            for backend in known.intersection(replicas_of(key, config.backends, config.copies)):
                wanted.setdefault(backend, []).append(number)
        answers: list[list[Found | None]] = [[] for _ in keys]
        need = 1 if relaxed else config.quorum
        misses = need if relaxed or need > 1 else config.copies  # where one copy is enough, any of them may have it

        def look(backend: int) -> tuple[int, LookupReply]:
            asked = [keys[i] for i in wanted[backend]]
            peer, instance = self._ways.peer(backend), self._ways.instance(backend)
            return backend, peer.lookup(instance, asked, int(time.time()), deadline_s=deadline_s)

        try:
            asked = [self._askers.submit(look, backend) for backend in wanted]
        except RuntimeError:  # it was closed meanwhile
            raise Closed(f"the cache {self.name} was closed; open it again") from None
        for future in as_completed(asked):
            try:
                backend, reply = future.result()
            except TailraceError:
                continue  # fewer answers than hoped for; those that came may be enough
            for number, answer in zip(wanted[backend], reply.answers, strict=False):  # none from another instance
                answers[number].append(None if answer is None else Found(answer.value, Version(*answer.version)))
            if all(decide(told, need) or told.count(None) >= misses for told in answers):
                break
        return answers

    # ---- mutating

    def set(self, key: bytes, value: Buffer, *, ttl_s: float | None = None, deadline_s: float | None = None) -> Version:
        """Set a key, for `ttl_s` seconds if that is given. The version it has then."""
        return self.set_many([(key, value)], ttl_s=ttl_s, deadline_s=deadline_s)[0]

    def set_many(
        self,
        items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]],
        *,
        ttl_s: float | None = None,
        deadline_s: float | None = None,
    ) -> Sequence[Version]:
        """Set many keys in few calls; their versions. Keys are independent: what fails names its keys in the error."""
        pairs = items.items() if isinstance(items, Mapping) else items
        keys: list[bytes] = []
        values: list[Buffer] = []
        for key, value in pairs:
            keys.append(key)
            values.append(value)
        if self.settings.immutable:
            return self._set_once(keys, values, ttl_s, deadline_s)
        return self._mutate(KIND_SET, keys, values, None, ttl_s, deadline_s)

    def _set_once(
        self, keys: list[bytes], values: list[Buffer], ttl_s: float | None, deadline_s: float | None
    ) -> Sequence[Version]:
        """A key's home decides who is first. But it may have started anew, and then another copy knows better."""
        there = {
            key
            for key, value in zip(keys, self.get_many(keys, deadline_s=deadline_s), strict=True)
            if value is not None
        }
        new = [i for i, key in enumerate(keys) if key not in there]
        versions = self._mutate(
            KIND_CAS, [keys[i] for i in new], [values[i] for i in new], [NOTHING] * len(new), ttl_s, deadline_s
        )
        if there:
            raise self._error(KIND_CAS, Verdict.MISMATCH, sorted(there), sorted(there))
        return versions

    def erase(self, key: bytes, *, deadline_s: float | None = None) -> None:
        """Erase a key. Sets that began before it cannot bring it back."""
        self.erase_many([key], deadline_s=deadline_s)

    def erase_many(self, keys: Sequence[bytes], *, deadline_s: float | None = None) -> None:
        self._mutate(KIND_ERASE, list(keys), None, None, None, deadline_s)

    def cas(
        self,
        key: bytes,
        value: Buffer,
        expected: Version | None,
        *,
        ttl_s: float | None = None,
        deadline_s: float | None = None,
    ) -> Version | None:
        """Set a key only if it has the `expected` version, or nothing for None. The new version; None: it has another.

        CacheUnconfirmed: fewer backends than a quorum took it. Read the key before you decide what to do.
        """
        try:
            return self._mutate(KIND_CAS, [key], [value], [expected or NOTHING], ttl_s, deadline_s)[0]
        except (_Mismatch, KeyExists):
            return None

    def _mutate(
        self,
        kind: int,
        keys: list[bytes],
        values: list[Buffer] | None,
        expected: list[tuple[int, int, int]] | None,
        ttl_s: float | None,
        deadline_s: float | None,
    ) -> Sequence[Version]:
        if self._closing.is_set():
            raise Closed(f"the cache {self.name} was closed; open it again")
        if not keys:
            return ()
        config = self.settings
        ttl = config.ttl_s if ttl_s is None else ttl_s
        if ttl is not None and not 1 <= ttl <= 1e9:
            raise ValueError(f"ttl_s={ttl}: an entry lives for whole seconds, 1 to a billion")
        expiry_s = 0 if ttl is None or kind == KIND_ERASE else int(self._clock.time_us() / 1e6 + ttl)
        deadline_at = self._clock.monotonic_s() + (self._config.deadline_s if deadline_s is None else deadline_s)
        versions: Sequence[Version] = ()
        left = list(range(len(keys)))
        for attempt in range(1 + _STALE_RETRIES):
            first = self._nominate(len(left), by_cas=kind == KIND_CAS and self.settings.quorum > 1)
            batch = _Batch(
                keys if len(left) == len(keys) else [keys[i] for i in left],
                values if values is None or len(left) == len(keys) else [values[i] for i in left],
                first,
                expected if expected is None or len(left) == len(keys) else [expected[i] for i in left],
                expiry_s,
            )
            nominated = Versions(first, len(left))
            if len(left) == len(keys):
                versions = nominated
            else:
                versions = list(versions)
                for i, version in zip(left, nominated, strict=True):
                    versions[i] = version
            send = self._send_by_home if kind == KIND_CAS else self._send
            tallies, floor = send(kind, batch, deadline_at)
            if tallies is None:
                return versions
            self._observe(floor)
            verdicts = {tally.verdict() for tally in tallies}
            # A compare-and-set of which nobody knows is not repeated: it might fail because it had succeeded.
            known = kind != KIND_CAS or Verdict.UNKNOWN not in verdicts
            if not attempt and (Verdict.UNKNOWN in verdicts or Verdict.UNREACHABLE in verdicts):
                self._revive(unchanged=Verdict.UNKNOWN not in verdicts)
            if not attempt and known and any(tally.is_short() for tally in tallies):
                left = [i for i, tally in zip(left, tallies, strict=True) if tally.verdict() is not Verdict.DONE]
                continue
            left = self._judge(kind, keys, left, tallies, last=attempt == _STALE_RETRIES)
            if not left:
                return versions
        raise AssertionError("the last attempt either returns or raises")

    def _revive(self, *, unchanged: bool) -> None:
        """If backends can be found or brought back, they get this mutation, or at least the next one."""
        try:
            self._ways.revive()
        except TailraceError:
            if unchanged:
                raise
            # Why it failed matters less than that some may have taken the mutation, which the caller hears next.

    def _send(
        self,
        kind: int,
        batch: "_Batch",
        deadline_at: float,
        first_copy: int = 0,
        copies: int | None = None,
        spare: int | None = None,
    ) -> tuple[list[Tally] | None, Version]:
        """`spare`: how many of those that are asked need not answer; else as many as a quorum of all can do without."""
        config = self.settings
        frames = pack(
            kind,
            batch.keys,
            batch.values,
            batch.first,
            batch.expected if kind == KIND_CAS else None,
            batch.expiry_s,
            config.backends,
            config.copies if copies is None else copies,
            first_copy,
            self._ways.frame_bytes_max(memoryview(batch.values[0]).nbytes if batch.values else 0),
        )
        return self._post.send(
            frames, len(batch.keys), deadline_at, config.copies - config.quorum if spare is None else spare
        )

    def _send_by_home(self, kind: int, batch: "_Batch", deadline_at: float) -> tuple[list[Tally] | None, Version]:
        """Compare-and-set: a key's home compares first, and only then the others. Were all asked at once, two clients
        could each win a part of them; and the home's word alone is not enough, since it may have missed something."""
        homes, floor = self._send(kind, batch, deadline_at, copies=1, spare=0)
        if self.settings.copies == 1:
            return homes, floor
        if homes is None:
            rest, _ = self._send(kind, batch, deadline_at, first_copy=1)
            for tally in rest or ():
                tally.applied += 1
            return rest, floor
        for i, home in enumerate(homes):
            took_it = home.home_took_it()
            if took_it or self._has_missed(home, batch, i, deadline_at):
                spare = None if took_it else 0  # without the home's word all others must agree
                rest, _ = self._send(kind, batch.one(i), deadline_at, first_copy=1, spare=spare)
                others = self.settings.copies - 1
                homes[i] = rest[0] if rest is not None else Tally(self.settings.copies, self.settings.quorum, others)
                homes[i].applied += took_it
        return homes, floor

    def _has_missed(self, home: Tally, batch: "_Batch", number: int, deadline_at: float) -> bool:
        """The home has another version than is expected, but a quorum has that one: then the others decide, all of
        them. Without this a key that its home has dropped could be read but not changed."""
        if home.verdict() is not Verdict.MISMATCH or self.settings.quorum == 1 or batch.expected is None:
            return False
        expected = tuple(batch.expected[number])
        for pause_s in (_SETTLE_S, 0.0):  # another client may be on its way from the home to the others
            left_s = deadline_at - self._clock.monotonic_s()
            found = self._get([batch.keys[number]], False, left_s, versions=True)[0]
            if found is None or tuple(found[1]) != expected:
                return False
            if pause_s:
                self._clock.wait(self._closing, pause_s)
        return True

    def _nominate(self, count: int, *, by_cas: bool) -> Version:
        with self._nominating:
            if self._versions is None:
                self._versions = HybridClock(self._ways.client_id())
            return self._versions.nominate(count, self._clock.time_us(), by_cas=by_cas)

    def _observe(self, floor: Version) -> None:
        with self._nominating:
            if self._versions is not None and floor > NOTHING:
                self._versions.observe(floor)

    def _judge(self, kind: int, keys: list[bytes], left: list[int], tallies: list[Tally], *, last: bool) -> list[int]:
        """The keys to try again at a higher version. What cannot be done raises."""
        failed: dict[Verdict, list[bytes]] = {}
        stale: list[int] = []
        for i, tally in zip(left, tallies, strict=True):
            verdict = tally.verdict()
            if (verdict is Verdict.STALE or (kind != KIND_CAS and tally.was_outbid())) and not last:
                stale.append(i)
            elif verdict is not Verdict.DONE:
                failed.setdefault(verdict, []).append(keys[i])
        if failed:
            verdict = max(failed)  # the least certain first
            raise self._error(kind, verdict, [key for found in failed.values() for key in found], failed[verdict])
        return stale

    def _error(self, kind: int, verdict: Verdict, keys: list[bytes], like: list[bytes]) -> TailraceError:
        word = {KIND_SET: "set", KIND_CAS: "set if unchanged", KIND_ERASE: "erase"}[kind]
        many = f"{like[0]!r}" if len(like) == 1 else f"{like[0]!r} and {len(like) - 1} more keys"
        tried = f"{word} {many} in the cache {self.name}"
        alive = f"{len(self._ways.alive())} of {self.settings.backends} backends are there"
        error: CacheRefused | CacheUnconfirmed
        match verdict:
            case Verdict.MISMATCH if self.settings.immutable and kind != KIND_ERASE:
                error = KeyExists(
                    f"{tried}: it is set already, and {self.settings.mode} keys are set once; erase it first"
                )
            case Verdict.MISMATCH:
                error = _Mismatch(f"{tried}: it has another version; read it again")
            case Verdict.TOO_LARGE:
                error = ValueTooLarge(f"{tried}: key and value do not fit an entry; keep them below 256 KiB together")
            case Verdict.NO_ROOM:
                error = CacheFull(f"{tried}: no memory and nothing to evict; give the cache more memory_bytes")
            case Verdict.AHEAD:
                error = ClockAhead(
                    f"{tried}: this machine's clock is more than {self.settings.clock_error_s} s ahead of theirs; "
                    f"set it right, or raise clock_error_s"
                )
            case Verdict.STALE:
                error = CacheRefused(f"{tried}: others set it at higher versions each time; try again")
            case Verdict.UNREACHABLE:
                error = CacheUnavailable(
                    f"{tried}: fewer than {self.settings.quorum} of its {self.settings.copies} backends could be "
                    f"reached ({alive}); nothing was changed, try again when they are back"
                )
            case _:
                error = CacheUnconfirmed(
                    f"{tried}: fewer than {self.settings.quorum} of its {self.settings.copies} backends confirmed it "
                    f"({alive}); it may show later, so read before you try again"
                )
        error.keys = tuple(keys)
        return error

    # ---- the rest

    def stats(self) -> dict[str, int]:
        """Counts of this client. retries: a read that was begun again; torn: bytes that changed while they were copied;
        hedges: reads that asked another replica after waiting; rpc_reads: answered by a backend itself."""
        return {**self._ways.stats(), "rpc_reads": self._asked_by_rpc}

    def backend_stats(self) -> dict[int, dict[str, int]]:
        """Counts of each backend that can be reached."""
        found = {}
        for number in self._ways.alive():
            try:
                found[number] = dict(self._ways.peer(number).stats().counters)
            except TailraceError:
                continue
        return found

    def ways(self) -> dict[int, str]:
        """How each backend is read now: memory, engine, rpc, or gone."""
        reading = self._take()
        try:
            native = reading.native.ways()
        finally:
            self._ways.give(reading)
        alive = self._ways.alive()
        return {i: way or ("rpc" if i in alive else "gone") for i, way in enumerate(native)}

    def _tell_touches(self) -> None:
        while not self._clock.wait(self._closing, self._config.touch_s):
            self._send_touches()

    def _send_touches(self) -> None:
        for number, hashes in self._ways.touches().items():
            try:
                self._ways.peer(number).touch(hashes)
            except TailraceError:
                continue  # a hint that is lost costs a wrong eviction at most

    def close(self) -> None:
        if self._closing.is_set():
            return
        self._closed = True
        self._closing.set()
        if self._toucher is not None:
            self._toucher.join()
            self._send_touches()
        self._askers.shutdown(wait=False)  # cancelled questions would never end for those who wait for them
        self._post.close()
        self._ways.close()
        self._on_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class _Batch:
    """Mutations of many keys: the first one's version; those of the others follow in its sequence."""

    keys: list[bytes]
    values: list[Buffer] | None
    first: Version
    expected: list[tuple[int, int, int]] | None
    expiry_s: int

    def one(self, number: int) -> "_Batch":
        return _Batch(
            self.keys[number : number + 1],
            None if self.values is None else self.values[number : number + 1],
            self.first._replace(sequence=self.first.sequence + number),
            None if self.expected is None else self.expected[number : number + 1],
            self.expiry_s,
        )


class _Mismatch(CacheRefused):
    """For cas() alone, which says it with None."""
