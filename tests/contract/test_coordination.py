"""What every coordination store must do, run on each implementation; then what only a store in a file can get wrong."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import apsw
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tailrace.coordination as room
from conftest import wait_until
from etcd_cluster import shared_cluster
from tailrace.config import CoordinationConfig
from tailrace.coordination import (
    Absent,
    AtRevision,
    Compacted,
    Coordination,
    Delete,
    Entry,
    EtcdCoordination,
    Event,
    HasValue,
    Lease,
    Outcome,
    Put,
    Snapshot,
    SqliteCoordination,
    compare_and_swap,
    put,
    put_if_absent,
)
from tailrace.coordination.transaction import check_ttl
from tailrace.env import SystemClock
from tailrace.errors import Closed, ConfigError, CoordinationError, LeaseExpired

# --- the implementations under test


class FakeClock:
    """Time that moves when told to, and while someone waits: a wait that nobody ends is over at once."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.wall_us = 10**15

    def time_us(self) -> int:
        return self.wall_us

    def monotonic_s(self) -> float:
        return self.now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not event.is_set():
            self.now_s += timeout_s
        return event.is_set()


class Place(Protocol):
    """One store, which any number of clients may open, on a clock that the test moves."""

    history_max: int
    leases_max: int | None  # None: it has no such limit

    def open(self) -> Coordination: ...

    def advance(self, seconds: float) -> None: ...

    def jump_wall_clock(self, seconds: float) -> None: ...

    def close(self) -> None: ...


class SqlitePlace:
    history_max = 8
    leases_max = 5

    def __init__(self, folder: Path) -> None:
        self.path = folder / "coordination.db"
        self.clock = FakeClock()

    def open(self) -> Coordination:
        return SqliteCoordination(self.path, clock=self.clock, history_max=self.history_max, leases_max=self.leases_max)

    def advance(self, seconds: float) -> None:
        self.clock.now_s += seconds

    def jump_wall_clock(self, seconds: float) -> None:
        self.clock.wall_us += int(seconds * 1e6)

    def close(self) -> None: ...


class EtcdPlace:
    """A prefix in a real cluster, which counts revisions from the cluster's present one.

    Its leases live for an hour of real time; those that are over by the test's clock it revokes. To etcd an expiry is
    just that: the leader orders the same revocation of itself. test_coordination_etcd.py has one expiry in real time.
    """

    history_max = 8
    leases_max = None

    def __init__(self, folder: Path) -> None:
        self._config = shared_cluster().config()
        self._keeper = EtcdCoordination(self._config)
        self._first = self._keeper.revision() + 1
        self.clock = _MovingClock(self.end_due_leases)
        self.leases: dict[int, tuple[float, float]] = {}  # time to live, deadline

    def open(self) -> Coordination:
        return _TimedEtcd(self, self._config, self._first)

    def advance(self, seconds: float) -> None:
        self.clock.now_s += seconds
        self.end_due_leases()

    def jump_wall_clock(self, seconds: float) -> None:
        self.clock.wall_us += int(seconds * 1e6)

    def end_due_leases(self) -> None:
        for deadline_s, lease in sorted((deadline_s, lease) for lease, (_, deadline_s) in self.leases.items()):
            if deadline_s <= self.clock.now_s:
                del self.leases[lease]
                self._keeper._revoke(lease)

    def close(self) -> None:
        for lease in self.leases:
            self._keeper._revoke(lease)
        self._keeper.close()


class _MovingClock(FakeClock):
    def __init__(self, moved: Callable[[], None]) -> None:
        super().__init__()
        self._moved = moved

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        ended = super().wait(event, timeout_s)
        self._moved()
        return ended


class _TimedEtcd(EtcdCoordination):
    def __init__(self, place: EtcdPlace, config: CoordinationConfig, first_revision: int) -> None:
        super().__init__(config, clock=place.clock, first_revision=first_revision, history_max=place.history_max)
        self._place = place

    def lease(self, ttl_s: float) -> Lease:
        check_ttl(ttl_s)
        lease = super().lease(3600)
        self._place.leases[lease.id] = (ttl_s, self._place.clock.now_s + ttl_s)
        return lease

    def _keep_alive(self, lease: int) -> None:
        super()._keep_alive(lease)
        ttl_s, _ = self._place.leases[lease]
        self._place.leases[lease] = (ttl_s, self._place.clock.now_s + ttl_s)


PLACES: list[Callable[[Path], Place]] = [SqlitePlace, EtcdPlace]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    made: Place = request.param(tmp_path)
    yield made
    made.close()


@pytest.fixture
def store(place: Place) -> Iterator[Coordination]:
    with place.open() as opened:
        yield opened


def deleted(key: str, revision: int) -> Event:
    return Event(key, revision, None)


def became(entry: Entry) -> Event:
    return Event(entry.key, entry.revision, entry)


# --- entries and transactions


