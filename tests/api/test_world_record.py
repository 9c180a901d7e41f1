"""The world in the coordination store: changed while others follow it, and kept right by a router."""

import dataclasses
import math
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import wait_until
from tailrace.coordination import Coordination, Put, SqliteCoordination, put
from tailrace.copytree import Router, RouterConfig, WorldFollower, change_map, load, publish_trees, report
from tailrace.copytree.routing import Patience, Planner, Preferences, PublishTree
from tailrace.copytree.world_tables import read_map, read_preferences, read_tree, write_map, write_tree
from tailrace.errors import ConfigError, CoordinationError, Corrupt
from tailrace.model import Cluster, CopyTree, Demand, Hop, Link, Sizes, Tariff, WorldMap

CLUSTERS = tuple(
    Cluster(name=f"{continent}-{number}", continent=continent) for continent in ("us", "eu") for number in (1, 2, 3)
)
WORLD = WorldMap(
    clusters=CLUSTERS,
    tariffs=(Tariff(scope="continent", price_per_gb=0.01), Tariff(scope="world", price_per_gb=0.09)),
    demands=(Demand(stream="prices", source="us-1"),),
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Coordination]:
    with SqliteCoordination(tmp_path / "coordination.db") as opened:
        yield opened


def set_map(store: Coordination, world: WorldMap) -> None:
    change_map(store, lambda _, preferences: (world, preferences))


def without(world: WorldMap, cluster: str) -> WorldMap:
    return dataclasses.replace(world, clusters=tuple(one for one in world.clusters if one.name != cluster))


# ---- tables


def test_a_map_comes_back_from_its_tables_as_it_was() -> None:
    world = WorldMap(
        clusters=(
            Cluster(
                name="a", continent="us", region="east", jurisdiction="us", egress_bytes_per_s=1e9, folder="/srv/a"
            ),
            Cluster(name="b", fan_out_max=3, relays=False, sizes=Sizes(reader=4, cache=0)),
        ),
        links=(
            Link(upstream="a", downstream="b", price_per_gb=0.5, latency_s=0.01, capacity_bytes_per_s=1e6),
            Link(upstream="b", downstream="a", price_per_gb=0.4),
        ),
        tariffs=(Tariff(scope="world", price_per_gb=1.0),),
        demands=(
            Demand(stream="s", source="a", destinations=("b",), bytes_per_s=5.0, layers=1, hops_max=2),
            Demand(stream="t", source="a", stays_in=("us",), joining_bytes_per_s=7.0),
        ),
    )
    preferences = Preferences(hop=3.0)
    tables = write_map(world, preferences)
    assert read_map(tables) == world
    assert read_preferences(tables) == preferences
    assert write_map(read_map(tables), preferences) == tables


def test_a_line_of_equal_terms_both_ways_is_one_entry() -> None:
    pair = tuple(Link(upstream=u, downstream=v, price_per_gb=0.5) for u, v in ("ab", "ba"))
    world = WorldMap(clusters=(Cluster(name="a"), Cluster(name="b")), links=pair)
    assert write_map(world)["links"] == [{"between": ["a", "b"], "price_per_gb": 0.5}]
    assert read_map(write_map(world)) == world


