"""A world's links as tables of numbers, by the clusters' places in the map. Made once for each map."""

import math
from functools import cached_property
from statistics import median

from tailrace.model import WorldMap

Row = list[float]


class Ground:
    """`price[u][v]` and `latency[u][v]` of the link from u to v; the price is infinite where there is none."""

    def __init__(self, world: WorldMap) -> None:
        self.world = world
        self.names = [cluster.name for cluster in world.clusters]
        self.place = {name: place for place, name in enumerate(self.names)}
        self.price, self.latency, self.capacity = _tables(world)

    @cached_property
    def usual_price(self) -> float:
        """The median of the prices; 1 if nothing costs anything, so that preferences still mean something."""
        prices = [price for row in self.price for price in row if 0 < price < math.inf]
        return median(prices) if prices else 1.0

    @cached_property
    def narrow(self) -> list[tuple[int, int, float]]:
        """The links that can be full, with what they carry at most."""
        return [
            (u, v, capacity)
            for u, row in enumerate(self.capacity)
            for v, capacity in enumerate(row)
            if capacity < math.inf and self.price[u][v] < math.inf
        ]

    @cached_property
    def longest_latency_s(self) -> float:
        return max((max(row) for row in self.latency if row), default=0.0)

    @cached_property
    def highest_price(self) -> float:
        return max((price for row in self.price for price in row if price < math.inf), default=0.0)


def _tables(world: WorldMap) -> tuple[list[Row], list[Row], list[Row]]:
    """As WorldMap.link says, for all pairs at once: a world of 300 clusters has 90,000 of them."""
    terms = {t.scope: (t.price_per_gb, t.latency_s, t.capacity_bytes_per_s) for t in world.tariffs}
    none = (math.inf, 0.0, 0.0)
    far = terms.get("world", none)
    continent = terms.get("continent", far)
    region = terms.get("region", continent)
    places = {cluster.name: place for place, cluster in enumerate(world.clusters)}
    tables: tuple[list[Row], list[Row], list[Row]] = ([], [], [])
    for one in world.clusters:
        row = [
            far
            if one.continent != other.continent
            else continent
            if one.region != other.region
            else region
            if one is not other
            else none
            for other in world.clusters
        ]
        for table, column in zip(tables, zip(*row, strict=True), strict=True):
            table.append(list(column))
    for link in world.links:
        u, v = places[link.upstream], places[link.downstream]
        terms_here = (link.price_per_gb, link.latency_s, link.capacity_bytes_per_s)
        for table, value in zip(tables, terms_here, strict=True):
            table[u][v] = value
    return tables