def test_the_door() -> None:
    assert " ".join(sorted(room.__all__)) == (
        "Absent AtRevision Compacted Coordination Delete Entry EtcdCoordination Event HasValue Lease Operation Outcome "
        "Put Requirement Snapshot SqliteCoordination Watch compare_and_swap put put_if_absent"
    )


def test_a_new_store_is_empty_at_revision_zero(store: Coordination) -> None:
    assert store.get("a") is None
    assert store.range("") == Snapshot((), 0)


def test_each_change_raises_the_revision_by_one_and_creation_is_remembered(store: Coordination) -> None:
    assert [put(store, "a", b"1"), put(store, "b", b""), put(store, "a", b"2")] == [1, 2, 3]
    assert store.get("a") == Entry("a", b"2", revision=3, created=1)
    assert store.get("b") == Entry("b", b"", revision=2, created=2)


def test_a_key_made_again_is_a_new_key(store: Coordination) -> None:
    put(store, "a", b"1")
    assert store.transact((), [Delete("a")]) == Outcome(True, 2)
    put(store, "a", b"1")
    assert store.get("a") == Entry("a", b"1", revision=3, created=3)


def test_what_changes_nothing_leaves_the_revision_alone(store: Coordination) -> None:
    put(store, "a", b"1")
    assert store.transact((), []).revision == 1
    assert store.transact((), [Delete("b")]) == Outcome(True, 1)
    assert put_if_absent(store, "a", b"2").revision == 1


def test_all_changes_of_a_transaction_carry_one_revision(store: Coordination) -> None:
    put(store, "c", b"old")
    with store.watch("") as watch:
        outcome = store.transact([], [Put("b", b"1"), Delete("c"), Put("a", b"2")])
        assert outcome == Outcome(True, 2)
        a, b = Entry("a", b"2", 2, 2), Entry("b", b"1", 2, 2)
        assert store.range("") == Snapshot((a, b), 2)
        assert watch.poll(0) == [became(b), deleted("c", 2), became(a)]


@pytest.mark.parametrize(
    ("need", "met"),
    [
        (Absent("none"), True),
        (Absent("a"), False),
        (AtRevision("a", 2), True),
        (AtRevision("a", 1), False),
        (AtRevision("none", 0), False),
        (HasValue("a", b"new"), True),
        (HasValue("a", b"old"), False),
        (HasValue("none", b""), False),
    ],
)
def test_requirements(store: Coordination, need: Absent | AtRevision | HasValue, met: bool) -> None:
    put(store, "a", b"old")
    put(store, "a", b"new")
    present = store.get(need.key)
    outcome = store.transact([need], [Put("then", b"")], [Put("otherwise", b"")])
    assert outcome == Outcome(met, 3, {} if met else {need.key: present})
    assert (store.get("then") is not None, store.get("otherwise") is not None) == (met, not met)


def test_one_failed_requirement_stops_everything_and_only_the_failed_ones_are_shown(store: Coordination) -> None:
    put(store, "a", b"mine")
    put(store, "b", b"yours")
    outcome = store.transact(
        [HasValue("a", b"mine"), Absent("b"), AtRevision("none", 7)], [Put("a", b""), Put("new", b"")], [Delete("b")]
    )
    assert outcome == Outcome(False, 3, {"b": Entry("b", b"yours", 2, 2), "none": None})
    assert store.range("").entries == (Entry("a", b"mine", 1, 1),)


def test_two_clients_swap_and_the_loser_sees_what_it_lost_to(place: Place) -> None:
    with place.open() as one, place.open() as two:
        assert put_if_absent(one, "owner", b"one").succeeded
        seen = two.get("owner")
        assert compare_and_swap(one, "owner", one.get("owner"), b"one again").succeeded
        lost = compare_and_swap(two, "owner", seen, b"two")
        assert lost == Outcome(False, 2, {"owner": Entry("owner", b"one again", 2, 1)})
        assert compare_and_swap(two, "owner", lost.conflicts["owner"], b"two").succeeded
        assert not compare_and_swap(one, "owner", None, b"new").succeeded
        assert one.range("") == two.range("")


def test_range_takes_the_prefix_literally_and_sorts_by_bytes(store: Coordination) -> None:
    keys = ["a", "a%", "a/", "a/é", "a/\U0010ffff", "a/\ud7ff", "a0", "b", "é", "%", "\x01", "\U0010ffff"]
    store.transact((), [Put(key, b"") for key in keys])
    for prefix in ["", "a", "a/", "a%", "é", "\U0010ffff", "a/\U0010ffff", "zz"]:
        expected = sorted((key for key in keys if key.startswith(prefix)), key=str.encode)
        assert [entry.key for entry in store.range(prefix).entries] == expected, prefix


def test_what_one_client_committed_another_sees_after_the_first_is_gone(place: Place) -> None:
    with place.open() as first:
        put(first, "a", b"1")
    with place.open() as second:
        assert second.range("") == Snapshot((Entry("a", b"1", 1, 1),), 1)


