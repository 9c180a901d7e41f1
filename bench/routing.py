"""Copy trees on paper: what they cost, how deep they are, how much work they mean, how fast a way around is found.

    python bench/routing.py                 two worlds: 15 clusters with 120 shards in two streams, and 300 clusters
    python bench/routing.py --quick         the small world and few outages

Every cluster that passes a stream on is taken out in turn (in the large world: a sample). `replan_ms` is the time to
find the new trees; `reroute_s` is from a cluster's report in the coordination store to the new tree there, through a
running router with its default patience. One JSON document on stdout.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from tailrace.coordination import SqliteCoordination
from tailrace.copytree import Router, WorldFollower, change_map, report
from tailrace.copytree.routing import Conditions, Plan, Planner
from tailrace.model import Cluster, Demand, Sizes, Tariff, WorldMap

# Roughly what clouds charge between zones, regions and continents, and how far apart these are.
TARIFFS = (
    Tariff(scope="region", price_per_gb=0.01, latency_s=0.001),
    Tariff(scope="continent", price_per_gb=0.02, latency_s=0.025),
    Tariff(scope="world", price_per_gb=0.08, latency_s=0.09),
)
WORKERS = Sizes(reader=8, writer=8)
SHARDS = 120  # of all streams together, as in the paper's first experiment


def small_world() -> WorldMap:
    """15 clusters on three continents; two streams, produced in America and Europe, 240 Mbit/s together."""
    regions = {"america": ("central", "east", "west"), "europe": ("west", "north"), "asia": ("east", "south", "japan")}
    names = [(continent, region) for continent, some in regions.items() for region in some]
    clusters = tuple(
        Cluster(name=f"{continent}-{region}-{number}", continent=continent, region=region, sizes=WORKERS)
        for number in (1, 2)
        for continent, region in names
    )[:15]
    demands = tuple(
        Demand(stream=stream, source=source, bytes_per_s=15e6)
        for stream, source in (("us", "america-central-1"), ("eu", "europe-west-1"))
    )
    return WorldMap(clusters=clusters, tariffs=TARIFFS, demands=demands)


def large_world(count: int) -> WorldMap:
    clusters = tuple(
        Cluster(name=f"c{n:03}", continent=f"continent-{n % 6}", region=f"region-{n // 6 % 10}", sizes=WORKERS)
        for n in range(count)
    )
    demands = tuple(Demand(stream=f"s{n}", source=f"c{n:03}", bytes_per_s=15e6) for n in range(2))
    return WorldMap(clusters=clusters, tariffs=TARIFFS, demands=demands)


def measure(world: WorldMap, outages_max: int, reroutes: int) -> dict[str, Any]:
    began_s = time.perf_counter()
    planner = Planner(world)
    plans = planner.plan()
    plan_ms = 1e3 * (time.perf_counter() - began_s)
    return {
        "clusters": len(world.clusters),
        "streams": len(world.demands),
        "shards": SHARDS,
        "plan_ms": plan_ms,
        "trees": {stream: _tree(plan) for stream, plan in plans.items()},
        "operations": _operations(world, plans),
        "outages": _outages(planner, plans, outages_max),
        "router": _router(world, plans, reroutes),
    }


def _tree(plan: Plan) -> dict[str, Any]:
    star = sum(_price(plan, name) for name in plan.tree.clusters[1:]) * plan.demand.layers
    return {
        "price_per_gb": plan.price_per_gb,
        "of_a_star": plan.price_per_gb / star,  # the source sends to every cluster itself
        "depth": plan.depth,
        "depth_mean": plan.depth_mean,
        "fan_out": plan.fan_out,
    }


def _price(plan: Plan, name: str) -> float:
    link = _world_of[plan.demand.stream].link(plan.tree.source, name)
    assert link is not None
    return link.price_per_gb


_world_of: dict[str, WorldMap] = {}


def _operations(world: WorldMap, plans: dict[str, Plan]) -> dict[str, float]:
    """One for each shard and storage type on each hop, from reader to writer; both files of a shard travel in one."""
    each = SHARDS / len(plans)
    sends = {
        cluster.name: sum(
            len(plan.tree.downstream(cluster.name)) * plan.demand.layers * each for plan in plans.values()
        )
        for cluster in world.clusters
    }
    takes = {
        cluster.name: sum(
            plan.demand.layers * each for plan in plans.values() if plan.tree.upstream(cluster.name) is not None
        )
        for cluster in world.clusters
    }
    return {
        "all": sum(sends.values()),
        "per_reader_mean": statistics.mean(sends.values()) / WORKERS.reader,
        "per_reader_max": max(sends.values()) / WORKERS.reader,
        "per_writer_max": max(takes.values()) / WORKERS.writer,
    }


def _outages(planner: Planner, plans: dict[str, Plan], outages_max: int) -> dict[str, Any]:
    current = {stream: plan.tree for stream, plan in plans.items()}
    relays = sorted({hop.upstream for tree in current.values() for hop in tree.hops})
    sample = random.Random(1).sample(relays, min(outages_max, len(relays)))
    times_ms, dearer, moved, leaves, deepest = [], [], [], 0, 0
    for bad in sample:
        began_s = time.perf_counter()
        after = planner.plan(Conditions(bad_clusters=frozenset({bad})), current)
        times_ms.append(1e3 * (time.perf_counter() - began_s))
        dearer.append(sum(p.price_per_gb for p in after.values()) / sum(p.price_per_gb for p in plans.values()))
        moved.append(sum(len(set(after[s].tree.hops) - set(current[s].hops)) for s in after))
        leaves += all(p.tree.source == bad or not p.tree.downstream(bad) for p in after.values())
        deepest = max(deepest, *(plan.depth for plan in after.values()))
    return {
        "tried": len(sample),
        "bad_one_is_a_leaf": leaves,
        "replan_ms_median": statistics.median(times_ms),
        "replan_ms_max": max(times_ms),
        "cost_after_mean": statistics.mean(dearer),
        "cost_after_max": max(dearer),
        "hops_changed_mean": statistics.mean(moved),
        "hops_changed_max": max(moved),
        "depth_max": deepest,
    }


def _router(world: WorldMap, plans: dict[str, Plan], count: int) -> dict[str, Any]:
    tree = next(iter(plans.values())).tree
    hurt = [name for name in tree.clusters[1:] if tree.downstream(name)][:count]
    stream, times_s = tree.stream, []
    with tempfile.TemporaryDirectory(prefix="tailrace-routing-") as folder:
        for bad in hurt:
            with SqliteCoordination(Path(folder) / f"{bad}.db") as store:
                change_map(store, lambda _, preferences: (world, preferences))
                with Router(store, "bench") as router:
                    running = threading.Thread(target=router.run)
                    running.start()
                    times_s.append(_time_reroute(store, stream, bad))
                    router.close()
                    running.join()
    return {"tried": len(times_s), "reroute_s_median": statistics.median(times_s), "reroute_s_max": max(times_s)}


def _time_reroute(store: SqliteCoordination, stream: str, bad: str) -> float:
    with WorldFollower(store) as follower:
        while stream not in follower.state.trees or not follower.state.trees[stream].downstream(bad):
            follower.poll(1.0)
        began_s = time.perf_counter()
        report(store, bad, late=frozenset({stream}))
        while follower.state.trees[stream].downstream(bad):
            follower.poll(0.5)
        return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--clusters", type=int, default=300, help="of the large world")
    options = parser.parse_args()
    worlds = {"small": (small_world(), 4 if options.quick else 15, 1 if options.quick else 3)}
    if not options.quick:
        worlds["large"] = (large_world(options.clusters), 10, 2)
    measured = {}
    for name, (world, outages, reroutes) in worlds.items():
        print(f"{name}: {len(world.clusters)} clusters …", file=sys.stderr)
        _world_of.update({demand.stream: world for demand in world.demands})
        measured[name] = measure(world, outages, reroutes)
    summary = {
        "reroute_s": max(one["router"]["reroute_s_max"] for one in measured.values()),
        "replan_ms": max(one["outages"]["replan_ms_max"] for one in measured.values()),
        "depth": max(tree["depth"] for one in measured.values() for tree in one["trees"].values()),
    }
    print(json.dumps(_rounded({"summary": summary, "worlds": measured}), indent=2))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return round(value, 4) if isinstance(value, float) else value


if __name__ == "__main__":
    main()