def test_a_tree_comes_back_from_its_table_as_it_was() -> None:
    hops = (Hop(upstream="a", downstream="b"), Hop(upstream="b", downstream="c", bytes_per_s_max=5.0, joining=True))
    tree = CopyTree(stream="s", source="a", hops=hops)
    assert read_tree(write_tree(tree)) == tree


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"clusters": {"a": {"speed": 1}}}, "clusters.a: speed: no such setting"),
        ({"clusters": {"a": {"name": "b"}}}, "clusters.a.name: it is named by the table's own name"),
        ({"clusters": {"../a": {}}}, "clusters.../a: '../a' is not a cluster name"),
        ({"clusters": {"a": 5}}, "clusters.a=5: use a table"),
        ({"clusters": []}, "clusters=.*: use a table"),
        ({"clusters": {"a": {"sizes": {"reader": -1}}}}, "clusters.a: sizes.reader=-1: use 0 to 100000"),
        ({"tariffs": {"galaxy": {}}}, "tariffs.galaxy: scope='galaxy': use region or continent or world"),
        ({"links": [{"from": "a"}]}, r"links\[0\]: use between"),
        ({"links": [{"between": ["a", "b"], "from": "a"}]}, r"links\[0\]: use between"),
        ({"links": [{"from": "a", "to": "b", "price_per_gb": "much"}]}, "price_per_gb='much': use a number"),
        ({"streams": {"s": {}}}, "streams.s: source: missing"),
        ({"streams": {"s": {"source": "a"}}}, "stream s: source: no cluster 'a'"),
        ({"routing": {"hop": -1}}, "hop=-1"),
    ],
)  # fmt: skip
def test_wrong_tables_are_refused_with_the_path_of_what_is_wrong(tables: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_map(tables)
        read_preferences(tables)


NAMES = st.sampled_from(["a", "b", "*", "../x", "", "region", "name", "hop"])
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3), NAMES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


def settings_of(kind: type) -> st.SearchStrategy[dict[str, object]]:
    """Tables with the settings of a kind, and any values."""
    names = [field.name for field in dataclasses.fields(kind)] + ["from", "to", "between"]
    return st.dictionaries(st.sampled_from(names), VALUES, max_size=5)


HOPS = st.lists(settings_of(Hop), max_size=4)


@settings(max_examples=300, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "clusters": VALUES | st.dictionaries(NAMES, settings_of(Cluster) | VALUES, max_size=3),
            "tariffs": VALUES | st.dictionaries(NAMES, settings_of(Tariff) | VALUES, max_size=2),
            "links": VALUES | st.lists(settings_of(Link) | VALUES, max_size=3),
            "streams": VALUES | st.dictionaries(NAMES, settings_of(Demand) | VALUES, max_size=2),
            "routing": VALUES | settings_of(Preferences),
        },
    ),
    st.fixed_dictionaries({}, optional={"stream": VALUES, "source": VALUES, "hops": VALUES | HOPS}),
)
def test_whatever_the_tables_hold_it_is_read_or_refused(tables: dict[str, object], tree: dict[str, object]) -> None:
    try:
        world, preferences = read_map(tables), read_preferences(tables)
    except ConfigError as refused:
        assert str(refused)
    else:
        assert read_map(write_map(world, preferences)) == world
        Planner(world, preferences).plan()
    with suppress(ConfigError):
        assert read_tree(write_tree(read_tree(tree))) == read_tree(tree)


# ---- the record


def test_a_follower_learns_of_a_cluster_a_stream_and_a_limit_without_restart(store: Coordination) -> None:
    with WorldFollower(store) as follower:
        assert follower.state.version == 0
        set_map(store, without(WORLD, "eu-3"))
        first = follower.poll(5)
        assert first is not None
        assert (len(first.world.clusters), first.version) == (5, 1)
        slower = (dataclasses.replace(CLUSTERS[0], egress_bytes_per_s=1e6), *CLUSTERS[1:])
        more = (*WORLD.demands, Demand(stream="clicks", source="eu-1", destinations=("us-1",)))
        set_map(store, dataclasses.replace(WORLD, clusters=slower, demands=more))
        second = follower.poll(5)
        assert second is not None
        assert second.world.cluster("us-1").egress_bytes_per_s == 1e6
        assert [demand.stream for demand in second.world.demands] == ["prices", "clicks"]
        assert follower.poll(0) is None