def test_threads_share_a_store(store: Coordination) -> None:
    def increment() -> None:
        for _ in range(20):
            while True:
                seen = store.get("counter")
                if compare_and_swap(store, "counter", seen, b"%d" % (int(seen.value if seen else b"0") + 1)).succeeded:
                    break

    threads = [threading.Thread(target=increment) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counter = store.get("counter")
    assert counter is not None
    assert (counter.value, counter.revision) == (b"80", 80)


# --- bad input


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.get(""), "empty key"),
        (lambda s: s.get("a\0b"), "NUL"),
        (lambda s: s.get("é" * 513), "1026 bytes"),
        (lambda s: s.get("\ud800"), "UTF-8"),
        (lambda s: s.get(b"a"), "keys are str"),
        (lambda s: s.range("a\0"), "NUL"),
        (lambda s: s.watch("x" * 1025), "1025 bytes"),
        (lambda s: s.watch("", after_revision=99), "store is at 1"),
        (lambda s: s.watch("", after_revision=-1), "store is at 1"),
        (lambda s: s.lease(0), "ttl_s=0"),
        (lambda s: s.lease(float("nan")), "ttl_s=nan"),
        (lambda s: s.lease(1e9), "86400"),
        (lambda s: put(s, "a", bytes((1 << 20) + 1)), "1048577 bytes"),
        (lambda s: put(s, "a", "text"), "values are bytes"),
        (lambda s: s.transact([HasValue("a", None)], []), "values are bytes"),
        (lambda s: s.transact([Delete("a")], []), "use Absent"),
        (lambda s: s.transact([], [Absent("a")]), "use Put or Delete"),
        (lambda s: s.transact([Absent("a")] * 1001, []), "1001 items in `requires`"),
        (lambda s: s.transact([], [Delete(str(n)) for n in range(1001)]), "1001 items in `then`"),
        (lambda s: s.transact([], [], [Delete(str(n)) for n in range(1001)]), "1001 items in `otherwise`"),
        (lambda s: s.transact([], [Put("b", b""), Delete("b")]), "'b' twice"),
        (lambda s: s.transact([], [Put(str(n), bytes(1 << 20)) for n in range(9)]), "split it"),
    ],
)
def test_bad_input_is_refused_with_a_reason_and_changes_nothing(
    store: Coordination, call: Callable[[Coordination], object], says: str
) -> None:
    put(store, "kept", b"1")
    with pytest.raises(CoordinationError, match=says) as caught:
        call(store)
    assert caught.value.took_effect is False
    assert store.range("") == Snapshot((Entry("kept", b"1", 1, 1),), 1)


def test_the_limits_themselves_are_allowed(store: Coordination) -> None:
    key, value = "é" * 512, bytes(1 << 20)
    put(store, key, value)
    assert store.get(key) == Entry(key, value, 1, 1)
    store.transact([Absent(str(n)) for n in range(1000)], [Put(str(n), b"") for n in range(1000)])
    assert len(store.range("").entries) == 1001


def test_a_closed_store_says_so(place: Place) -> None:
    store = place.open()
    lease, watch = store.lease(10), store.watch("")
    store.close()
    store.close()
    for call in (lambda: store.get("a"), lambda: put(store, "a", b""), lease.keep_alive, lambda: watch.poll(0)):
        with pytest.raises(Closed):
            call()


# --- leases


def test_keys_go_with_their_lease_as_deletions_of_one_revision(place: Place, store: Coordination) -> None:
    lease = store.lease(10)
    store.transact((), [Put("b", b"", lease.id), Put("a", b"", lease.id), Put("stays", b"")])
    with store.watch("") as watch:
        place.advance(9.9)
        assert store.get("a") == Entry("a", b"", 1, 1, lease.id)
        place.advance(0.1)
        assert store.get("a") is None
        assert store.range("") == Snapshot((Entry("stays", b"", 1, 1),), 2)
        assert watch.poll(0) == [deleted("a", 2), deleted("b", 2)]


@pytest.mark.parametrize("look", ["get", "range", "transact", "watch", "lease", "another client"])
def test_whatever_is_done_next_meets_the_expiry_first(place: Place, store: Coordination, look: str) -> None:
    lease = store.lease(10)
    put(store, "mine", b"", lease=lease.id)
    early = store.watch("")
    place.advance(10)
    match look:
        case "get":
            assert store.get("mine") is None
        case "range":
            assert store.range("mine") == Snapshot((), 2)
        case "transact":
            assert put_if_absent(store, "mine", b"yours") == Outcome(True, 3)
        case "watch":
            assert early.poll(0) == [deleted("mine", 2)]
        case "lease":
            store.lease(10)
        case "another client":
            with place.open() as other:
                assert other.get("mine") is None
    with store.watch("", after_revision=1) as watch:
        assert watch.poll(0)[0] == deleted("mine", 2)


