"""Copy trees: as cheap as they can be, within their limits, around what is bad."""

import itertools
import math
import random
from collections.abc import Iterator

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.copytree.routing import PRICE_ONLY, Conditions, Plan, Planner, Preferences, exhaustion, search
from tailrace.copytree.routing.task import Task
from tailrace.errors import ConfigError
from tailrace.model import Cluster, CopyTree, Demand, Hop, Link, Tariff, WorldMap

TARIFFS = (
    Tariff(scope="region", price_per_gb=0.005, latency_s=0.001),
    Tariff(scope="continent", price_per_gb=0.02, latency_s=0.02),
    Tariff(scope="world", price_per_gb=0.08, latency_s=0.09),
)
#: The example of the paper: a source in America, three more there, two in Europe, four in Asia and the Pacific.
PAPER = tuple(
    Cluster(name=name, continent=continent)
    for continent, names in {
        "america": ("us-central", "us-east", "us-west", "us-south"),
        "europe": ("eu-west", "eu-north"),
        "asia": ("asia-east", "asia-south", "japan", "sydney"),
    }.items()
    for name in names
)


def world_of(demand: Demand, clusters: tuple[Cluster, ...] = PAPER, links: tuple[Link, ...] = ()) -> WorldMap:
    return WorldMap(clusters=clusters, tariffs=TARIFFS, links=links, demands=(demand,))


def planned(world: WorldMap, conditions: Conditions | None = None, current: CopyTree | None = None) -> Plan:
    return Planner(world).plan_stream(world.demands[0], conditions, current=current)


def both_ways(*prices: tuple[str, str, float]) -> tuple[Link, ...]:
    return tuple(
        Link(upstream=u, downstream=v, price_per_gb=price)
        for one, other, price in prices
        for u, v in ((one, other), (other, one))
    )


PRICES = Demand(stream="prices", source="us-central")


# ---- the shape of a tree


def test_each_ocean_is_crossed_once_and_then_the_continent_is_served_from_within() -> None:
    world = world_of(PRICES)
    plan = planned(world)
    crossings = [
        hop
        for hop in plan.tree.hops
        if world.cluster(hop.upstream).continent != world.cluster(hop.downstream).continent
    ]
    assert [hop.upstream for hop in crossings] == ["us-central", "us-central"]
    assert plan.depth <= 4
    assert plan.price_per_gb == pytest.approx(2 * (2 * 0.08 + 7 * 0.005))  # two layers, each with its own copy


def test_hundreds_of_clusters_fit_four_hops_with_moderate_fan_out() -> None:
    clusters = tuple(
        Cluster(name=f"c{number:03}", continent=f"k{number % 5}", region=f"r{number // 5 % 6}") for number in range(150)
    )
    plan = planned(world_of(Demand(stream="s", source="c000"), clusters))
    cheapest = 4 * 0.08 + 5 * 5 * 0.02 + (149 - 4 - 25) * 0.005
    assert plan.price_per_gb == pytest.approx(2 * cheapest)  # fan-out and depth are settled without paying for it
    assert plan.depth <= 4
    assert plan.fan_out <= 12


def test_where_prices_are_equal_depth_and_fan_out_are_balanced() -> None:
    clusters = tuple(Cluster(name=f"c{number:02}") for number in range(40))
    plan = planned(world_of(Demand(stream="s", source="c00"), clusters))
    assert 2 <= plan.depth <= 3
    assert 3 <= plan.fan_out <= 12


def test_the_limit_of_hops_is_kept_whatever_it_costs() -> None:
    chain = both_ways(*((f"c{n}", f"c{n + 1}", 0.001) for n in range(6)))
    clusters = tuple(Cluster(name=f"c{number}") for number in range(7))
    for hops_max in (1, 2, 3, 4, 6):
        plan = planned(world_of(Demand(stream="s", source="c0", hops_max=hops_max), clusters, chain))
        assert plan.depth <= hops_max
        assert not plan.unreached


def test_data_stays_in_its_jurisdiction_even_if_a_way_outside_is_cheaper() -> None:
    clusters = (
        Cluster(name="paris", continent="europe", jurisdiction="eu"),
        Cluster(name="dublin", continent="europe", jurisdiction="eu"),
        Cluster(name="london", continent="europe", jurisdiction="uk"),
    )
    links = both_ways(("paris", "london", 0.001), ("london", "dublin", 0.001), ("paris", "dublin", 0.5))
    free = Demand(stream="s", source="paris", destinations=("dublin",))
    assert planned(world_of(free, clusters, links)).tree.path("dublin") == ("paris", "london", "dublin")
    kept = Demand(stream="s", source="paris", stays_in=("eu",))
    plan = planned(world_of(kept, clusters, links))
    assert plan.tree.hops == (Hop(upstream="paris", downstream="dublin"),)


