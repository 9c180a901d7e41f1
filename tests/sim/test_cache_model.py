"""Random mutations, reads, lost messages, crashes, evictions and repairs of three replicas, in one process.

The model knows, of each key, the highest version that completed or that a read returned. A consistent read never
returns less; and a compare-and-set never succeeds over something that it did not expect. docs/decisions/quorum.md says
why, and that it holds whatever fails; so any number of replicas may.

Backends are real ones, without their threads: what those do is done by rules here. Clients are real ones. Between
them lies a seam that refuses, drops, delays and loses, and lets other things happen while a message is on its way.
"""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tailrace.cache import Backend, BackendRecord, Cache, CacheRecord, Standing, Version, Ways
from tailrace.cache.peer import LocalPeer
from tailrace.config import CacheClientConfig, CacheConfig
from tailrace.errors import CacheRefused, CacheUnconfirmed, DeadlineExceeded, Unreachable
from tailrace.native.client import replicas_of
from tailrace.testing import ManualClock
from tailrace.wire import AttachReply, DigestReply, FetchPart, ListPart, MutateReply, Shared

NOTHING = Version(0, 0, 0)
KEYS = [b"a", b"b", b"c"]
BRIEF = {b"a": 1000.0, b"b": 5000.0, b"c": 5000.0}  # how long they live: so that a replica can drop some
SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


class Registered:
    """The registry of one process's caches, in a dictionary."""

    def __init__(self, config: CacheConfig) -> None:
        self.name, self.record = "c", CacheRecord(config, 1)
        self.backends: dict[int, BackendRecord] = {}
        self.started: set[int] = set()
        self.clients = 0

    def standing(self) -> Standing:
        return Standing(self.record, dict(self.backends), 1)

    def changes(self, after_revision: int) -> "Quiet":
        return Quiet()

    def client_id(self) -> int:
        self.clients += 1
        return self.clients

    def is_first(self, index: int) -> bool:
        first = index not in self.started
        self.started.add(index)
        return first

    def enter(self, index: int, backend: BackendRecord) -> "Tenure":
        self.backends[index] = backend
        return Tenure()


class Tenure:
    """Who is there is what a test says."""

    def keep_alive(self) -> None: ...

    def leave(self) -> None: ...


class Quiet:
    """Nobody is told of changes: clients look again when a test tells them to."""

    def __init__(self) -> None:
        self._closed = threading.Event()

    def wait(self, timeout_s: float) -> bool:
        self._closed.wait()
        return False

    def close(self) -> None:
        self._closed.set()


class Still(Backend):
    """A backend that does nothing by itself."""

    def _keep(self) -> None: ...

    def _tend(self) -> None: ...


class Skewed(ManualClock):
    """A client's own clock, behind or ahead of the backends'."""

    def __init__(self, true: ManualClock, skew_s: float) -> None:
        super().__init__()
        self._true, self._skew_us = true, int(skew_s * 1e6)

    def time_us(self) -> int:
        return self._true.time_us() + self._skew_us

    def monotonic_s(self) -> float:
        return self._true.monotonic_s()


class Lost:
    """An answer that never comes."""

    def result(self) -> MutateReply:
        raise DeadlineExceeded("lost")


class Seam(LocalPeer):
    """The way to one backend, whichever instance of it is there now."""

    def __init__(self, cell: "Cohort", number: int) -> None:
        self._cohort, self._number = cell, number

    @property
    def _backend(self) -> Backend:  # type: ignore[override]
        backend = self._cohort.up.get(self._number)
        if backend is None:
            problem = Unreachable(f"backend {self._number} is down")
            problem.took_effect = False
            raise problem
        return backend

    def attach(self, client: str, wants_engine: bool, *, deadline_s: float | None = None) -> AttachReply:
        return self._backend.attach(client, False)  # mutations come by here, where they can be got hold of

    def mutate_async(self, instance: int, config_id: int, frame: bytes, *, deadline_s: float | None = None) -> Any:
        return self._cohort.carry(self._number, lambda: self._deliver(instance, frame))

    def _deliver(self, instance: int, frame: bytes) -> Any:
        return super().mutate_async(instance, 1, frame)

    def digest(self, shared: Shared, *, deadline_s: float | None = None) -> DigestReply:
        self._cohort.pause()
        return super().digest(shared)

    def list_hashes(self, shared: Shared, *, deadline_s: float | None = None) -> Iterator[ListPart]:
        self._cohort.pause()
        yield from super().list_hashes(shared)

    def fetch(self, hashes: bytes, *, deadline_s: float | None = None) -> Iterator[FetchPart]:
        self._cohort.pause()
        for part in super().fetch(hashes):
            self._cohort.pause()
            yield part