def test_keep_alive_starts_the_time_again_until_it_is_too_late(place: Place, store: Coordination) -> None:
    lease = store.lease(10)
    put(store, "a", b"", lease=lease.id)
    for _ in range(3):
        place.advance(9)
        lease.keep_alive()
    assert store.get("a") is not None
    place.advance(10)
    with pytest.raises(LeaseExpired, match="ask for a new lease") as caught:
        lease.keep_alive()
    assert caught.value.took_effect is False
    assert store.get("a") is None


def test_a_wall_clock_jump_ends_no_lease(place: Place, store: Coordination) -> None:
    lease = store.lease(10)
    put(store, "a", b"", lease=lease.id)
    for seconds in (1e7, -2e7):
        place.jump_wall_clock(seconds)
        lease.keep_alive()
        assert store.get("a") is not None


def test_revoke_deletes_at_once_and_twice_is_no_error(place: Place, store: Coordination) -> None:
    lease, other = store.lease(10), store.lease(10)
    store.transact((), [Put("a", b"", lease.id), Put("b", b"", other.id)])
    lease.revoke()
    lease.revoke()
    assert store.range("") == Snapshot((Entry("b", b"", 1, 1, other.id),), 2)
    with pytest.raises(LeaseExpired):
        lease.keep_alive()


def test_a_later_put_decides_about_the_binding(place: Place, store: Coordination) -> None:
    short, long = store.lease(10), store.lease(100)
    store.transact((), [Put(key, b"", short.id) for key in ("freed", "moved", "bound")])
    put(store, "freed", b"")
    put(store, "moved", b"", lease=long.id)
    place.advance(10)
    assert [(entry.key, entry.lease) for entry in store.range("").entries] == [("freed", None), ("moved", long.id)]


def test_a_lease_id_works_in_another_client_and_is_never_used_again(place: Place, store: Coordination) -> None:
    lease = store.lease(10)
    with place.open() as other:
        put(other, "a", b"", lease=lease.id)
    lease.revoke()
    assert store.get("a") is None
    assert store.lease(10).id != lease.id


def test_a_put_under_an_ended_lease_is_refused_whole(place: Place, store: Coordination) -> None:
    lease = store.lease(10)
    place.advance(10)
    for gone in (lease.id, 12345):
        with pytest.raises(LeaseExpired) as caught:
            store.transact((), [Put("a", b""), Put("b", b"", gone)])
        assert caught.value.took_effect is False
    assert store.range("") == Snapshot((), 0)


@pytest.mark.parametrize("place", [place for place in PLACES if place.leases_max is not None], indirect=True)  # type: ignore[attr-defined]
def test_leases_are_bounded_and_ended_ones_do_not_count(place: Place, store: Coordination) -> None:
    assert place.leases_max is not None
    for _ in range(place.leases_max):
        store.lease(10)
    with pytest.raises(CoordinationError, match="limit"):
        store.lease(10)
    place.advance(10)
    store.lease(10)


# --- watches


def test_a_watch_starts_now_unless_told_otherwise(store: Coordination) -> None:
    put(store, "a", b"1")
    with store.watch("") as now, store.watch("", after_revision=0) as all_of_it:
        put(store, "a", b"2")
        assert now.poll(0) == [became(Entry("a", b"2", 2, 1))]
        assert all_of_it.poll(0) == [became(Entry("a", b"1", 1, 1)), became(Entry("a", b"2", 2, 1))]
        assert now.poll(0) == all_of_it.poll(0) == []
        assert now.poll(5) == []


def test_a_watch_from_a_snapshot_misses_and_repeats_nothing(place: Place) -> None:
    with place.open() as writer, place.open() as reader:
        put(writer, "p/a", b"1")
        snapshot = reader.range("p/")
        put(writer, "p/b", b"2")
        put(writer, "q", b"")
        with reader.watch("p/", after_revision=snapshot.revision) as watch:
            assert watch.poll(0) == [became(Entry("p/b", b"2", 2, 2))]
            assert watch.revision == 3


def test_poll_waits_for_a_lease_to_end(place: Place, store: Coordination) -> None:
    put(store, "a", b"", lease=store.lease(10).id)
    with store.watch("a") as watch:
        assert watch.poll(9) == []
        seen: list[Event] = []
        wait_until(lambda: seen.extend(watch.poll(2)) or seen, "the deletion")
        assert seen == [deleted("a", 2)]


def test_an_iteration_that_stops_in_the_middle_loses_nothing(store: Coordination) -> None:
    store.transact((), [Put("a", b""), Put("b", b"")])
    put(store, "c", b"")
    with store.watch("", after_revision=0) as watch:
        for event in watch:
            assert event.key == "a"
            break
        assert watch.revision == 0  # the rest of revision 1 was not handed out
        assert [event.key for event in watch.poll(0)] == ["b", "c"]
        assert watch.revision == 2


