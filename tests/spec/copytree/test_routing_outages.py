"""Outages: the right one is blamed, the others are served around it, and a recovered cluster is trusted again later."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.copytree.routing import (
    CaughtUp,
    ClusterReported,
    ClusterSilent,
    Conditions,
    Patience,
    Planner,
    PublishTree,
    Rerouting,
    Tick,
    WorldChanged,
    blame,
    explain,
    refuges,
)
from tailrace.model import Cluster, CopyTree, Demand, Hop, Link, Tariff, WorldMap

TARIFFS = (Tariff(scope="continent", price_per_gb=0.01), Tariff(scope="world", price_per_gb=0.09))
CLUSTERS = tuple(
    Cluster(name=f"{continent}-{number}", continent=continent)
    for continent in ("us", "eu", "ap")
    for number in (1, 2, 3)
)
PRICES = Demand(stream="prices", source="us-1", joining_bytes_per_s=5e6)
WORLD = WorldMap(clusters=CLUSTERS, tariffs=TARIFFS, demands=(PRICES,))
PATIENCE = Patience(settle_s=0.2, probation_s=30.0)


def tree_of(*hops: str) -> CopyTree:
    return CopyTree(stream="s", source="a", hops=tuple(Hop(upstream=u, downstream=v) for u, v in hops))


@pytest.mark.parametrize(
    ("late", "clusters", "links"),
    [
        ("", "", []),
        ("b", "b", ["ab"]),
        ("bcd", "b", ["ab"]),  # c and d are late because b is
        ("c", "c", ["bc"]),  # d copies from b as well, and is on time
        ("cd", "b", []),  # all who copy from b are late and b is not: b does not send
        ("be", "be", ["ab", "ae"]),  # all who copy from the source: that cannot be gone around, its links can
        ("f", "f", ["ef"]),
    ],
)
def test_the_first_late_cluster_on_each_way_is_blamed(late: str, clusters: str, links: list[str]) -> None:
    found = blame(tree_of("ab", "bc", "bd", "ae", "ef"), set(late))
    assert found.clusters == set(clusters)
    assert found.links == {(u, v) for u, v in links}


def started(world: WorldMap = WORLD) -> tuple[Rerouting, CopyTree]:
    core = Rerouting(patience=PATIENCE)
    (order,) = core.handle(WorldChanged(world), 0.0)
    return core, order.tree


def gateway(tree: CopyTree, continent: str) -> str:
    return next(hop.downstream for hop in tree.hops if hop.downstream.startswith(continent) and hop.upstream == "us-1")


def only(orders: list[PublishTree]) -> PublishTree:
    (order,) = orders
    return order


def test_a_silent_cluster_is_gone_around_at_once() -> None:
    core, before = started()
    europe = gateway(before, "eu")
    order = only(core.handle(ClusterSilent(europe), 10.0))
    assert order.why == f"around {europe}"
    assert order.tree.downstream(europe) == ()
    assert set(order.tree.clusters) == set(before.clusters)
    assert core.handle(ClusterSilent(europe), 10.1) == []


def test_late_clusters_are_judged_together_once_their_reports_are_in() -> None:
    core, before = started()
    europe = gateway(before, "eu")
    behind = before.downstream(europe)
    for name in (*behind, europe):  # those behind happen to speak first
        assert core.handle(ClusterReported(name, late=frozenset({"prices"})), 10.0) == []
    assert core.due_s == 10.2
    order = only(core.handle(Tick(), 10.2))
    assert order.tree.downstream(europe) == ()
    assert core.conditions.bad_clusters == {europe}
    assert core.conditions.bad_links == {("us-1", europe)}


def test_a_cut_link_is_avoided_and_both_its_ends_keep_their_good_name() -> None:
    core, before = started()
    europe = gateway(before, "eu")
    core.handle(ClusterReported("us-1", cut=frozenset({europe})), 10.0)
    order = only(core.handle(Tick(), 10.3))
    assert order.tree.upstream(europe) != "us-1"
    assert core.conditions.bad_clusters == frozenset()


def test_a_recovered_cluster_passes_on_again_only_after_its_probation() -> None:
    core, before = started()
    europe = gateway(before, "eu")
    order = only(core.handle(ClusterSilent(europe), 10.0))
    core.handle(ClusterReported(europe), 20.0)
    assert core.handle(Tick(), 20.3) == []
    assert core.conditions.bad_clusters == {europe}
    core.handle(ClusterSilent(europe), 40.0)  # ill again meanwhile: the time counts anew
    core.handle(ClusterReported(europe), 45.0)
    core.handle(Tick(), 45.2)
    assert core.handle(Tick(), 75.0) == []
    assert core.conditions.bad_clusters == {europe}
    orders = core.handle(Tick(), 75.2)
    assert core.conditions.bad_clusters == frozenset()
    assert all(one.why == f"{europe} well again" for one in orders)
    assert order.plan.price_per_gb == pytest.approx(2 * (2 * 0.09 + 6 * 0.01))  # the way around cost nothing more
    assert core.due_s is None


def test_the_probation_of_one_goes_on_while_others_fall_ill() -> None:
    core, before = started()
    core.handle(ClusterSilent(gateway(before, "eu")), 10.0)
    core.handle(ClusterReported(gateway(before, "eu")), 20.0)
    core.handle(Tick(), 20.2)
    core.handle(ClusterSilent(gateway(before, "ap")), 40.0)
    core.handle(Tick(), 50.3)
    assert core.conditions.bad_clusters == {gateway(before, "ap")}


def test_a_cluster_that_stays_late_on_its_new_way_does_not_get_all_its_ways_blamed() -> None:
    core, before = started()
    leaf = next(name for name in before.clusters if not before.downstream(name))
    late = ClusterReported(leaf, late=frozenset({"prices"}))
    core.handle(late, 10.0)
    core.handle(Tick(), 10.3)
    assert len(core.conditions.bad_links) == 1
    for second in range(11, 20):
        core.handle(ClusterReported(leaf), second)
        core.handle(late, second + 0.1)
        core.handle(Tick(), second + 0.5)
    assert len(core.conditions.bad_links) == 1


def test_a_new_cluster_joins_as_a_slow_leaf_and_is_promoted_at_the_head() -> None:
    core, before = started()
    more = WorldMap(clusters=(*CLUSTERS, Cluster(name="sa-1", continent="sa")), tariffs=TARIFFS, demands=(PRICES,))
    order = only(core.handle(WorldChanged(more), 5.0))
    hop = order.tree.hop("sa-1")
    assert hop is not None
    assert (hop.joining, hop.bytes_per_s_max) == (True, 5e6)
    assert set(before.hops) < set(order.tree.hops)
    assert core.handle(CaughtUp("prices", "us-2"), 6.0) == []  # it never joined: it was there from the start
    promoted = only(core.handle(CaughtUp("prices", "sa-1"), 7.0)).tree.hop("sa-1")
    assert promoted is not None
    assert (promoted.joining, promoted.bytes_per_s_max) == (False, math.inf)
    assert core.handle(CaughtUp("prices", "sa-1"), 8.0) == []


def test_a_new_router_goes_on_with_the_trees_of_the_old_one() -> None:
    _, tree = started()
    again = Rerouting([tree])
    assert again.handle(WorldChanged(WORLD), 0.0) == []


def test_streams_and_clusters_that_left_the_map_are_forgotten() -> None:
    core, tree = started()
    core.handle(ClusterSilent("ap-3"), 1.0)
    smaller = WorldMap(clusters=CLUSTERS[:8], tariffs=TARIFFS, demands=(PRICES,))
    order = only(core.handle(WorldChanged(smaller), 2.0))
    assert set(order.tree.clusters) == set(tree.clusters) - {"ap-3"}
    assert core.conditions.bad_clusters == frozenset()
    core.handle(WorldChanged(WorldMap(clusters=CLUSTERS)), 3.0)
    assert core.trees == {}


def test_each_hop_is_explained_and_no_alternative_would_have_been_better() -> None:
    planner = Planner(WORLD)
    plan = planner.plan_stream(PRICES)
    reasons = explain(planner, plan)
    assert [(r.upstream, r.downstream) for r in reasons] == [(h.upstream, h.downstream) for h in plan.tree.hops]
    for reason in reasons:
        assert reason.why
        assert all(other.more is None or other.more >= -1e-12 for other in reason.others)
    crossing = next(reason for reason in reasons if reason.downstream.startswith("eu") and reason.upstream == "us-1")
    assert crossing.behind == 3


def test_an_explanation_adds_up_to_what_the_change_would_count() -> None:
    planner = Planner(WORLD)
    plan = planner.plan_stream(PRICES)
    task, place = planner.task(PRICES), planner.ground.place
    parents = {place[hop.downstream]: place[hop.upstream] for hop in plan.tree.hops}
    for reason in explain(planner, plan):
        for other in reason.others:
            if other.more is not None:
                changed = parents | {place[reason.downstream]: place[other.upstream]}
                assert task.value(changed) - task.value(parents) == pytest.approx(other.more)


def test_consumers_of_a_sick_cluster_go_to_the_nearest_that_is_well_and_not_behind_it() -> None:
    clusters = tuple(Cluster(name=name) for name in "abcdef")
    links = tuple(
        Link(upstream=name, downstream="b", latency_s=latency_s)
        for name, latency_s in (("a", 0.09), ("c", 0.001), ("d", 0.002), ("e", 0.003))
    )
    world = WorldMap(clusters=clusters, links=links)
    tree = tree_of("ab", "bc", "ad", "ae", "af")
    assert refuges(world, tree, "b") == ["d", "e", "a"]  # c is behind b, f has no link
    assert refuges(world, tree, "b", Conditions(bad_clusters=frozenset({"d"}))) == ["e", "a"]


NAMES = [cluster.name for cluster in CLUSTERS]
EVENTS = st.one_of(
    st.builds(
        ClusterReported,
        st.sampled_from(NAMES),
        st.frozensets(st.sampled_from(["prices", "clicks"])),
        st.frozensets(st.sampled_from(NAMES), max_size=2),
    ),
    st.builds(ClusterSilent, st.sampled_from(NAMES)),
    st.builds(CaughtUp, st.sampled_from(["prices", "clicks", "gone"]), st.sampled_from(NAMES)),
    st.just(Tick()),
    st.builds(
        lambda names, streams: WorldChanged(
            WorldMap(
                clusters=tuple(cluster for cluster in CLUSTERS if cluster.name in {*names, "us-1", "eu-1"}),
                tariffs=TARIFFS,
                demands=tuple(demand for demand in (PRICES, CLICKS) if demand.stream in streams),
            )
        ),
        st.sets(st.sampled_from(NAMES)),
        st.sets(st.sampled_from(["prices", "clicks"])),
    ),
)
CLICKS = Demand(stream="clicks", source="eu-1", joining_bytes_per_s=1e3)


@settings(max_examples=30)
@given(st.lists(st.tuples(EVENTS, st.floats(0, 20)), max_size=15))
def test_whatever_happens_every_stream_has_a_tree_that_fits_the_map(events: list[tuple[object, float]]) -> None:
    core = Rerouting(patience=PATIENCE)
    world, now_s = WORLD, 0.0
    published: dict[str, CopyTree] = {}
    for event, seconds in [(WorldChanged(WORLD), 0.0), *events]:
        now_s += seconds
        if isinstance(event, WorldChanged):
            world = event.world
            published = {
                stream: tree for stream, tree in published.items() if stream in {d.stream for d in world.demands}
            }
        for order in core.handle(event, now_s):  # type: ignore[arg-type]
            assert order.why
            assert published.get(order.tree.stream) != order.tree, "nothing is ordered that is there already"
            published[order.tree.stream] = order.tree
        assert core.trees == published
        assert set(published) == {demand.stream for demand in world.demands}
        for demand in world.demands:
            tree = published[demand.stream]
            assert set(tree.clusters) == {demand.source, *world.destinations(demand)}
            assert max(map(tree.depth, tree.clusters)) <= demand.hops_max
            for hop in tree.hops:
                # Every cluster here can be reached from every other, so nobody has to copy from a newcomer.
                assert not (hop.joining and tree.downstream(hop.downstream) and not core.conditions.bad_links)
                assert hop.joining or hop.bytes_per_s_max == math.inf
        assert core.due_s is None or core.due_s > now_s - 1e-9