def test_two_who_change_the_map_at_once_both_get_their_change(store: Coordination) -> None:
    set_map(store, WorldMap())

    def add_clusters(prefix: str) -> None:
        for number in range(10):
            cluster = Cluster(name=f"{prefix}{number}")
            change_map(
                store, lambda w, p, cluster=cluster: (dataclasses.replace(w, clusters=(*w.clusters, cluster)), p)
            )  # type: ignore[misc]

    threads = [threading.Thread(target=add_clusters, args=(prefix,)) for prefix in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(load(store).world.clusters) == 20


def test_a_change_that_changes_nothing_leaves_the_version_alone(store: Coordination) -> None:
    set_map(store, WORLD)
    version = load(store).version
    _, differs = change_map(store, lambda world, preferences: (world, preferences))
    assert not differs
    assert load(store).version == version


def test_a_map_that_contradicts_itself_never_reaches_the_store(store: Coordination) -> None:
    set_map(store, WORLD)
    with pytest.raises(ConfigError, match="no cluster 'us-1'"):
        change_map(store, lambda world, preferences: (without(world, "us-1"), preferences))
    assert load(store).world == WORLD


def test_a_follower_that_fell_far_behind_reads_anew(tmp_path: Path) -> None:
    with SqliteCoordination(tmp_path / "c.db", history_max=4) as store, WorldFollower(store) as follower:
        for number in range(20):
            set_map(store, WorldMap(clusters=(Cluster(name=f"c{number}"),)))
        state = follower.poll(5)
        assert state is not None
        assert state.world.clusters[0].name == "c19"
        set_map(store, WORLD)
        wait_until(lambda: (follower.poll(0.1), follower.state.world == WORLD)[1], "the newest map")


@pytest.mark.parametrize("value", [b"{", b"[]", b'{"version": 2}', b'{"version": 1, "clusters": 3}'])
def test_what_is_no_map_is_said_to_be_damage(store: Coordination, value: bytes) -> None:
    put(store, "world/map", value)
    with pytest.raises(Corrupt, match="world/map in the coordination store"):
        load(store)


# ---- the router


class Orders:
    def __init__(self) -> None:
        self.seen: list[PublishTree] = []

    def __call__(self, order: PublishTree) -> None:
        self.seen.append(order)


CONFIG = RouterConfig(lease_s=1.0, silence_s=0.0, step_s=0.02)


def test_a_router_makes_trees_and_goes_around_a_cluster_that_falls_silent(store: Coordination) -> None:
    set_map(store, WORLD)
    with Router(store, "r1", config=CONFIG) as router:
        router.step(0)
        tree = load(store).trees["prices"]
        assert set(tree.clusters) == {cluster.name for cluster in CLUSTERS}
        europe = next(hop.downstream for hop in tree.hops if hop.downstream.startswith("eu") and hop.upstream == "us-1")
        (crossing,) = [one for one in load(store).sends("us-1") if one.target == europe]
        assert (crossing.stream, crossing.source, crossing.bytes_per_s_max) == ("prices", "us-1", math.inf)
        lease = store.lease(30)
        for cluster in CLUSTERS:
            report(store, cluster.name, lease=lease.id if cluster.name == europe else None)
        router.step(0)
        lease.revoke()
        wait_until(lambda: (router.step(0.05), load(store).trees["prices"].downstream(europe) == ())[1], "a way around")
        assert set(load(store).trees["prices"].clusters) == set(tree.clusters)
        assert all(one.epoch > crossing.epoch for one in load(store).sends("us-1"))


def test_a_cluster_that_joins_is_promoted_when_it_says_it_is_at_the_head(store: Coordination) -> None:
    set_map(store, without(WORLD, "eu-3"))
    with Router(store, "r1", config=CONFIG) as router:
        router.step(0)
        set_map(store, WORLD)
        wait_until(lambda: (router.step(0.05), "eu-3" in load(store).trees["prices"])[1], "the newcomer in the tree")
        hop = load(store).trees["prices"].hop("eu-3")
        assert hop is not None
        assert hop.joining
        report(store, "eu-3", caught_up=frozenset({"prices"}))

        def promoted() -> bool:
            router.step(0.05)
            hop = load(store).trees["prices"].hop("eu-3")
            return hop is not None and not hop.joining

        wait_until(promoted, "the promotion")


def test_a_router_goes_on_when_the_store_failed_in_the_middle(store: Coordination) -> None:
    """And when nobody knows whether a tree was stored: it finds out, and stores it if not."""

    class Failing:
        def __init__(self) -> None:
            self.failures = 0

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def transact(self, requires: list[object], then: list[object], otherwise: tuple[object, ...] = ()) -> object:
            if self.failures and any(isinstance(one, Put) and one.key.startswith("world/trees/") for one in then):
                self.failures -= 1
                problem = CoordinationError("nobody knows")
                problem.took_effect = None
                raise problem
            return store.transact(requires, then, otherwise)  # type: ignore[arg-type]

    set_map(store, WORLD)
    failing = Failing()
    failing.failures = 2
    with Router(failing, "r1", config=CONFIG) as router:  # type: ignore[arg-type]
        wait_until(lambda: (router.attend(0.01), router.leads and "prices" in load(store).trees)[1], "a tree")
        assert failing.failures == 0


def test_a_stream_that_left_the_map_leaves_no_tree(store: Coordination) -> None:
    set_map(store, WORLD)
    with Router(store, "r1", config=CONFIG) as router:
        router.step(0)
        set_map(store, dataclasses.replace(WORLD, demands=()))
        wait_until(lambda: (router.step(0.05), not load(store).trees)[1], "no tree")


def test_one_router_leads_and_the_next_goes_on_with_its_trees(store: Coordination) -> None:
    set_map(store, WORLD)
    orders = Orders()
    first = Router(store, "r1", config=CONFIG)
    with Router(store, "r2", config=CONFIG, on_order=orders) as second:
        first.step(0)
        second.step(0)
        assert (first.leads, second.leads) == (True, False)
        tree = load(store).trees["prices"]
        first.close()
        wait_until(lambda: (second.step(0.02), second.leads)[1], "the second one to lead")
        assert load(store).trees["prices"] == tree
        assert orders.seen == []


def test_a_router_whose_lease_ran_out_does_not_overwrite_the_next_ones_trees(store: Coordination) -> None:
    set_map(store, WORLD)
    first = Router(store, "r1", config=RouterConfig(lease_s=0.05, silence_s=0.0))
    first.step(0)
    with Router(store, "r2", config=CONFIG) as second:
        wait_until(lambda: (second.step(0.02), second.leads)[1], "the second one to lead")
        other = Planner(dataclasses.replace(WORLD, demands=(Demand(stream="prices", source="us-1", hops_max=1),)))
        publish_trees(store, {"prices": other.plan()["prices"].tree})
        set_map(store, without(WORLD, "eu-3"))
        assert not first.leads or first.step(0) == []
        assert "eu-3" in load(store).trees["prices"]  # only the second one's word counts, and it did not speak yet
        wait_until(lambda: (second.step(0.02), "eu-3" not in load(store).trees["prices"])[1], "the second one's tree")
    first.close()


def test_a_router_that_lost_its_place_unawares_stores_nothing(store: Coordination) -> None:
    set_map(store, WORLD)
    with Router(store, "r1", config=CONFIG) as router:
        router.step(0)
        before = load(store).trees
        put(store, "world/router", b"another")  # between two looks at its lease
        set_map(store, without(WORLD, "eu-3"))
        router.step(0)
        assert load(store).trees == before
        assert not router.leads


def test_an_outage_in_a_large_world_leads_to_a_new_tree(store: Coordination) -> None:
    """With a thread that runs. How long it takes is measured by bench/routing.py."""
    clusters = tuple(Cluster(name=f"c{n:02}", continent=f"k{n % 4}") for n in range(60))
    set_map(store, dataclasses.replace(WORLD, clusters=clusters, demands=(Demand(stream="prices", source="c00"),)))
    with Router(store, "r", config=CONFIG, patience=Patience(settle_s=0.01)) as router:
        running = threading.Thread(target=router.run)
        running.start()
        try:
            wait_until(lambda: "prices" in load(store).trees, "a tree")
            tree = load(store).trees["prices"]
            bad = next(name for name in tree.clusters[1:] if tree.downstream(name))
            report(store, bad, late=frozenset({"prices"}))
            wait_until(lambda: load(store).trees["prices"].downstream(bad) == (), "a way around")
        finally:
            router.close()
            running.join()