def test_many_events_come_in_several_polls_with_no_revision_split(store: Coordination) -> None:
    for turn in range(4):
        store.transact((), [Put(f"{number:03}", b"%d" % turn) for number in range(700)])
    seen: list[int] = []
    with store.watch("", after_revision=0) as watch:

        def all_came() -> bool:
            events = watch.poll(0)
            assert set(seen).isdisjoint(event.revision for event in events)
            seen.extend(event.revision for event in events)
            assert not seen or watch.revision == seen[-1]
            return len(seen) >= 4 * 700

        wait_until(all_came, "all events")
    assert seen == sorted([1, 2, 3, 4] * 700)


def test_closing_a_watch_ends_its_iteration_and_its_polls(store: Coordination) -> None:
    put(store, "a", b"")
    with store.watch("", after_revision=0) as watch:
        for _ in watch:
            watch.close()
    with pytest.raises(Closed, match="revision 1"):
        watch.poll(0)


def test_old_history_is_forgotten_and_a_watch_that_needs_it_is_told(place: Place, store: Coordination) -> None:
    idle, behind = store.watch("other"), store.watch("a")
    for turn in range(5 * place.history_max):
        put(store, "a", b"%d" % turn)
        idle.poll(0)
        store.watch("a", after_revision=max(0, turn + 1 - place.history_max)).close()  # so much is always kept
    with pytest.raises(Compacted, match=r"range\(\)") as caught:
        store.watch("a", after_revision=0)
    assert caught.value.after_revision == 0
    assert 0 < caught.value.compacted <= 4 * place.history_max
    assert caught.value.took_effect is False
    try:  # a store may have sent a watch what happened before it was forgotten: then it has all of it
        assert [event.revision for event in behind.poll(0)] == list(range(1, 5 * place.history_max + 1))
    except Compacted as told:
        assert (told.after_revision, told.took_effect) == (0, False)
    assert idle.poll(0) == []  # it saw the revisions pass by, though none of them concerned it
    with store.watch("a", after_revision=4 * place.history_max) as watch:
        assert len(watch.poll(0)) == place.history_max


# --- random operations against a model


KEYS = ["a", "a/1", "a/2", "b"]
PREFIXES = ["", "a", "a/", "c"]