def test_a_cluster_that_does_not_relay_is_left_alone() -> None:
    clusters = (Cluster(name="a"), Cluster(name="b", relays=False), Cluster(name="c"))
    links = both_ways(("a", "b", 0.001), ("b", "c", 0.001))
    plan = planned(
        WorldMap(clusters=clusters, links=links, demands=(Demand(stream="s", source="a", destinations=("c",)),))
    )
    assert plan.unreached == {"c": "no links lead there from a"}
    assert plan.tree.hops == ()


def test_what_is_too_far_is_said_and_the_others_are_served() -> None:
    clusters = tuple(Cluster(name=name) for name in "abcd")
    links = both_ways(("a", "b", 1), ("b", "c", 1), ("c", "d", 1))
    demand = Demand(stream="s", source="a", hops_max=2)
    plan = planned(WorldMap(clusters=clusters, links=links, demands=(demand,)))
    assert plan.unreached == {"d": "it is 3 hops away at least; hops_max=2"}
    assert plan.tree.path("c") == ("a", "b", "c")


# ---- capacities


def test_a_cluster_sends_to_no_more_than_its_egress_allows() -> None:
    clusters = (Cluster(name="a", egress_bytes_per_s=5e6), *(Cluster(name=name) for name in "bcdef"))
    demand = Demand(stream="s", source="a", bytes_per_s=1e6, layers=2)
    plan = planned(WorldMap(clusters=clusters, tariffs=TARIFFS, demands=(demand,)))
    assert len(plan.tree.downstream("a")) == 2
    assert plan.strains == ()


def test_streams_share_links_and_the_second_goes_around_a_full_one() -> None:
    clusters = tuple(Cluster(name=name) for name in "abc")
    links = (
        Link(upstream="a", downstream="b", price_per_gb=0.01, capacity_bytes_per_s=3e6),
        Link(upstream="a", downstream="c", price_per_gb=0.05),
        Link(upstream="c", downstream="b", price_per_gb=0.05),
    )
    demands = tuple(
        Demand(stream=name, source="a", destinations=("b",), bytes_per_s=rate)
        for name, rate in (("s", 1e6), ("t", 9e5))
    )
    plans = Planner(WorldMap(clusters=clusters, links=links, demands=demands)).plan()
    assert plans["s"].tree.path("b") == ("a", "b")
    assert plans["t"].tree.path("b") == ("a", "c", "b")


def test_what_has_no_way_around_is_used_and_said() -> None:
    clusters = (Cluster(name="a", fan_out_max=1), Cluster(name="b"), Cluster(name="c"))
    links = (
        Link(upstream="a", downstream="b", capacity_bytes_per_s=1e6),
        Link(upstream="a", downstream="c"),
    )
    plan = planned(WorldMap(clusters=clusters, links=links, demands=(Demand(stream="s", source="a"),)))
    assert not plan.unreached
    assert plan.strains == (
        "a sends to 2, and has room for 1",
        "the link a to b is too narrow for what it is to carry",
    )


# ---- outages and newcomers


def test_a_bad_cluster_becomes_a_leaf_and_the_others_are_served_around_it() -> None:
    world = world_of(PRICES)
    before = planned(world)
    for bad in before.tree.clusters[1:]:
        after = planned(world, Conditions(bad_clusters=frozenset({bad})), before.tree)
        assert after.tree.downstream(bad) == ()
        assert set(after.tree.clusters) == set(before.tree.clusters)
        assert after.strains == ()


def test_a_bad_cluster_stays_in_the_way_if_there_is_no_other() -> None:
    clusters = tuple(Cluster(name=name) for name in "abc")
    links = both_ways(("a", "b", 1), ("b", "c", 1))
    world = WorldMap(clusters=clusters, links=links, demands=(Demand(stream="s", source="a"),))
    plan = planned(world, Conditions(bad_clusters=frozenset({"b"})))
    assert plan.tree.path("c") == ("a", "b", "c")
    assert plan.strains == ("b is bad, and 1 copy from it: there is no way around",)


