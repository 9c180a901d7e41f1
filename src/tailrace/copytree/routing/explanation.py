"""Why each cluster copies from where it does: what it pays there, and what speaks against the others. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tailrace.model import CopyTree

from .improvement import Improvement
from .plan import Plan, Planner
from .task import Conditions, Task

_OTHERS_MAX = 3


@dataclass(frozen=True, slots=True)
class Alternative:
    upstream: str
    against: str  # in words, the weightiest first
    more: float | None  # how much more the tree would count, in money; None: it may not be


@dataclass(frozen=True, slots=True)
class Reason:
    upstream: str
    downstream: str
    price_per_gb: float
    latency_s: float
    depth: int
    behind: int  # clusters that get the stream through this hop, downstream included
    why: str
    others: tuple[Alternative, ...]


def explain(
    planner: Planner,
    plan: Plan,
    conditions: Conditions | None = None,
    current: CopyTree | None = None,
) -> list[Reason]:
    """One reason for each hop, in the tree's order."""
    task = planner.task(plan.demand, conditions, None, current)
    place = planner.ground.place
    state = Improvement(task, {place[hop.downstream]: place[hop.upstream] for hop in plan.tree.hops})
    return [_reason(task, state, place[hop.downstream]) for hop in plan.tree.hops]


def _reason(task: Task, state: Improvement, v: int) -> Reason:
    ground, u = task.ground, state.parents[v]
    judged = sorted(
        (_alternative(task, state, v, other) for other in task.members if other not in (u, v)),
        key=lambda one: (one.more is None, one.more or 0.0, one.upstream),
    )
    possible = [one for one in judged if one.more is not None]
    shown = tuple((possible or judged)[:_OTHERS_MAX])
    return Reason(
        upstream=ground.names[u],
        downstream=ground.names[v],
        price_per_gb=ground.price[u][v],
        latency_s=ground.latency[u][v],
        depth=state.depth[v],
        behind=state.size[v],
        why=_why(task, state, v, possible),
        others=shown,
    )


def _why(task: Task, state: Improvement, v: int, possible: list[Alternative]) -> str:
    price, place = task.ground.price, task.ground.place
    mine = price[state.parents[v]][v]
    prices = [price[place[one.upstream]][v] for one in possible]
    relay = "it passes the stream on without wanting it; " if v in set(task.relays) else ""
    if not possible:
        return f"{relay}there is no other way that fits"
    if mine > min(prices):
        cheaper = possible[prices.index(min(prices))]
        return f"{relay}cheaper from {cheaper.upstream}, but {cheaper.against}"
    if mine == min(prices):
        return f"{relay}as cheap as any, and better placed"
    return f"{relay}the cheapest way in"


def _alternative(task: Task, state: Improvement, v: int, u: int) -> Alternative:
    name = task.ground.names[u]
    if task.weight[u][v] == math.inf:
        return Alternative(name, "there is no link", None)
    if u not in state.depth:
        return Alternative(name, "it is not in the tree", None)
    if state.behind(u, v):
        return Alternative(name, "it gets the stream through this cluster itself", None)
    if (deepest := state.depth[u] + 1 + state.height[v]) > task.hops_max:
        return Alternative(name, f"{deepest} hops, {task.hops_max} is the limit", None)
    parts = _differences(task, state, v, u)
    against = [words for words, value in sorted(parts.items(), key=lambda part: -part[1]) if value > 1e-12]
    return Alternative(name, ", ".join(against) or "as good", sum(parts.values()))


def _differences(task: Task, state: Improvement, v: int, u: int) -> Mapping[str, float]:
    """What the tree would count more if v copied from u instead, by cause; their sum is the difference."""
    now, ground = state.parents[v], task.ground
    parts: dict[str, float] = {}

    def add(words: str, value: float) -> None:
        parts[words] = parts.get(words, 0.0) + value

    price = ground.price[u][v] - ground.price[now][v]
    add(f"{abs(price):.4g} per GB {'more' if price > 0 else 'less'}", price)
    for upstream, sign in ((u, 1), (now, -1)):
        count = len(state.children[upstream]) - (upstream == now)
        add("crowded", sign * task.sibling * count)
        if count >= task.fan_out_max[upstream]:
            add(f"{ground.names[upstream]} has no room", sign * task.avoid)
        if upstream in task.shunned:
            add(f"{ground.names[upstream]} is to be avoided", sign * task.avoid)
        if (upstream, v) in task.bad_links:
            add("the link is bad", sign * task.avoid)
        if (upstream, v) in task.full_links:
            add("the link is full", sign * task.avoid)
        if (upstream, v) not in task.kept:
            add("a change", sign * task.change)
    farther = state.distance[u] + task.length[u][v] - state.distance[v]
    hops = state.depth[u] + 1 - state.depth[v]
    add(f"{hops} {'hop' if hops == 1 else 'hops'} more" if hops > 0 else "a longer way", state.size[v] * farther)
    return parts