class AgainstModel(RuleBasedStateMachine):
    """Two clients of one store against a dict. Due leases end one by one, by deadline, before anything else is done."""

    make_place: Callable[[Path], Place]

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.place = self.make_place(Path(self.folder))
        self.clients = [self.place.open(), self.place.open()]
        self.entries: dict[str, Entry] = {}
        self.events: list[Event] = []
        self.revision = 0
        self.now_s = 0
        self.leases: dict[int, tuple[int, int, object]] = {}  # id: time to live, deadline, the lease itself
        self.watches: list[list] = []  # watch, prefix, revision it has seen

    def teardown(self) -> None:
        for client in self.clients:
            client.close()
        self.place.close()
        shutil.rmtree(self.folder)

    @initialize()
    def start(self) -> None:
        assert self.clients[0].range("") == Snapshot((), 0)

    def apply(self, operations: list[Put | Delete]) -> None:
        changed = [one for one in operations if isinstance(one, Put) or one.key in self.entries]
        self.revision += bool(changed)
        for one in changed:
            if isinstance(one, Put):
                created = self.entries[one.key].created if one.key in self.entries else self.revision
                self.entries[one.key] = Entry(one.key, one.value, self.revision, created, one.lease)
            else:
                del self.entries[one.key]
            self.events.append(Event(one.key, self.revision, self.entries.get(one.key)))

    def end(self, lease: int) -> None:
        del self.leases[lease]
        self.apply([Delete(key) for key in sorted(self.entries) if self.entries[key].lease == lease])

    def expire(self) -> None:
        for deadline, lease in sorted((deadline, lease) for lease, (_, deadline, _) in self.leases.items()):
            if deadline <= self.now_s:
                self.end(lease)

    @rule(data=st.data(), client=st.integers(0, 1), use_otherwise=st.booleans())
    def transact(self, data: st.DataObject, client: int, use_otherwise: bool) -> None:
        self.expire()
        requirement = st.one_of(
            st.builds(Absent, st.sampled_from(KEYS)),
            st.builds(HasValue, st.sampled_from(KEYS), st.sampled_from([b"x", b"y"])),
            st.builds(AtRevision, st.sampled_from(KEYS), st.integers(max(0, self.revision - 4), self.revision)),
        )
        operation = st.one_of(
            st.builds(Delete, st.sampled_from(KEYS)),
            st.builds(Put, st.sampled_from(KEYS), st.sampled_from([b"x", b"y"]), st.sampled_from([None, *self.leases])),
        )
        operations = st.lists(operation, max_size=3, unique_by=lambda one: one.key)
        requires = data.draw(st.lists(requirement, max_size=2))
        then, otherwise = data.draw(operations), data.draw(operations) if use_otherwise else []
        conflicts = {}
        for need in requires:
            there = self.entries.get(need.key)
            if isinstance(need, Absent):
                met = there is None
            elif isinstance(need, HasValue):
                met = there is not None and there.value == need.value
            else:
                met = there is not None and there.revision == need.revision
            if not met:
                conflicts[need.key] = there
        self.apply(otherwise if conflicts else then)
        outcome = self.clients[client].transact(requires, then, otherwise)
        assert outcome == Outcome(not conflicts, self.revision, conflicts)

    @rule(client=st.integers(0, 1), key=st.sampled_from(KEYS))
    def get(self, client: int, key: str) -> None:
        self.expire()
        assert self.clients[client].get(key) == self.entries.get(key)

    @rule(client=st.integers(0, 1), prefix=st.sampled_from(PREFIXES))
    def range(self, client: int, prefix: str) -> None:
        self.expire()
        expected = tuple(self.entries[key] for key in sorted(self.entries) if key.startswith(prefix))
        assert self.clients[client].range(prefix) == Snapshot(expected, self.revision)

    @rule(seconds=st.integers(1, 6))
    def advance(self, seconds: int) -> None:
        self.now_s += seconds
        self.place.advance(seconds)

    @precondition(lambda self: len(self.leases) < 3)
    @rule(client=st.integers(0, 1), ttl_s=st.integers(1, 10))
    def lease(self, client: int, ttl_s: int) -> None:
        self.expire()
        lease = self.clients[client].lease(ttl_s)
        self.leases[lease.id] = (ttl_s, self.now_s + ttl_s, lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def keep_alive(self, data: st.DataObject) -> None:
        ttl_s, deadline, lease = self.leases[data.draw(st.sampled_from(list(self.leases)))]
        if deadline <= self.now_s:
            with pytest.raises(LeaseExpired):
                lease.keep_alive()
        else:
            self.expire()
            lease.keep_alive()
            self.leases[lease.id] = (ttl_s, self.now_s + ttl_s, lease)

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        lease = self.leases[data.draw(st.sampled_from(list(self.leases)))][2]
        self.expire()
        lease.revoke()
        if lease.id in self.leases:
            self.end(lease.id)

    @precondition(lambda self: len(self.watches) < 4)
    @rule(data=st.data(), client=st.integers(0, 1), prefix=st.sampled_from(PREFIXES))
    def watch(self, data: st.DataObject, client: int, prefix: str) -> None:
        self.expire()
        after = data.draw(st.none() | st.integers(0, self.revision))
        try:
            watch = self.clients[client].watch(prefix, after)
        except Compacted:
            assert after is not None
            assert after < self.revision - self.place.history_max
        else:
            self.watches.append([watch, prefix, self.revision if after is None else after])

    @precondition(lambda self: self.watches)
    @rule(data=st.data())
    def poll(self, data: st.DataObject) -> None:
        self.expire()
        number = data.draw(st.integers(0, len(self.watches) - 1))
        watch, prefix, after = self.watches[number]
        # It may have seen revisions pass by that do not concern it, and nothing else.
        passed = range(after + 1, watch.revision + 1)
        assert not [e for e in self.events if e.revision in passed and e.key.startswith(prefix)]
        try:
            events = watch.poll(0)
        except Compacted:
            assert after < self.revision - self.place.history_max
            del self.watches[number]
        else:
            assert events == [e for e in self.events if e.revision > after and e.key.startswith(prefix)]
            assert watch.revision == self.revision
            self.watches[number][2] = self.revision

    @invariant()
    def what_was_polled_is_never_ahead(self) -> None:
        assert all(after <= self.revision for _, _, after in self.watches)


@pytest.mark.parametrize("make_place", PLACES)
def test_random_operations_leave_store_and_model_alike(make_place: Callable[[Path], Place]) -> None:
    machine = type("AgainstThisModel", (AgainstModel,), {"make_place": staticmethod(make_place)})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=60 if make_place is SqlitePlace else 15,
            stateful_step_count=40,
            suppress_health_check=list(HealthCheck),
        ),
    )


# --- what only a store in a file can get wrong


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.db"


def files_in(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_commit_is_synced_and_the_file_is_private_to_its_group(path: Path) -> None:
    with SqliteCoordination(path) as store:
        database = store._database
        for connection in (database._reader, database._writer):
            assert connection.pragma("synchronous") == 2
            assert connection.pragma("journal_mode") == "wal"
            assert connection.pragma("auto_vacuum") == 2
        assert path.stat().st_mode & 0o027 == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda file: file.write_bytes(b"not a database, but long enough to look like one\n" * 100), "not a database"),
        (lambda file: foreign(file, "CREATE TABLE theirs (x)"), "another program's database"),
        (lambda file: foreign(file, "PRAGMA user_version = 3"), "another program's database"),
        (lambda file: foreign(file, f"PRAGMA application_id = {0x54524C43}; PRAGMA user_version = 2"), "version is 2"),
    ],
)
def test_a_file_that_is_not_ours_is_refused_untouched(path: Path, make: Callable[[Path], object], says: str) -> None:
    make(path)
    before = files_in(path.parent)
    with pytest.raises(CoordinationError, match=says) as caught:
        SqliteCoordination(path)
    assert str(path) in str(caught.value)
    assert caught.value.took_effect is False
    assert files_in(path.parent) == before