def test_a_bad_link_is_gone_around_in_its_direction_only() -> None:
    world = world_of(PRICES)
    hop = planned(world).tree.hops[0]
    pair = (hop.upstream, hop.downstream)
    after = planned(world, Conditions(bad_links=frozenset({pair})))
    assert pair not in {(hop.upstream, hop.downstream) for hop in after.tree.hops}
    assert set(after.tree.clusters) == {cluster.name for cluster in PAPER}


def test_an_outage_moves_the_branch_it_hurts_and_leaves_the_rest_in_place() -> None:
    world = world_of(PRICES)
    before = planned(world)
    bad = before.tree.hops[0].downstream
    hurt = {name for name in before.tree.clusters if bad in before.tree.path(name)}
    after = planned(world, Conditions(bad_clusters=frozenset({bad})), before.tree)
    moved = {hop.downstream for hop in set(after.tree.hops) - set(before.tree.hops)}
    assert moved <= hurt
    assert planned(world, current=before.tree).tree == before.tree


def test_a_new_cluster_is_a_slow_leaf_until_it_has_caught_up() -> None:
    demand = Demand(stream="s", source="us-central", joining_bytes_per_s=2e6)
    old = world_of(demand, PAPER[:6])
    before = planned(old)
    world = world_of(demand)
    joining = Conditions(joining=frozenset({"asia-east", "asia-south", "japan", "sydney"}))
    during = planned(world, joining, before.tree)
    for name in joining.joining:
        hop = during.tree.hop(name)
        assert hop is not None
        assert (hop.joining, hop.bytes_per_s_max, during.tree.downstream(name)) == (True, 2e6, ())
    assert set(before.tree.hops) <= set(during.tree.hops)
    after = planned(world, current=during.tree)
    assert all(hop.bytes_per_s_max == math.inf for hop in after.tree.hops)
    assert any(after.tree.downstream(name) for name in joining.joining)  # one of them now serves its continent
    assert after.price_per_gb < during.price_per_gb


def test_newcomers_behind_a_newcomer_are_not_held_back_by_it() -> None:
    clusters = tuple(Cluster(name=name) for name in "abc")
    links = both_ways(("a", "b", 1), ("b", "c", 1))
    demand = Demand(stream="s", source="a", joining_bytes_per_s=1e3)
    world = WorldMap(clusters=clusters, links=links, demands=(demand,))
    plan = planned(world, Conditions(joining=frozenset({"b", "c"})))
    assert [hop.bytes_per_s_max for hop in plan.tree.hops] == [math.inf, 1e3]


def test_a_current_tree_of_another_world_does_no_harm() -> None:
    gone = CopyTree(stream="prices", source="us-central", hops=(Hop(upstream="us-central", downstream="mars"),))
    elsewhere = CopyTree(stream="prices", source="japan", hops=(Hop(upstream="japan", downstream="us-central"),))
    world = world_of(PRICES)
    for current in (gone, elsewhere):
        assert set(planned(world, current=current).tree.clusters) == {cluster.name for cluster in PAPER}


# ---- against oracles


@st.composite
def symmetric_worlds(draw: st.DrawFn) -> WorldMap:
    count = draw(st.integers(2, 12))
    names = [f"c{number}" for number in range(count)]
    prices = st.integers(1, 20).map(lambda cents: cents / 100)
    links = both_ways(*((one, other, draw(prices)) for one, other in itertools.combinations(names, 2)))
    demand = Demand(stream="s", source="c0", hops_max=1000)
    return WorldMap(clusters=tuple(Cluster(name=name) for name in names), links=links, demands=(demand,))


@settings(max_examples=60)
@given(symmetric_worlds())
def test_by_price_alone_it_is_a_minimum_spanning_tree(world: WorldMap) -> None:
    graph = nx.Graph()
    for link in world.links:
        graph.add_edge(link.upstream, link.downstream, weight=link.price_per_gb)
    least = nx.minimum_spanning_tree(graph).size(weight="weight")
    plan = Planner(world, PRICE_ONLY).plan_stream(world.demands[0])
    assert plan.price_per_gb == pytest.approx(2 * least)


