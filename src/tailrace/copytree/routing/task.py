"""One stream's routing problem as numbers, and what a tree for it counts.

A tree counts the sum of its edges' weights (the price, and for a cluster or link to avoid so much that any way around
counts less), plus the preferences: its clusters' distance from the source, clusters that share an upstream, changes.
Pure.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from tailrace.model import CopyTree, Demand, Hop

from .ground import Ground, Row
from .preferences import Preferences

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What holds at the moment, as far as it matters for the choice of a tree."""

    bad_clusters: frozenset[str] = frozenset()  # pass on through them only if there is no way around
    bad_links: frozenset[Pair] = frozenset()  # (upstream, downstream), likewise
    joining: frozenset[str] = frozenset()  # clusters that catch up: leaves, with a rate limit


@dataclass(slots=True)
class Load:
    """What the trees of other streams carry already, in bytes/s."""

    egress: dict[str, float] = field(default_factory=dict)
    ingress: dict[str, float] = field(default_factory=dict)
    links: dict[Pair, float] = field(default_factory=dict)

    def add(self, tree: CopyTree, bytes_per_s: float) -> None:
        for hop in tree.hops:
            pair = (hop.upstream, hop.downstream)
            self.egress[hop.upstream] = self.egress.get(hop.upstream, 0.0) + bytes_per_s
            self.ingress[hop.downstream] = self.ingress.get(hop.downstream, 0.0) + bytes_per_s
            self.links[pair] = self.links.get(pair, 0.0) + bytes_per_s


class Task:
    """Everything by place. Nothing here changes once it is made."""

    def __init__(
        self,
        ground: Ground,
        demand: Demand,
        conditions: Conditions,
        load: Load,
        preferences: Preferences,
        current: CopyTree | None,
    ) -> None:
        self.ground, self.demand = ground, demand
        world, place = ground.world, ground.place
        self.source = place[demand.source]
        self.hops_max = demand.hops_max
        self.wanted = [place[name] for name in world.destinations(demand)]
        wanted = set(self.wanted)
        self.relays = [
            place[cluster.name]
            for cluster in world.clusters
            if cluster.relays
            and demand.allows(cluster)
            and place[cluster.name] not in wanted
            and place[cluster.name] != self.source
        ]
        self.members = [self.source, *self.wanted, *self.relays]

        share = ground.usual_price / max(1, len(self.wanted))
        self.sibling = preferences.sibling * share
        self.change = preferences.change * share if current is not None else 0.0
        self.hop, self.delay = preferences.hop * share, preferences.delay_per_s * share
        #: More than all else that a tree can count, so that one thing to avoid outweighs every price.
        count = len(self.members)
        far = self.hops_max * (self.hop + self.delay * ground.longest_latency_s)
        self.avoid = 1.0 + 2 * count * (ground.highest_price + far + self.change + self.sibling * count)

        self.kept = {(place[h.upstream], place[h.downstream]) for h in _hops(current, place)}
        self.shunned = {place[name] for name in conditions.bad_clusters | conditions.joining if name in place} - {
            self.source
        }
        self.bad_links = {(place[u], place[v]) for u, v in conditions.bad_links if u in place and v in place}
        self.full_links, self.fan_out_max = self._limits(load)
        self.weight = self._weights()
        self.length = self._lengths()

    def _limits(self, load: Load) -> tuple[set[tuple[int, int]], list[int]]:
        world, rate = self.ground.world, self.demand.edge_bytes_per_s
        fan_out = []
        for cluster in world.clusters:
            left = cluster.egress_bytes_per_s - load.egress.get(cluster.name, 0.0)
            edges = cluster.fan_out_max if rate <= 0 or left == math.inf else int(max(0.0, left) / rate + 1e-9)
            fan_out.append(min(cluster.fan_out_max, edges))
        names = self.ground.names
        full = {
            (u, v)
            for u, v, capacity in self.ground.narrow
            if load.links.get((names[u], names[v]), 0.0) + rate > capacity * (1 + 1e-9)
        }
        return full, fan_out

    def _weights(self) -> dict[int, Row]:
        weights = {}
        for u in self.members:
            extra = self.change + (self.avoid if u in self.shunned else 0.0)
            weights[u] = [price + extra for price in self.ground.price[u]]
        for u, v in self.kept:
            if u in weights:
                weights[u][v] -= self.change
        for u, v in self.bad_links | self.full_links:
            if u in weights:
                weights[u][v] += self.avoid
        return weights

    def _lengths(self) -> dict[int, Row]:
        if not self.delay:
            row = [self.hop] * len(self.ground.names)
            return dict.fromkeys(self.members, row)
        return {u: [self.hop + self.delay * latency for latency in self.ground.latency[u]] for u in self.members}

    def crowding(self, upstream: int, downstream_count: int) -> float:
        """What one more downstream counts at a cluster that has so many already, besides its edge."""
        over = self.avoid if downstream_count >= self.fan_out_max[upstream] else 0.0
        return self.sibling * downstream_count + over

    def value(self, parents: Mapping[int, int]) -> float:
        """What the tree counts in all, from scratch: what the optimizer keeps up to date step by step."""
        total = 0.0
        counts: dict[int, int] = {}
        distance = {self.source: 0.0}
        for child, parent in parents.items():
            total += self.weight[parent][child] + self.crowding(parent, counts.get(parent, 0))
            counts[parent] = counts.get(parent, 0) + 1
            way = []
            while child not in distance:
                way.append(child)
                child = parents[child]
            for node in reversed(way):
                distance[node] = distance[parents[node]] + self.length[parents[node]][node]
        return total + sum(distance.values())


def _hops(tree: CopyTree | None, known: Collection[str]) -> list[Hop]:
    """Those of the tree that are between clusters of today's map."""
    return [hop for hop in (tree.hops if tree else ()) if hop.upstream in known and hop.downstream in known]