def foreign(file: Path, sql: str) -> None:
    connection = apsw.Connection(str(file))
    connection.execute(sql)
    connection.close()


def test_a_folder_that_is_missing_or_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing" / "coordination.db", tmp_path):
        with pytest.raises(CoordinationError, match="writable"):
            SqliteCoordination(path)


@pytest.mark.parametrize(
    "limits",
    [{"history_max": 0}, {"history_bytes": 1}, {"leases_max": 0}, {"busy_timeout_s": 0}, {"poll_interval_s": 0}],
)
def test_a_useless_limit_is_refused_before_anything_is_made(path: Path, limits: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        SqliteCoordination(path, **limits)
    assert not path.exists()


def test_a_damaged_file_is_reported(path: Path) -> None:
    with SqliteCoordination(path) as store:
        store.transact((), [Put(str(number), bytes(500)) for number in range(500)])
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(CoordinationError, match="damaged") as caught, SqliteCoordination(path) as store:
        store.range("")
    assert caught.value.took_effect is False


READ_ONLY = """
import os, sys
from tailrace.coordination import SqliteCoordination
from tailrace.errors import CoordinationError
if os.geteuid() == 0:  # nothing is read-only for root
    os.setgid(65534)
    os.setuid(65534)
try:
    SqliteCoordination(sys.argv[1])
except CoordinationError as refused:
    print(refused.took_effect, refused)
"""


def test_a_read_only_file_is_reported() -> None:
    with tempfile.TemporaryDirectory() as folder:  # one that other users can reach, unlike pytest's own
        path = Path(folder) / "coordination.db"
        SqliteCoordination(path).close()
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        done = subprocess.run([sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, check=True)
        Path(folder).chmod(0o755)
    assert done.stdout.startswith("False "), done
    assert "writable" in done.stdout


def test_a_writer_that_holds_on_is_waited_for_and_then_named(path: Path) -> None:
    with SqliteCoordination(path, busy_timeout_s=0.05) as store:
        put(store, "a", b"1")
        hog = apsw.Connection(str(path))
        hog.execute("BEGIN IMMEDIATE")
        with pytest.raises(CoordinationError, match=r"waited 0\.\d+ s for another process") as caught:
            put(store, "a", b"2")
        assert str(path) in str(caught.value)
        assert caught.value.took_effect is False
        assert store.get("a") == Entry("a", b"1", 1, 1)  # readers do not wait for writers
        hog.execute("ROLLBACK")
        assert put(store, "a", b"2") == 2
        hog.close()


def test_no_lease_ends_while_nobody_can_renew_it(path: Path) -> None:
    """As when a process is stopped in the middle of a write: afterwards owners have their time again."""
    clock = FakeClock()
    with (
        SqliteCoordination(path, clock=clock, busy_timeout_s=0.05) as owner,
        SqliteCoordination(path, clock=clock, busy_timeout_s=0.05) as other,
    ):
        lease = owner.lease(10)
        put(owner, "owned", b"", lease=lease.id)
        hog = apsw.Connection(str(path))
        hog.execute("BEGIN IMMEDIATE")
        clock.now_s += 11
        with pytest.raises(CoordinationError, match="for another process"):
            lease.keep_alive()
        assert other.get("owned") is not None
        with other.watch("") as watch:
            assert watch.poll(0) == []
        clock.now_s += 30
        hog.execute("ROLLBACK")
        hog.close()
        assert other.get("owned") is not None
        clock.now_s += 9
        lease.keep_alive()
        clock.now_s += 9
        assert other.get("owned") is not None
        clock.now_s += 1
        assert other.get("owned") is None


def test_leases_of_an_earlier_boot_are_over(path: Path) -> None:
    clock = FakeClock()
    with SqliteCoordination(path, clock=clock, boot="first") as store:
        lease = store.lease(10)
        store.transact((), [Put("owned", b"", lease.id), Put("free", b"")])
    with SqliteCoordination(path, clock=clock, boot="first") as store:
        assert store.get("owned") is not None
    clock.now_s += 1  # and the clock may well read the same after the machine started again
    with SqliteCoordination(path, clock=clock, boot="second") as store, store.watch("", 1) as watch:
        assert watch.poll(0) == [deleted("owned", 2)]
        assert store.range("").entries == (Entry("free", b"", 1, 1),)


def test_without_boot_ids_a_clock_that_went_back_tells(path: Path) -> None:
    clock = FakeClock()
    with SqliteCoordination(path, clock=clock, boot="") as store:
        put(store, "owned", b"", lease=store.lease(10).id)
        with SqliteCoordination(path, clock=clock, boot=""):
            assert store.get("owned") is not None
    clock.now_s = 5.0
    with SqliteCoordination(path, clock=clock, boot="") as store:
        assert store.get("owned") is None


def test_the_file_stays_small_whatever_was_written_to_it(path: Path) -> None:
    with SqliteCoordination(path, history_bytes=32 << 20, history_max=1000) as store:
        for turn in range(100):
            put(store, "large", bytes([turn]) * (1 << 20))
        assert path.stat().st_size < 48 << 20
        held = store._database._reader.execute("SELECT sum(length(value)) FROM events").get
        assert 8 << 20 < held <= 32 << 20
        for _ in range(3):
            for turn in range(1300):
                put(store, "small", b"%d" % turn)
        assert store.watch("", after_revision=store.range("").revision - 1000).poll(0)
    assert path.stat().st_size < 8 << 20


def test_a_fork_may_neither_use_the_store_nor_open_it_again(path: Path) -> None:
    def refused(call: Callable[[], object]) -> bool:
        try:
            call()
        except CoordinationError as error:
            return "fork" in str(error)
        return False

    with SqliteCoordination(path) as store:
        put(store, "a", b"1")
        child = os.fork()
        if child == 0:
            good = refused(lambda: store.get("a")) and refused(lambda: SqliteCoordination(path))
            store.close()
            os._exit(0 if good else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert put(store, "a", b"2") == 2
    child = os.fork()  # closed before the fork: nothing was inherited
    if child == 0:
        with SqliteCoordination(path) as store:
            os._exit(0 if store.get("a") == Entry("a", b"2", 2, 1) else 1)
    assert os.waitpid(child, 0)[1] == 0


class PatientClock(SystemClock):
    """Waits until woken, however short the caller wanted it."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(3600)


def test_a_waiting_poll_is_woken_by_another_thread_and_by_close(path: Path) -> None:
    with SqliteCoordination(path, clock=PatientClock()) as store:
        watch = store.watch("")
        seen: list[str] = []
        thread = threading.Thread(target=lambda: [seen.append(event.key) for event in watch], daemon=True)
        thread.start()
        for number in range(5):
            put(store, str(number), b"")
        deadline_s = time.monotonic() + 30
        while len(seen) < 5 and time.monotonic() < deadline_s:
            thread.join(0.001)
        watch.close()
        thread.join(30)
        assert not thread.is_alive()
        assert seen == ["0", "1", "2", "3", "4"]


class FailingDisk(apsw.VFS):
    """Every file of SQLite goes through here. Once armed, the n-th write, sync or truncation fails, once."""

    def __init__(self) -> None:
        self.calls_left = -1
        self.error: type[apsw.Error] = apsw.IOError
        super().__init__("failing", "unix", makedefault=True)

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> apsw.VFSFile:
        return FailingFile(self, name, flags)

    def count(self, error: type[apsw.Error] | None = None) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise (error or self.error)("injected")


class FailingFile(apsw.VFSFile):
    def __init__(self, disk: FailingDisk, name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        self.disk = disk
        super().__init__("unix", name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:
        self.disk.count()
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self.disk.count(apsw.IOError)  # as on a real disk, where even a lack of space is an I/O error by now
        super().xSync(flags)

    def xTruncate(self, size: int) -> None:
        self.disk.count()
        super().xTruncate(size)


@pytest.fixture
def failing_disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    yield disk
    disk.unregister()


@pytest.mark.parametrize("error", [apsw.FullError, apsw.IOError])
def test_took_effect_is_true_to_what_a_recovery_finds(
    failing_disk: FailingDisk, tmp_path: Path, error: type[apsw.Error]
) -> None:
    answers: set[bool | None] = set()
    for call in range(1, 100):
        folder = tmp_path / str(call)
        folder.mkdir()
        failing_disk.error = error
        with SqliteCoordination(folder / "live.db") as store:
            put(store, "before", b"1")
            failing_disk.calls_left = call
            took_effect: bool | None = True
            try:
                store.transact((), [Put("a", bytes(10_000)), Put("b", bytes(10_000))])
            except CoordinationError as refused:
                took_effect = refused.took_effect
            fired, failing_disk.calls_left = failing_disk.calls_left <= 0, -1
            # What a machine that loses power now may find: the files without the shared memory beside them.
            for suffix in ("", "-wal"):
                shutil.copy(folder / f"live.db{suffix}", folder / f"lost.db{suffix}")
            for found in (store, SqliteCoordination(folder / "lost.db")):
                with found:
                    keys = [entry.key for entry in found.range("").entries]
                    assert keys in (["before"], ["a", "b", "before"])
                    if took_effect is not None:
                        assert ("a" in keys) is took_effect, (call, keys)
                    put(found, "after", b"")  # and the store goes on
        if not fired:
            break
        answers.add(took_effect)
    # A write refused for lack of space never completes the commit record, which comes last. After any other error
    # the record may be there although nobody can see it until the log is read again.
    assert answers == ({False, None} if error is apsw.FullError else {None})