@st.composite
def small_worlds(draw: st.DrawFn) -> tuple[WorldMap, Conditions]:
    """Up to five clusters, directed links, some missing, relays, limits and outages."""
    count = draw(st.integers(2, 5))
    names = [f"c{number}" for number in range(count)]
    price = st.one_of(st.sampled_from([0.01, 0.02, 0.05, 0.1]), st.floats(0, 0.1))
    link = st.none() | st.tuples(price, st.sampled_from([0.0, 0.01, 0.1]), st.sampled_from([1e6, math.inf]))
    links = [
        Link(upstream=u, downstream=v, price_per_gb=terms[0], latency_s=terms[1], capacity_bytes_per_s=terms[2])
        for u, v in itertools.permutations(names, 2)
        if (terms := draw(link)) is not None
    ]
    fan_out = st.sampled_from([1, 2, 64])
    clusters = tuple(Cluster(name=name, fan_out_max=draw(fan_out), relays=draw(st.booleans())) for name in names)
    wanted = draw(st.sets(st.sampled_from(names[1:]), min_size=1))
    demand = Demand(stream="s", source="c0", destinations=tuple(sorted(wanted)), hops_max=draw(st.integers(1, 4)))
    bad = frozenset(draw(st.sets(st.sampled_from(names), max_size=1)))
    return WorldMap(clusters=clusters, links=tuple(links), demands=(demand,)), Conditions(bad_clusters=bad)


def all_trees(task: Task) -> Iterator[dict[int, int]]:
    """Every tree that spans the destinations and any of the relays, within the limit of hops."""
    for used in itertools.product((False, True), repeat=len(task.relays)):
        spanned = task.wanted + [relay for relay, use in zip(task.relays, used, strict=True) if use]
        ways = [[u for u in (task.source, *spanned) if u != v and task.weight[u][v] < math.inf] for v in spanned]
        for chosen in itertools.product(*ways):
            parents = dict(zip(spanned, chosen, strict=True))
            if all(_depth(task, parents, v) <= task.hops_max for v in spanned):
                yield parents


def _depth(task: Task, parents: dict[int, int], v: int) -> float:
    depth = 0
    while v != task.source and depth <= len(parents):
        v, depth = parents[v], depth + 1
    return depth if v == task.source else math.inf


@settings(max_examples=200)
@given(small_worlds())
def test_in_a_tiny_world_the_tree_is_the_best_of_all(case: tuple[WorldMap, Conditions]) -> None:
    world, conditions = case
    planner = Planner(world)
    demand = world.demands[0]
    plan, task = planner.plan_stream(demand, conditions), planner.task(demand, conditions)
    best = min(map(task.value, all_trees(task)), default=None)
    if best is None:
        assert plan.unreached, "there is no tree that reaches all, so one that says so is all right"
        return
    assert plan.unreached == {}
    assert plan.value == pytest.approx(best)
    place = planner.ground.place
    parents = {place[hop.downstream]: place[hop.upstream] for hop in plan.tree.hops}
    assert plan.value == pytest.approx(task.value(parents))  # what it claims is what the tree counts
    assert plan.depth <= demand.hops_max
    # A relay that nobody copies from is not in the tree.
    assert all(name in world.destinations(demand) or plan.tree.downstream(name) for name in plan.tree.clusters[1:])


#: Without limits or outages the small moves alone found the best tree in every world that was tried; this keeps it so.
BOUND = 1.0


@pytest.mark.parametrize("count", [6, 8])
def test_without_limits_small_moves_alone_find_the_best_tree(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worlds are drawn from fixed seeds, since nobody promises this for all."""
    monkeypatch.setattr(search, "_TINY", 0)
    monkeypatch.setattr(exhaustion, "_STEPS_MAX", 10**6)
    for seed in range(12):
        draw = random.Random(seed)
        names = [f"c{number}" for number in range(count)]
        links = tuple(
            Link(
                upstream=u, downstream=v, price_per_gb=draw.uniform(0.01, 0.1), latency_s=draw.choice([0.0, 0.01, 0.1])
            )
            for u, v in itertools.permutations(names, 2)
        )
        wanted = tuple(name for name in names[1:] if draw.random() < 0.75) or ("c1",)
        demand = Demand(stream="s", source="c0", destinations=wanted, hops_max=draw.choice([2, 3, 4]))
        planner = Planner(
            WorldMap(clusters=tuple(Cluster(name=name) for name in names), links=links, demands=(demand,))
        )
        found = planner.plan_stream(demand)
        looked = exhaustion.Exhaustion(planner.task(demand), {}, math.inf)
        _, best = looked.run()
        assert looked.complete
        assert found.value <= BOUND * best + 1e-9


def test_preferences_are_checked() -> None:
    with pytest.raises(ConfigError, match="hop=-1"):
        Preferences(hop=-1)
