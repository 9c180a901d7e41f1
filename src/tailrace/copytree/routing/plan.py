"""Choose the copy tree of each stream of a world.

Always holds for a plan: its tree reaches every destination that has a way within the limit of hops, over clusters the
data may go to; it says why it does not reach the others. Bad clusters and links, full links and busy clusters are gone
around whatever it costs, and used only where there is no way around; the plan says so then.

Pure: a world and what holds in it go in, plans come out. See docs/decisions/copy-tree-routing.md.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tailrace.model import CopyTree, Demand, Hop, WorldMap

from .ground import Ground
from .growth import Parents, fewest_hops
from .preferences import Preferences
from .search import best_tree
from .task import Conditions, Load, Task

_GB = 1e9
_DAY_S = 86_400


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A stream's tree, what it costs, and what is the matter with it."""

    demand: Demand
    tree: CopyTree
    unreached: Mapping[str, str] = field(default_factory=dict)  # destinations outside the tree: why
    strains: tuple[str, ...] = ()  # what the tree overloads or should rather not use, in words
    price_per_gb: float = 0.0  # of the produced stream, for all hops together
    value: float = 0.0  # what the optimizer minimised, in the same money

    @property
    def cost_per_day(self) -> float:
        return self.price_per_gb * self.demand.bytes_per_s * _DAY_S / _GB

    @cached_property
    def depth(self) -> int:
        return max(map(self.tree.depth, self.tree.clusters))

    @cached_property
    def depth_mean(self) -> float:
        others = [name for name in self.tree.clusters if name != self.tree.source]
        return sum(map(self.tree.depth, others)) / len(others) if others else 0.0

    @cached_property
    def fan_out(self) -> int:
        return max(len(self.tree.downstream(name)) for name in self.tree.clusters)


class Planner:
    """Plans for one map, as often as conditions change: the map's tables are made once."""

    def __init__(self, world: WorldMap, preferences: Preferences | None = None) -> None:
        self.world = world
        self.preferences = preferences or Preferences()
        self.ground = Ground(world)

    def plan(
        self,
        conditions: Conditions | None = None,
        current: Mapping[str, CopyTree] | None = None,
    ) -> dict[str, Plan]:
        """Every stream's plan. Those that carry most choose first, since they are hardest to place."""
        conditions, current = conditions or Conditions(), current or {}
        load = Load()
        plans = {}
        for demand in sorted(self.world.demands, key=lambda demand: (-demand.edge_bytes_per_s, demand.stream)):
            plans[demand.stream] = self.plan_stream(demand, conditions, load, current.get(demand.stream))
            load.add(plans[demand.stream].tree, demand.edge_bytes_per_s)
        return {demand.stream: plans[demand.stream] for demand in self.world.demands}

    def plan_stream(
        self,
        demand: Demand,
        conditions: Conditions | None = None,
        load: Load | None = None,
        current: CopyTree | None = None,
    ) -> Plan:
        task = self.task(demand, conditions, load, current)
        parents, value = best_tree(task, current)
        return _plan(task, conditions or Conditions(), parents, value)

    def task(
        self,
        demand: Demand,
        conditions: Conditions | None = None,
        load: Load | None = None,
        current: CopyTree | None = None,
    ) -> Task:
        return Task(self.ground, demand, conditions or Conditions(), load or Load(), self.preferences, current)

    def judge(self, tree: CopyTree, conditions: Conditions | None = None) -> Plan:
        """What an existing tree costs in this world, without changing it."""
        task = self.task(self.world.demand(tree.stream), conditions)
        place = self.ground.place
        parents = {place[hop.downstream]: place[hop.upstream] for hop in tree.hops}
        return _plan(task, conditions or Conditions(), parents, task.value(parents))


def _plan(task: Task, conditions: Conditions, parents: Parents, value: float) -> Plan:
    names, demand, price = task.ground.names, task.demand, task.ground.price
    behind = set(parents.values())
    hops = []
    for v in _from_the_source(task, parents):
        # Only a leaf is held back while it catches up: others wait for what it would pass on.
        joining = names[v] in conditions.joining
        limit = demand.joining_bytes_per_s if joining and v not in behind else math.inf
        hops.append(Hop(upstream=names[parents[v]], downstream=names[v], bytes_per_s_max=limit, joining=joining))
    return Plan(
        demand=demand,
        tree=CopyTree(stream=demand.stream, source=demand.source, hops=tuple(hops)),
        unreached=_reasons(task, parents),
        strains=_strains(task, conditions, parents),
        price_per_gb=sum(price[u][v] for v, u in parents.items()) * demand.layers,
        value=value,
    )


def _from_the_source(task: Task, parents: Parents) -> list[int]:
    """Nearest first, then by the order of the map, so that equal trees look equal."""
    children: dict[int, list[int]] = {}
    for v, u in parents.items():
        children.setdefault(u, []).append(v)
    order, edge = [], [task.source]
    while edge:
        edge = sorted(v for u in edge for v in children.get(u, ()))
        order += edge
    return order


def _reasons(task: Task, parents: Parents) -> dict[str, str]:
    missing = [v for v in task.wanted if v not in parents]
    if not missing:
        return {}
    nearest = fewest_hops(task)
    reasons = {}
    for v in missing:
        if v in nearest:
            reason = f"it is {nearest[v][0]} hops away at least; hops_max={task.hops_max}"
        else:
            where = f" within {', '.join(task.demand.stays_in)}" if task.demand.stays_in else ""
            reason = f"no links lead there from {task.demand.source}{where}"
        reasons[task.ground.names[v]] = reason
    return reasons


def _strains(task: Task, conditions: Conditions, parents: Parents) -> tuple[str, ...]:
    names = task.ground.names
    counts: dict[int, int] = {}
    for u in parents.values():
        counts[u] = counts.get(u, 0) + 1
    found = []
    for u in sorted(counts):
        if u in task.shunned:
            what = "is bad" if names[u] in conditions.bad_clusters else "is still catching up"
            found.append(f"{names[u]} {what}, and {counts[u]} copy from it: there is no way around")
        if counts[u] > task.fan_out_max[u]:
            found.append(f"{names[u]} sends to {counts[u]}, and has room for {task.fan_out_max[u]}")
    for v, u in sorted(parents.items()):
        if (u, v) in task.bad_links:
            found.append(f"the link {names[u]} to {names[v]} is bad, and there is no way around")
        if (u, v) in task.full_links:
            found.append(f"the link {names[u]} to {names[v]} is too narrow for what it is to carry")
    return tuple(found)
