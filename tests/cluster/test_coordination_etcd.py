"""Coordination on a real etcd cluster of three: members are killed and frozen, and what was acknowledged stays."""

import dataclasses
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tailrace
from conftest import wait_until
from etcd_cluster import EtcdCluster, require_etcd, shared_cluster
from tailrace.config import CoordinationConfig, WorldConfig
from tailrace.coordination import (
    Absent,
    AtRevision,
    Coordination,
    EtcdCoordination,
    Event,
    Put,
    compare_and_swap,
    put,
    put_if_absent,
)
from tailrace.copytree import Router, RouterConfig, change_map, load, report
from tailrace.errors import Closed, ConfigError, CoordinationError, LeaseExpired
from tailrace.model import Cluster, Demand, Tariff, WorldMap
from tailrace.wire import EtcdPeer, EtcdPut, EtcdRefused
from wire.certificates import Authority


@pytest.fixture
def cluster() -> Iterator[EtcdCluster]:
    """One that a test may break."""
    require_etcd()
    made = EtcdCluster()
    yield made
    made.stop()


@pytest.fixture
def store() -> Iterator[Coordination]:
    """In the cluster that tests share, and leave as it was."""
    with EtcdCoordination(shared_cluster().config()) as opened:
        yield opened


def surely_put(store: Coordination, key: str, value: bytes) -> None:
    """Until it is there, as a careful caller does it: look before trying again when nobody knows."""
    while True:
        try:
            put_if_absent(store, key, value)
            return
        except CoordinationError as problem:
            if problem.took_effect is False:
                continue


def test_members_are_killed_one_after_the_other_and_nothing_is_lost_or_seen_twice(cluster: EtcdCluster) -> None:
    with EtcdCoordination(cluster.config()) as store, store.watch("") as watch:
        seen: list[Event] = []
        following = threading.Thread(target=lambda: seen.extend(_first(watch, 90)))
        following.start()
        for turn in range(3):
            for number in range(15):
                surely_put(store, f"{turn}/a{number:02}", b"x")
            cluster.signal(turn, signal.SIGKILL)
            for number in range(15):
                surely_put(store, f"{turn}/b{number:02}", b"x")
            cluster.start(turn)
            # The others must be three again before the next one is killed.
            with EtcdCoordination(cluster.config(etcd=(cluster.endpoints[turn],))) as alone:
                wait_until(lambda alone=alone: _answers(alone), "the restarted member")  # type: ignore[misc]
        following.join(60)
        assert [event.key for event in seen] == [f"{t}/{ab}{n:02}" for t in range(3) for ab in "ab" for n in range(15)]
        assert [event.revision for event in seen] == sorted({event.revision for event in seen})


def _first(watch: object, count: int) -> Iterator[Event]:
    for number, event in enumerate(watch, start=1):  # type: ignore[var-annotated,arg-type]
        yield event
        if number == count:
            return


def _answers(store: EtcdCoordination) -> bool:
    return _done(store.revision)


def _done(act: Callable[[], object]) -> bool:
    try:
        act()
    except CoordinationError:
        return False
    return True


def _await_leader(cluster: EtcdCluster) -> None:
    """Until the others have one among them: it may have been the first member that leads."""
    config = cluster.config()
    with EtcdCoordination(dataclasses.replace(config, etcd=config.etcd[1:])) as others:
        surely_put(others, "leader", b"")


def test_a_frozen_member_is_left_for_another(cluster: EtcdCluster) -> None:
    with EtcdCoordination(cluster.config()) as store:
        put(store, "a", b"1")  # so that it is connected to the first
        cluster.signal(0, signal.SIGSTOP)
        try:
            _await_leader(cluster)
            entry = store.get("a")
            assert entry is not None
            assert entry.value == b"1"
            assert put(store, "a", b"2") > entry.revision
            lease = store.lease(60)
            lease.keep_alive()
            lease.revoke()
        finally:
            cluster.signal(0, signal.SIGCONT)


