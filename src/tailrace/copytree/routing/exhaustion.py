"""Look through all trees of a tiny world for one that counts less than the best that is known. Pure.

Branch and bound: clusters get their upstreams one after the other, cheapest first, and a branch is left as soon as what
it has, with the cheapest way in for each cluster that is left, counts as much as the best tree.
"""

import math

from .growth import Parents
from .task import Task

_STEPS_MAX = 10_000  # some 20 ms; beyond that the best that was found has to do
_LEAST = 1e-12


class Exhaustion:
    def __init__(self, task: Task, best: Parents, value: float) -> None:
        self._task = task
        self.best, self.value = best, value
        self._steps = 0
        self._parents: Parents = {}
        self._counts = dict.fromkeys(task.members, 0)
        self._relays = set(task.relays)
        # Those with the fewest ways in first: they decide most.
        self._ways = {v: self._ways_to(v) for v in task.members if v != task.source}
        self._order = sorted(self._ways, key=lambda v: (v in self._relays, len(self._ways[v])))
        self._rest = self._cheapest_rest()

    @property
    def complete(self) -> bool:
        """Whether all trees were looked at, so that there is none better."""
        return self._steps <= _STEPS_MAX

    def run(self) -> tuple[Parents, float]:
        if all(self._ways[v] for v in self._task.wanted):
            self._assign(0, 0.0)
        return self.best, self.value

    def _ways_to(self, v: int) -> list[tuple[float, int]]:
        task = self._task
        return sorted(
            (task.weight[u][v] + task.length[u][v], u) for u in task.members if u != v and task.weight[u][v] < math.inf
        )

    def _cheapest_rest(self) -> list[float]:
        """What the clusters from each place of the order on count at least. A relay may stay out."""
        rest = [0.0]
        for v in reversed(self._order):
            least = 0.0 if v in self._relays or not self._ways[v] else self._ways[v][0][0]
            rest.append(rest[-1] + least)
        return rest[::-1]

    def _assign(self, number: int, counted: float) -> None:
        self._steps += 1
        if self._steps > _STEPS_MAX or counted + self._rest[number] >= self.value - _LEAST:
            return
        if number == len(self._order):
            self._finish()
            return
        v = self._order[number]
        # A relay that someone copies from must be in the tree; one that nobody copies from need not.
        if v in self._relays and not self._counts[v]:
            self._assign(number + 1, counted)
        for weight, u in self._ways[v]:
            if self._is_behind(u, v):
                continue
            more = weight + self._task.crowding(u, self._counts[u])
            self._parents[v] = u
            self._counts[u] += 1
            self._assign(number + 1, counted + more)
            self._counts[u] -= 1
            del self._parents[v]

    def _is_behind(self, u: int, v: int) -> bool:
        hops = 0
        while u in self._parents:
            u, hops = self._parents[u], hops + 1
        return u == v or hops >= self._task.hops_max

    def _finish(self) -> None:
        task = self._task
        for v in self._parents:
            hops = 0
            while v != task.source:
                if v not in self._parents or hops == task.hops_max:
                    return  # through a relay that stays out, or too far
                v, hops = self._parents[v], hops + 1
        value = task.value(self._parents)
        if value < self.value - _LEAST:
            self.best, self.value = dict(self._parents), value
