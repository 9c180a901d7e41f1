"""Improve a copy tree by small moves, until none helps.

Pure and deterministic. Every move keeps the tree a tree within the limit of hops, and lowers what it counts
(Task.value), so this ends; the number of rounds is limited all the same.

Moves: a cluster and all behind it copy from elsewhere; a cluster changes places with its upstream; a cluster becomes a
hub, that is, it goes elsewhere and takes along all that are better off behind it; a relay, which does not want the
stream itself, comes in as such a hub, or goes.
"""

import math

from .growth import Parents
from .task import Task

_ROUNDS_MAX = 20
_SMALL = 40  # in larger trees hubs gain too little for the time they take
_LEAST = 1e-12  # a gain below this is an error of rounding


class Improvement:
    def __init__(self, task: Task, parents: Parents) -> None:
        self.task = task
        self.parents = dict(parents)
        self._unwanted = set(task.relays)
        self._survey()

    def run(self) -> Parents:
        self._drop_idle_relays()
        for _ in range(_ROUNDS_MAX):
            moved = self._move_clusters()
            moved |= self._swap_with_upstream()
            moved |= self._try_hubs()
            if not moved:
                break
        return self.parents

    def _survey(self) -> None:
        """Depth, distance, size and height of everything, and an order in which each branch is an interval."""
        task = self.task
        self.children: dict[int, list[int]] = {task.source: []}
        for child in self.parents:
            self.children[child] = []
        for child, parent in self.parents.items():
            self.children[parent].append(child)
        self.depth, self.distance = {task.source: 0}, {task.source: 0.0}
        order, stack = [], [task.source]
        while stack:
            u = stack.pop()
            order.append(u)
            for v in self.children[u]:
                self.depth[v] = self.depth[u] + 1
                self.distance[v] = self.distance[u] + task.length[u][v]
                stack.append(v)
        self.size, self.height = dict.fromkeys(order, 1), dict.fromkeys(order, 0)
        for v in reversed(order):
            if v != task.source:
                u = self.parents[v]
                self.size[u] += self.size[v]
                self.height[u] = max(self.height[u], self.height[v] + 1)
        self.first = {v: number for number, v in enumerate(order)}

    def behind(self, u: int, v: int) -> bool:
        """Whether u is v or lies behind it."""
        return self.first[v] <= self.first[u] < self.first[v] + self.size[v]

    def _place_value(self, v: int) -> float:
        """What would be saved by taking v and all behind it away from its place."""
        u = self.parents[v]
        count = len(self.children[u]) - 1
        return self.task.weight[u][v] + self.size[v] * self.distance[v] + self.task.crowding(u, count)

    def best_place(self, v: int) -> tuple[float, int]:
        """Where v, with all behind it, would count least: (how much more than now, there). Below 0 is a gain."""
        task, now = self.task, self._place_value(v)
        best = (0.0, self.parents[v])
        room, size = task.hops_max - 1 - self.height[v], self.size[v]
        for u, depth in self.depth.items():
            weight = task.weight[u][v]
            if depth > room or weight - now >= best[0] or u == self.parents[v] or self.behind(u, v):
                continue
            there = weight + size * (self.distance[u] + task.length[u][v]) + task.crowding(u, len(self.children[u]))
            if there - now < best[0] - _LEAST:
                best = (there - now, u)
        return best

    def _move_clusters(self) -> bool:
        moved = False
        for _ in range(_ROUNDS_MAX):
            again = False
            for v in list(self.parents):
                if v not in self.parents:
                    continue  # a relay that meanwhile went
                gain, u = self.best_place(v)
                if gain < 0:
                    self._move(v, u)
                    moved = again = True
            if not again:
                break
        return moved

    def _move(self, v: int, u: int) -> None:
        self.parents[v] = u
        self._survey()
        self._drop_idle_relays()

    def _swap_with_upstream(self) -> bool:
        """A cluster takes the place of its upstream, which copies from it instead: a chain turned around a little."""
        moved = False
        for v in list(self.parents):
            u = self.parents.get(v)
            if u is not None and u != self.task.source and self._swap_gains(v, u):
                self.parents[v], self.parents[u] = self.parents[u], v
                self._survey()
                self._drop_idle_relays()
                moved = True
        return moved

    def _swap_gains(self, v: int, u: int) -> bool:
        task, above = self.task, self.parents[u]
        weight, length = task.weight, task.length
        low = max((self.height[other] + 1 for other in self.children[u] if other != v), default=0)
        if self.depth[above] + 1 + max(self.height[v], 1 + low) > task.hops_max:
            return False
        distance_v = self.distance[above] + length[above][v]
        distance_u = distance_v + length[v][u]
        gain = weight[above][u] + weight[u][v] - weight[above][v] - weight[v][u]
        gain += self.size[v] * (self.distance[v] - distance_v)
        gain += (self.size[u] - self.size[v]) * (self.distance[u] - distance_u)
        gain += task.crowding(u, len(self.children[u]) - 1) - task.crowding(v, len(self.children[v]))
        return gain > _LEAST

    def _try_hubs(self) -> bool:
        moved = False
        hubs = (*self.task.wanted, *self.task.relays) if len(self.parents) <= _SMALL else self.task.relays
        for hub in hubs:
            if hub in self.parents and hub in self._unwanted:
                trial = self._without(hub)
                moved |= trial is not None and self._adopt_if_better(trial)
            # After a success the places are others: the next round tries again.
            moved |= any(self._adopt_if_better(self._gathered(hub, above)) for above in self._places_for(hub))
        return moved

    def _places_for(self, hub: int) -> list[int]:
        """Where a hub could be worth a try: at the source, and where it is cheapest."""
        task = self.task
        ways = [
            (task.weight[u][hub] + self.distance[u], u)
            for u in self.depth
            if task.weight[u][hub] < math.inf
            and self.depth[u] + 1 < task.hops_max
            and not (hub in self.first and self.behind(u, hub))
        ]
        if not ways:
            return []
        cheapest = min(ways)[1]
        direct = task.weight[task.source][hub] < math.inf and task.hops_max > 1
        return sorted({cheapest, task.source} if direct else {cheapest})

    def _gathered(self, hub: int, above: int) -> Parents:
        task = self.task
        trial = self.parents | {hub: above}
        depth, distance = self.depth[above] + 1, self.distance[above] + task.length[above][hub]
        count = len(self.children.get(hub, ()))
        weight, length = task.weight[hub], task.length[hub]
        for v, u in self.parents.items():
            if v == hub or u == hub or weight[v] == math.inf:
                continue
            if depth + 1 + self.height[v] > task.hops_max or self.behind(above, v):
                continue
            there = weight[v] + self.size[v] * (distance + length[v]) + task.crowding(hub, count)
            if there < self._place_value(v):
                trial[v] = hub
                count += 1
        return trial

    def _without(self, relay: int) -> Parents | None:
        """Every cluster that copies from the relay copies from elsewhere, if it can."""
        trial = {v: u for v, u in self.parents.items() if v != relay}
        for v in self.children[relay]:
            ways = [
                (self.task.weight[u][v] + self.size[v] * (self.distance[u] + self.task.length[u][v]), u)
                for u in self.depth
                if self.depth[u] + 1 + self.height[v] <= self.task.hops_max
                and not self.behind(u, relay)
                and self.task.weight[u][v] < math.inf
            ]
            if not ways:
                return None
            trial[v] = min(ways)[1]
        return trial

    def _adopt_if_better(self, trial: Parents) -> bool:
        task = self.task
        if trial == self.parents or task.value(trial) >= task.value(self.parents) - _LEAST:
            return False
        if height(trial, task.source) > task.hops_max:
            return False
        self.parents = trial
        self._survey()
        self._drop_idle_relays()
        return True

    def _drop_idle_relays(self) -> None:
        while idle := [v for v in self.parents if v in self._unwanted and not self.children[v]]:
            for v in idle:
                del self.parents[v]
            self._survey()


def height(parents: Parents, source: int) -> int:
    """The most hops that any cluster is from the source."""
    depth = {source: 0}
    for v in parents:
        way = []
        while v not in depth:
            way.append(v)
            v = parents[v]
        for u in reversed(way):
            depth[u] = depth[parents[u]] + 1
    return max(depth.values())