def test_a_watch_leaves_a_member_that_stands_still_without_a_word(cluster: EtcdCluster) -> None:
    config = cluster.config()
    others = dataclasses.replace(config, etcd=config.etcd[1:])
    with EtcdCoordination(config) as store, EtcdCoordination(others) as other, store.watch("") as watch:
        put(other, "a", b"1")
        assert [event.key for event in watch.poll(30)] == ["a"]  # by the first member
        cluster.signal(0, signal.SIGSTOP)
        try:
            _await_leader(cluster)
            put(other, "b", b"2")
            keys: list[str] = []
            wait_until(lambda: keys.extend(event.key for event in watch.poll(10)) or "b" in keys, "what others did")
            assert set(keys) <= {"leader", "b"}
        finally:
            cluster.signal(0, signal.SIGCONT)


def test_without_a_majority_nothing_is_done_and_that_is_said(cluster: EtcdCluster) -> None:
    with EtcdCoordination(cluster.config(deadline_s=2.0)) as store:
        put(store, "a", b"1")
        cluster.signal(1, signal.SIGKILL)
        cluster.signal(2, signal.SIGKILL)
        with pytest.raises(CoordinationError, match="get 'a' in etcd") as caught:
            store.get("a")
        assert caught.value.took_effect is False
        with pytest.raises(CoordinationError) as unknown:
            put(store, "a", b"2")
        assert unknown.value.took_effect is None or "nothing was done" in str(unknown.value)
        cluster.start(1)
        wait_until(lambda: _answers(store), "a majority")
        entry = store.get("a")
        assert entry is not None
        assert entry.value == b"1" or unknown.value.took_effect is None


def test_a_lease_ends_by_itself_in_real_time_and_its_keys_with_it(store: Coordination) -> None:
    kept, left = store.lease(1), store.lease(1)
    store.transact((), [Put("kept", b"", kept.id), Put("left", b"", left.id)])
    with store.watch("left") as watch:

        def gone() -> bool:
            kept.keep_alive()
            return store.get("left") is None

        wait_until(gone, "the end of the lease")
        assert [(event.key, event.entry) for event in watch.poll(5)] == [("left", None)]
    assert store.get("kept") is not None
    with pytest.raises(LeaseExpired):
        left.keep_alive()
    kept.revoke()


def test_many_keys_come_in_pages_of_one_revision(store: Coordination) -> None:
    for part in range(3):
        store.transact((), [Put(f"many/{part}/{number:03}", b"%d" % number) for number in range(300)])
    snapshot = store.range("many/")
    assert [entry.key for entry in snapshot.entries] == sorted(
        f"many/{part}/{number:03}" for part in range(3) for number in range(300)
    )