class Cohort:
    """Three backends, two clients, and what may happen to them."""

    def __init__(self, mode: str = "R=3.2", **config: Any) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="model-")
        self.clock = ManualClock(start_us=time.time_ns() // 1000)
        self.config = CacheConfig(
            mode=mode,
            backends=3,
            memory_bytes=1 << 20,
            clock_error_s=0.5,
            **{"tombstones": 2, "keys_expected": 8} | config,
        )
        self.registry = Registered(self.config)
        self.up: dict[int, Backend] = {}
        self.faults: dict[int, str] = {}
        self.meanwhile: dict[int, list[Callable[[], None]]] = {}
        self.pauses: list[Callable[[], None]] = []
        self.healing: set[int] = set()
        self.late: list[Callable[[], Any]] = []
        self.clients: list[Cache] = []
        self.done: dict[bytes, Version] = {}
        self.values: dict[bytes, set[bytes]] = {}
        self.numbers = iter(range(1, 1_000_000))
        for number in range(3):
            self.start(number)
        for skew_s in (0.0, -30.0):
            self.clients.append(self.client(skew_s))

    def client(self, skew_s: float = 0.0) -> Cache:
        config = CacheClientConfig(attempts_max=3, transport="memory")
        clock = Skewed(self.clock, skew_s)
        ways = Ways(self.registry, config, clock, "here", {}, lambda address: Seam(self, int(address)))
        return Cache(ways, config, clock, lambda: None)

    def close(self) -> None:
        for client in self.clients:
            client.close()
        for backend in self.up.values():
            backend.close(remove=True)
        self.folder.cleanup()

    # ---- backends

    def start(self, number: int) -> None:
        if number in self.up:
            return
        folder = f"{self.folder.name}/{number}"
        backend = Still(self.registry, number, folder=folder, host="here", clock=self.clock)
        backend.open([str(number)], lambda other: Seam(self, other))
        self.up[number] = backend
        self.refresh()

    def crash(self, number: int, *, noticed: bool = True, remove: bool = False) -> None:
        """Its memory can still be read, unless the machine is gone with it."""
        backend = self.up.pop(number, None)
        if backend is None:
            return
        backend.close(remove=remove)
        if noticed:
            self.registry.backends.pop(number, None)
            self.refresh()

    def refresh(self) -> None:
        for client in self.clients:
            client._ways.refresh()

    def heal(self, number: int) -> bool:
        backend = self.up.get(number)
        if backend is None or number in self.healing:  # it does so in one thread
            return False
        assert backend._healer is not None
        self.healing.add(number)
        try:
            return backend._healer.heal()
        finally:
            self.healing.discard(number)

    def pause(self) -> None:
        """Between two steps of a repair."""
        if self.pauses:
            self.pauses.pop(0)()

    def drop(self, number: int, *, all_keys: bool) -> None:
        """What has expired by its clock, or all that it has."""
        if number in self.up:
            ahead_s = 10_000 if all_keys else 2000
            self.up[number]._cell.collect(self.clock.time_us() // 1_000_000 + ahead_s, 1000)

    # ---- messages

    def carry(self, number: int, deliver: Callable[[], Any]) -> Any:
        """One mutation on its way to one backend. Other things happen before it arrives."""
        for happen in self.meanwhile.pop(number, ()):
            happen()
        match self.faults.pop(number, "ok"):
            case "refuse":
                problem = Unreachable("not sent")
                problem.took_effect = False
                raise problem
            case "drop":
                return Lost()
            case "late":
                self.late.append(deliver)
                return Lost()
            case "lose the answer":
                with suppress(Unreachable):
                    deliver()
                return Lost()
        return deliver()

    def deliver_late(self, which: int) -> None:
        if self.late:
            with suppress(Unreachable):
                self.late.pop(which % len(self.late))()

    # ---- what clients do, and what must hold

    def value(self, key: bytes) -> bytes:
        value = b"%s %d" % (key, next(self.numbers))
        self.values.setdefault(key, set()).add(value)
        return value

    def completed(self, key: bytes, version: Version) -> None:
        self.done[key] = max(self.done.get(key, NOTHING), version)

    def get(self, key: bytes, client: int = 0) -> tuple[bytes, Version] | None:
        before = self.done.get(key, NOTHING)
        found = self.clients[client].get_with_version(key)
        if found is not None:
            value, version = found
            assert value in self.values[key], "a value that nobody set"
            assert version >= before, f"{key!r} went back from {before} to {version}, {value!r}"
            self.completed(key, version)
        return found

    def set(self, key: bytes, client: int = 0) -> bool:
        """Whether it is known to be done."""
        self.clock.advance(0.001)
        try:
            version = self.clients[client].set(key, self.value(key), ttl_s=BRIEF.get(key, 1000.0))
        except (CacheUnconfirmed, CacheRefused):
            return False
        self.completed(key, version)
        return True

    def erase(self, key: bytes, client: int = 0) -> bool:
        self.clock.advance(0.001)
        cache = self.clients[client]
        try:
            versions = cache._mutate(3, [key], None, None, None, None)  # as erase_many, which keeps them to itself
        except (CacheUnconfirmed, CacheRefused):
            return False
        # A read may return nothing at this version: whatever is returned must be above it.
        self.completed(key, versions[0]._replace(sequence=versions[0].sequence + 1))
        return True

    def cas(self, key: bytes, expected: Version, client: int = 0) -> bool:
        self.clock.advance(0.001)
        before = self.done.get(key, NOTHING)
        try:
            version = self.clients[client].cas(key, self.value(key), expected, ttl_s=BRIEF.get(key, 1000.0))
        except (CacheUnconfirmed, CacheRefused):
            return False
        if version is not None:
            assert before <= expected, f"{key!r}: compare-and-set of {expected} succeeded over {before}"
            self.completed(key, version)
        return version is not None


@pytest.fixture
def cohort() -> Iterator[Cohort]:
    made = Cohort()
    yield made
    made.close()


# ---- the model

Event = tuple[Any, ...]
EVENTS: list[Event] = [
    *(
        ("crash", number, noticed, remove)
        for number in range(3)
        for noticed in (True, False)
        for remove in (True, False)
    ),
    *(("start", number) for number in range(3)),
    *(("restart", number, heals) for number in range(3) for heals in (True, False)),
    *(("heal", number) for number in range(3)),
    *(("drop", number, all_keys) for number in range(3) for all_keys in (True, False)),
    *(("late", which) for which in range(4)),
    *((call, key) for call in ("get", "set", "erase") for key in KEYS),
]
FAULTS = ["refuse", "drop", "late", "lose the answer"]
TROUBLES: list[dict[int, str]] = [
    {},
    *({number: fault} for number in range(3) for fault in FAULTS),
    *(
        {one: fault, other: another}
        for one, other in ((0, 1), (0, 2), (1, 2))
        for fault in FAULTS
        for another in FAULTS
    ),
]
events = st.sampled_from(EVENTS)
keys, clients, numbers = st.sampled_from(KEYS), st.integers(0, 1), st.integers(0, 2)
#: What fails, and what else happens just before a message arrives at that backend.
troubles = st.tuples(st.sampled_from(TROUBLES), st.none() | st.tuples(numbers, st.lists(events, max_size=3)))
Trouble = tuple[dict[int, str], tuple[int, list[Event]] | None]
NO_TROUBLE: Trouble = ({}, None)


class CacheMachine(RuleBasedStateMachine):
    comparing = False

    @initialize(tombstones=st.sampled_from([0, 1, 64]))
    def begin(self, tombstones: int) -> None:
        self.cohort = Cohort(tombstones=tombstones)

    def happen(self, event: Event) -> None:
        cohort = self.cohort
        match event:
            case ("crash", number, noticed, remove):
                cohort.crash(number, noticed=noticed, remove=remove)
            case ("start", number):
                cohort.start(number)
            case ("restart", number, heals):
                cohort.crash(number)
                cohort.start(number)
                if heals:
                    cohort.heal(number)
            case ("heal", number):
                cohort.heal(number)
            case ("drop", number, all_keys):
                cohort.drop(number, all_keys=all_keys)
            case ("late", which):
                cohort.deliver_late(which)
            case ("get", key):
                cohort.get(key)
            case ("set", key):
                cohort.set(key, client=1)
            case ("erase", key):
                cohort.erase(key, client=0)

    def later(self, events: list[Event]) -> list[Callable[[], None]]:
        return [partial(self.happen, event) for event in events]

    def let(self, trouble: Trouble) -> None:
        faults, meanwhile = trouble
        self.cohort.faults = dict(faults)
        self.cohort.meanwhile = {} if meanwhile is None else {meanwhile[0]: self.later(meanwhile[1])}

    @rule(key=keys, client=clients, trouble=troubles)
    def set(self, key: bytes, client: int, trouble: Trouble) -> None:
        self.let(trouble)
        self.cohort.set(key, client)
        self.let(NO_TROUBLE)

    @rule(key=keys, client=clients, trouble=troubles)
    def erase(self, key: bytes, client: int, trouble: Trouble) -> None:
        self.let(trouble)
        self.cohort.erase(key, client)
        self.let(NO_TROUBLE)

    @precondition(lambda self: self.comparing)
    @rule(key=keys, client=clients, trouble=troubles)
    def compare_and_set(self, key: bytes, client: int, trouble: Trouble) -> None:
        found = self.cohort.get(key, client)
        if found is not None:
            self.let(trouble)
            self.cohort.cas(key, found[1], client)
            self.let(NO_TROUBLE)

    @rule(number=numbers, meanwhile=st.lists(events, max_size=5))
    def heal(self, number: int, meanwhile: list[Event]) -> None:
        self.cohort.pauses = self.later(meanwhile)
        self.cohort.heal(number)
        self.cohort.pauses = []

    @rule(key=keys, client=clients)
    def get(self, key: bytes, client: int) -> None:
        self.cohort.get(key, client)

    @rule(event=events)
    def something_happens(self, event: Event) -> None:
        self.happen(event)

    def teardown(self) -> None:
        """When everybody is back and healed, keys can be set and are read; nothing old has come back meanwhile."""
        if not hasattr(self, "cohort"):
            return
        try:
            self.let(NO_TROUBLE)
            while self.cohort.late:
                self.cohort.deliver_late(0)
            for number in range(3):
                self.cohort.start(number)
            for _ in range(2):
                for number in range(3):
                    assert self.cohort.heal(number)
            for key in KEYS:
                self.cohort.get(key)
                assert self.cohort.set(key)
                assert self.cohort.get(key) is not None
        finally:
            self.cohort.close()


class CompareAndSetMachine(CacheMachine):
    comparing = True


MODEL = settings(max_examples=60, stateful_step_count=25, suppress_health_check=list(HealthCheck), print_blob=True)
TestModel = CacheMachine.TestCase
TestModel.settings = MODEL
TestCompareAndSetModel = CompareAndSetMachine.TestCase
TestCompareAndSetModel.settings = MODEL


# ---- what the model must be able to see: one history for each rule of docs/decisions/quorum.md


def key_at_home(number: int) -> bytes:
    return next(key for key in (b"key %d" % i for i in range(100)) if replicas_of(key, 3, 3)[0] == number)


def test_a_late_set_does_not_come_before_what_was_erased_and_forgotten(cohort: Cohort) -> None:
    key = KEYS[0]
    cohort.faults = {0: "late"}
    assert cohort.set(key)
    assert cohort.erase(key)
    for other in range(4):
        cohort.erase(b"other %d" % other)  # pushes the tombstone out
    cohort.deliver_late(0)
    cohort.faults = {0: "drop", 1: "drop"}
    cohort.set(b"other", client=0)
    assert cohort.get(key) is None


def test_a_replica_that_missed_an_erase_and_one_that_came_back_empty_do_not_agree(cohort: Cohort) -> None:
    key = KEYS[0]
    assert cohort.set(key)
    cohort.faults = {1: "drop"}
    assert cohort.erase(key)
    cohort.crash(0)
    cohort.start(0)
    cohort.heal(0)
    assert cohort.get(key) is None
    cohort.heal(1)
    assert not cohort.up[1]._cell.known(replicas_of(key, 3, 3)[0], 3, (1 << 64) - 1), "it has learned of it"


def test_an_acknowledgement_of_a_predecessor_does_not_complete_what_its_successor_has_not_seen(cohort: Cohort) -> None:
    """The history that start and fence are for."""
    key = KEYS[0]
    assert cohort.set(key)

    def fail_over() -> None:
        cohort.crash(0)
        cohort.start(0)
        cohort.heal(0)

    cohort.faults = {2: "drop"}
    cohort.meanwhile = {1: [fail_over]}
    cohort.erase(key)
    found = cohort.get(key)  # which fails if the erase completed and the value is back
    assert found is None or found[1] == cohort.done[key]


def test_a_version_from_before_is_stale_to_a_successor(cohort: Cohort) -> None:
    """Nominated before an erase completed, sent after one that saw the erase has failed, to whoever is there then."""
    key = KEYS[0]

    def erase_and_fail_over() -> None:
        cohort.faults = {2: "drop"}
        assert cohort.erase(key)
        cohort.crash(1)
        cohort.start(1)
        cohort.faults = {0: "drop"}

    cohort.meanwhile = {0: [erase_and_fail_over]}
    cohort.set(key)
    for number in range(3):
        cohort.get(key)
        cohort.heal(number)
    cohort.get(key)


def test_what_was_dropped_everywhere_but_at_a_stale_replica_stays_away(cohort: Cohort) -> None:
    key = KEYS[0]
    assert cohort.set(key)
    cohort.faults = {2: "drop"}
    assert cohort.set(key)
    for number in (0, 1):
        cohort.drop(number, all_keys=True)
        cohort.heal(number)
    assert cohort.get(key) is None
    cohort.crash(0)
    cohort.start(0)
    cohort.heal(0)
    assert cohort.get(key) is None


def test_a_missed_set_is_made_up_for_by_a_repair(cohort: Cohort) -> None:
    key = KEYS[0]
    cohort.faults = {2: "drop"}
    assert cohort.set(key)
    assert cohort.heal(2)
    cohort.crash(0, remove=True)
    assert cohort.get(key) is not None, "two of three are enough, whichever they are"


def test_a_restarted_replica_gets_back_what_the_others_have(cohort: Cohort) -> None:
    for key in KEYS:
        assert cohort.set(key)
    for number in range(3):
        cohort.crash(number)
        cohort.start(number)
        assert cohort.heal(number)
        for key in KEYS:
            assert cohort.get(key) is not None
    records = [backend._cell.stats()["records"] for backend in cohort.up.values()]
    assert records == [len(KEYS)] * 3


def test_two_that_lost_everything_do_not_believe_the_third(cohort: Cohort) -> None:
    key = KEYS[0]
    assert cohort.set(key)
    cohort.faults = {2: "drop"}
    assert cohort.set(key)
    cohort.crash(0, remove=True)
    cohort.crash(1, remove=True)
    cohort.start(0)
    cohort.start(1)
    for number in range(3):
        cohort.heal(number)
    assert cohort.get(key) is None


# ---- compare-and-set


def test_a_home_that_missed_a_set_does_not_let_a_compare_and_set_overwrite_it(cohort: Cohort) -> None:
    key = KEYS[0]
    home = replicas_of(key, 3, 3)[0]
    assert cohort.set(key)
    found = cohort.get(key)
    assert found is not None
    cohort.faults = {home: "drop"}
    assert cohort.set(key)
    assert not cohort.cas(key, found[1])
    assert cohort.get(key) is not None


def test_a_compare_and_set_that_failed_does_not_win_by_a_repair(cohort: Cohort) -> None:
    """It was taken by one replica only, and the other two have something that it did not expect."""
    key = KEYS[0]
    home = replicas_of(key, 3, 3)[0]
    assert cohort.set(key)
    first = cohort.get(key)
    assert first is not None
    cohort.faults = {home: "drop"}
    assert cohort.set(key)
    second = cohort.get(key)
    assert second is not None
    cohort.faults = {number: "drop" for number in range(3) if number != home}
    cohort.cas(key, first[1])
    for number in range(3):
        cohort.heal(number)
    assert cohort.get(key) == second


def test_a_key_that_its_home_has_dropped_can_be_compared_and_set(cohort: Cohort) -> None:
    """Reads hit, so whoever reads and sets in a loop must get through."""
    key = KEYS[0]
    assert cohort.set(key)
    cohort.drop(replicas_of(key, 3, 3)[0], all_keys=True)
    for _ in range(3):
        found = cohort.get(key)
        assert found is not None
        if cohort.cas(key, found[1]):
            return
        for number in range(3):
            cohort.heal(number)
    pytest.fail("a key that is read cannot be changed")


def test_an_immutable_key_does_not_change_while_its_home_restarts() -> None:
    cohort = Cohort("R=2/immutable")
    try:
        key = key_at_home(0)
        assert cohort.set(key)
        found = cohort.get(key)
        assert found is not None
        cohort.crash(0)
        cohort.start(0)
        cohort.set(key)  # by someone who does not know of it
        assert cohort.get(key) == found
        cohort.heal(0)
        assert cohort.get(key) == found
    finally:
        cohort.close()
