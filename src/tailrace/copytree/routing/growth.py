"""Grow a copy tree from its source, in the manner of Prim: the cheapest next cluster joins, until all that can have.

Pure. Prim's choice is greedy, so the cheap long ways it takes first may use up the hops that others need. Those that it
cannot reach are then brought in along the fewest hops there are; if even these are too many, they stay out.
"""

import heapq
import math
from collections.abc import Collection, Iterable

from .task import Task

Parents = dict[int, int]


def grow(task: Task, *, patience: float = 1.0, hub: int | None = None) -> Parents:
    """The upstream of each cluster. With more patience distance counts more, which leads to broader, flatter trees. A
    hub, which may be a relay, joins before all others."""
    parents: Parents = {}
    depth, distance, counts = {task.source: 0}, {task.source: 0.0}, {task.source: 0}
    outside = list(task.wanted)
    # For each cluster outside, the ways in, cheapest first. A way counts more as its upstream gets more to do, never
    # less, so an entry that is out of date is put right when it comes to the top.
    ways: dict[int, list[tuple[float, int]]] = {v: [] for v in outside}

    def counted(u: int, v: int) -> float:
        return task.weight[u][v] + patience * (distance[u] + task.length[u][v]) + task.crowding(u, counts[u])

    def offer(u: int) -> None:
        if depth[u] < task.hops_max:
            row = task.weight[u]
            for v in outside:
                if row[v] < math.inf:
                    heapq.heappush(ways[v], (counted(u, v), u))

    offer(task.source)
    if hub is not None:
        parents[hub] = task.source
        depth[hub], distance[hub], counts[hub] = 1, task.length[task.source][hub], 0
        counts[task.source] = 1
        outside = [v for v in outside if v != hub]
        offer(hub)
    while outside:
        best: tuple[float, int, int] | None = None
        for v in outside:
            heap = ways[v]
            while heap and (now := counted(heap[0][1], v)) > heap[0][0]:
                heapq.heapreplace(heap, (now, heap[0][1]))
            if heap and (best is None or (heap[0][0], v) < (best[0], best[1])):
                best = (heap[0][0], v, heap[0][1])
        if best is None:
            break
        _, v, u = best
        parents[v] = u
        depth[v], counts[v] = depth[u] + 1, 0
        distance[v] = distance[u] + task.length[u][v]
        counts[u] += 1
        outside.remove(v)
        offer(v)
    if outside:
        _bring_in(task, parents, outside)
    return parents


def _bring_in(task: Task, parents: Parents, outside: Collection[int]) -> None:
    """Along the fewest hops from the source, through relays as well.

    A cluster on such a way is moved to where it is nearest to the source. That never makes a ring: its new upstream
    is nearer to the source than itself, so it is not among those behind it.
    """
    nearest = fewest_hops(task)
    for v in outside:
        if v not in nearest or nearest[v][0] > task.hops_max:
            continue
        while v != task.source:
            parents[v] = nearest[v][1]
            v = parents[v]


def fewest_hops(task: Task, without: Iterable[int] = ()) -> dict[int, tuple[int, int]]:
    """Breadth first: how many hops each cluster is from the source at least, and from whom it then copies."""
    avoided = set(without)
    found = {task.source: (0, task.source)}
    edge = [task.source]
    hops = 0
    left = [v for v in task.members if v not in found and v not in avoided]
    while edge and left:
        hops += 1
        reached = {}
        for v in left:
            weight, u = min((task.weight[u][v], u) for u in edge)
            if weight < math.inf:
                reached[v] = (hops, u)
        found |= reached
        edge = list(reached)
        left = [v for v in left if v not in reached]
    return found