def test_processes_race_for_a_key_and_one_wins(store: Coordination) -> None:
    wins: list[int] = []

    def race(number: int) -> None:
        if put_if_absent(store, "owner", b"%d" % number).succeeded:
            wins.append(number)

    threads = [threading.Thread(target=race, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    entry = store.get("owner")
    assert entry is not None
    assert wins == [int(entry.value)]
    assert not compare_and_swap(store, "owner", dataclasses.replace(entry, revision=entry.revision - 1), b"").succeeded


def test_no_revision_means_absent(store: Coordination) -> None:
    """To etcd 0 does, which would be our -1."""
    assert not store.transact([AtRevision("none", -1)], [Put("none", b"")]).succeeded
    assert store.get("none") is None


def test_worlds_with_other_prefixes_do_not_see_each_other(store: Coordination) -> None:
    with EtcdCoordination(shared_cluster().config()) as other, other.watch("") as watch:
        put(store, "a", b"mine")
        assert other.get("a") is None
        assert other.range("").entries == ()
        assert watch.poll(0) == []


def test_a_key_of_others_that_is_no_text_does_no_harm(store: Coordination) -> None:
    config = shared_cluster().config()
    with EtcdCoordination(config) as other, other.watch("") as watch, EtcdPeer(config.etcd[0], tls=config.tls) as peer:
        peer.transact([], [EtcdPut(config.prefix.encode() + b"\xff\xfe", b"odd", 0)], [], 5.0)
        put(other, "z", b"")
        assert [entry.value for entry in other.range("").entries] == [b"", b"odd"]
        assert [event.revision for event in watch.poll(1)] != []


# ---- who may talk to it


def test_a_client_that_is_not_trusted_is_told_what_to_look_at(tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "other").issue("spiffe://test/stranger", file="stranger")
    roots = shared_cluster().tls
    assert roots is not None
    for tls in (stranger, dataclasses.replace(stranger, roots=roots.roots)):
        config = shared_cluster().config(tls=tls, deadline_s=2.0)
        with EtcdCoordination(config) as store, pytest.raises(CoordinationError, match="nothing was done") as caught:
            store.get("a")
        assert caught.value.took_effect is False


def test_without_tls_a_secured_etcd_does_not_answer() -> None:
    config = shared_cluster().config(tls=None, deadline_s=1.0)
    with EtcdCoordination(config) as store, pytest.raises(CoordinationError, match="nothing was done"):
        put(store, "a", b"")


def test_nobody_there_is_said_with_all_that_were_asked() -> None:
    config = CoordinationConfig(etcd=("127.0.0.1:1", "127.0.0.1:2"), deadline_s=0.3)
    words = r"127.0.0.1:1, 127.0.0.1:2; nothing was done"
    with EtcdCoordination(config) as store, pytest.raises(CoordinationError, match=words):
        put(store, "a", b"")
    with pytest.raises(Closed):
        store.get("a")


def test_no_endpoints_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"coordination.etcd is empty"):
        EtcdCoordination(CoordinationConfig())


def test_what_is_more_than_etcd_takes_is_known_as_such() -> None:
    config = shared_cluster().config()
    with EtcdPeer(config.etcd[0], tls=config.tls) as peer, pytest.raises(EtcdRefused) as refused:
        peer.transact([], [EtcdPut(b"%d" % number, b"", 0) for number in range(3000)], [], 5.0)
    assert refused.value.why == "too large"


# ---- what uses it


def test_a_world_keeps_its_checkpoints_in_etcd(tmp_path: Path) -> None:
    config = WorldConfig(coordination=shared_cluster().config())
    with tailrace.open(tmp_path, config=config) as world:
        with world.producer("prices") as producer:
            producer.send(b"9.99")
        with world.consumer("prices", start="earliest", checkpoint="mine", follow=False) as consumer:
            assert [message.value for batch in consumer for message in batch] == [b"9.99"]
            consumer.commit()
        (position,) = world.checkpoints("prices")["mine"].values()
        assert position > 0
    with EtcdCoordination(config.coordination) as store:
        assert [entry.key.split("/")[0] for entry in store.range("checkpoints/").entries] == ["checkpoints"]


def test_a_router_on_etcd_goes_around_an_outage_while_a_member_dies(cluster: EtcdCluster) -> None:
    world = WorldMap(
        clusters=tuple(Cluster(name=f"{place}-{n}", continent=place) for place in ("us", "eu") for n in (1, 2, 3)),
        tariffs=(Tariff(scope="continent", price_per_gb=0.01), Tariff(scope="world", price_per_gb=0.09)),
        demands=(Demand(stream="prices", source="us-1"),),
    )
    config = cluster.config()
    with EtcdCoordination(config) as store, EtcdCoordination(config) as other:
        change_map(other, lambda _, preferences: (world, preferences))
        with Router(store, "r1", config=RouterConfig(lease_s=10.0)) as router:
            router.step(0)
            tree = load(other).trees["prices"]
            europe = next(hop.downstream for hop in tree.hops if hop.upstream == "us-1" and "eu" in hop.downstream)
            cluster.signal(0, signal.SIGKILL)  # both clients were talking to this one
            while not _done(lambda: report(other, europe, late=frozenset({"prices"}))):
                pass

            def rerouted() -> bool:
                router.attend(0.05)
                return load(other).trees["prices"].downstream(europe) == ()

            wait_until(rerouted, "a way around")
            assert other.transact([Absent("world/router")], []).succeeded is False
