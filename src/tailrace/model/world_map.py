"""The clusters of a world, what it costs to send bytes between them, and which streams go where.

Always holds for a WorldMap: every name it mentions is one of its clusters, no two links have the same two ends in the
same order, and no stream is asked for where its data may not go. What breaks this raises ConfigError.

A link has a direction. Two clusters without a link of their own are joined by the tariff of the smallest place that
both lie in: their region, their continent, the world. Without such a tariff no bytes go between them directly.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from ..errors import ConfigError
from .names import refuse_bad_name

Scope = Literal["region", "continent", "world"]
SCOPES: tuple[Scope, ...] = get_args(Scope)  # from the smallest place to the largest

EVERYWHERE = "*"  # as a destination: every cluster that the stream's data may go to, those added later too
HOPS_MAX = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How many processes of each role a cluster runs."""

    cache: int = 1
    reader: int = 1
    writer: int = 1
    scheduler: int = 1
    monitor: int = 0

    def __post_init__(self) -> None:
        for role in ("cache", "reader", "writer", "scheduler", "monitor"):
            _require(0 <= getattr(self, role) <= 100_000, role, getattr(self, role), "0 to 100000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """One site. Its capacities are those of its readers (egress) and writers (ingress), over all streams."""

    name: str
    continent: str = ""
    region: str = ""  # of the continent: clusters of one metropolitan area
    jurisdiction: str = ""  # whose law its data is under
    egress_bytes_per_s: float = math.inf
    ingress_bytes_per_s: float = math.inf
    fan_out_max: int = 64  # clusters that one stream is sent on to
    relays: bool = True  # may pass on streams that it does not want itself
    folder: str = ""  # of its files; empty: its name, beside the world's own file
    sizes: Sizes = field(default_factory=Sizes)

    def __post_init__(self) -> None:
        refuse_bad_name(self.name, "cluster")
        for name in ("continent", "region", "jurisdiction"):
            if getattr(self, name):
                refuse_bad_name(getattr(self, name), name)
        _require(self.egress_bytes_per_s > 0, "egress_bytes_per_s", self.egress_bytes_per_s, "more than 0")
        _require(self.ingress_bytes_per_s > 0, "ingress_bytes_per_s", self.ingress_bytes_per_s, "more than 0")
        _require(1 <= self.fan_out_max <= 100_000, "fan_out_max", self.fan_out_max, "1 to 100000")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A way for bytes from one cluster to another. A line for both directions is two links, each with its capacity."""

    upstream: str
    downstream: str
    price_per_gb: float = 0.0  # of 10^9 bytes, in whatever money all prices of the world are in
    latency_s: float = 0.0  # one way
    capacity_bytes_per_s: float = math.inf

    def __post_init__(self) -> None:
        refuse_bad_name(self.upstream, "cluster")
        refuse_bad_name(self.downstream, "cluster")
        _require(self.upstream != self.downstream, "downstream", self.downstream, "another cluster than upstream")
        _check_terms(self.price_per_gb, self.latency_s, self.capacity_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tariff:
    """The terms of all links within one kind of place, for pairs of clusters without a link of their own."""

    scope: Scope
    price_per_gb: float = 0.0
    latency_s: float = 0.0
    capacity_bytes_per_s: float = math.inf  # of each link

    def __post_init__(self) -> None:
        _require(self.scope in SCOPES, "scope", self.scope, " or ".join(SCOPES))
        _check_terms(self.price_per_gb, self.latency_s, self.capacity_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """That a stream, produced in one cluster, is wanted in others, and what its way there may be like."""

    stream: str
    source: str
    destinations: tuple[str, ...] = (EVERYWHERE,)  # the source needs no mention
    bytes_per_s: float = 1e6  # as produced
    layers: int = 2  # the durable and the cache copy travel apart, so that each edge carries the bytes twice
    stays_in: tuple[str, ...] = ()  # jurisdictions that may hold it or pass it on; empty: all
    hops_max: int = HOPS_MAX
    joining_bytes_per_s: float = math.inf  # how fast a new cluster may catch up

    def __post_init__(self) -> None:
        refuse_bad_name(self.stream, "stream")
        refuse_bad_name(self.source, "cluster")
        for name in self.destinations:
            if name != EVERYWHERE:
                refuse_bad_name(name, "cluster")
        _require(len(set(self.destinations)) == len(self.destinations), "destinations", self.destinations, "each once")
        for name in self.stays_in:
            refuse_bad_name(name, "jurisdiction")
        _require(0 <= self.bytes_per_s < math.inf, "bytes_per_s", self.bytes_per_s, "0 or more")
        _require(1 <= self.layers <= 2, "layers", self.layers, "1 or 2")
        _require(1 <= self.hops_max <= 1000, "hops_max", self.hops_max, "1 to 1000")
        _require(self.joining_bytes_per_s > 0, "joining_bytes_per_s", self.joining_bytes_per_s, "more than 0")

    @property
    def edge_bytes_per_s(self) -> float:
        """What one edge of the copy tree carries."""
        return self.bytes_per_s * self.layers

    def allows(self, cluster: Cluster) -> bool:
        return not self.stays_in or cluster.jurisdiction in self.stays_in


@dataclass(frozen=True, kw_only=True)  # without slots, for the indexes below
class WorldMap:
    clusters: tuple[Cluster, ...] = ()
    links: tuple[Link, ...] = ()
    tariffs: tuple[Tariff, ...] = ()
    demands: tuple[Demand, ...] = ()

    def __post_init__(self) -> None:
        _refuse_twice("cluster", (cluster.name for cluster in self.clusters))
        _refuse_twice("link", (f"{link.upstream} to {link.downstream}" for link in self.links))
        _refuse_twice("tariff", (tariff.scope for tariff in self.tariffs))
        _refuse_twice("stream", (demand.stream for demand in self.demands))
        for link in self.links:
            for end in (link.upstream, link.downstream):
                self._refuse_unknown(end, f"link {link.upstream} to {link.downstream}")
        for demand in self.demands:
            self._check_demand(demand)

    @cached_property
    def _clusters(self) -> dict[str, Cluster]:
        return {cluster.name: cluster for cluster in self.clusters}

    @cached_property
    def _links(self) -> dict[tuple[str, str], Link]:
        return {(link.upstream, link.downstream): link for link in self.links}

    @cached_property
    def _tariffs(self) -> dict[str, Tariff]:
        return {tariff.scope: tariff for tariff in self.tariffs}

    def __contains__(self, name: str) -> bool:
        return name in self._clusters

    def cluster(self, name: str) -> Cluster:
        return self._clusters[name]

    def demand(self, stream: str) -> Demand:
        return next(demand for demand in self.demands if demand.stream == stream)

    def link(self, upstream: str, downstream: str) -> Link | None:
        """The link of their own, else one by tariff, else None: there is no direct way."""
        if upstream == downstream:
            return None
        if (own := self._links.get((upstream, downstream))) is not None:
            return own
        one, other = self._clusters[upstream], self._clusters[downstream]
        same_continent = one.continent == other.continent
        same_region = same_continent and one.region == other.region
        for scope, covers in (("region", same_region), ("continent", same_continent), ("world", True)):
            if covers and (tariff := self._tariffs.get(scope)) is not None:
                return Link(
                    upstream=upstream,
                    downstream=downstream,
                    price_per_gb=tariff.price_per_gb,
                    latency_s=tariff.latency_s,
                    capacity_bytes_per_s=tariff.capacity_bytes_per_s,
                )
        return None

    def links_from(self, upstream: str) -> Iterator[Link]:
        for cluster in self.clusters:
            if (link := self.link(upstream, cluster.name)) is not None:
                yield link

    def destinations(self, demand: Demand) -> tuple[str, ...]:
        """Where the stream is wanted besides its source, in the order of the clusters."""
        everywhere = EVERYWHERE in demand.destinations
        return tuple(
            cluster.name
            for cluster in self.clusters
            if cluster.name != demand.source
            and (cluster.name in demand.destinations or (everywhere and demand.allows(cluster)))
        )

    def _check_demand(self, demand: Demand) -> None:
        what = f"stream {demand.stream}"
        self._refuse_unknown(demand.source, f"{what}: source")
        named = [name for name in demand.destinations if name != EVERYWHERE]
        for name in named:
            self._refuse_unknown(name, f"{what}: destinations")
        for name in (demand.source, *named):
            if not demand.allows(self._clusters[name]):
                law = self._clusters[name].jurisdiction or "no jurisdiction"
                raise ConfigError(
                    f"{what}: its data stays in {', '.join(demand.stays_in)}, but {name} is under {law}; "
                    f"leave {name} out, or set its jurisdiction"
                )

    def _refuse_unknown(self, name: str, where: str) -> None:
        if name not in self._clusters:
            known = ", ".join(list(self._clusters)[:10]) + (", …" if len(self._clusters) > 10 else "")
            raise ConfigError(f"{where}: no cluster {name!r}; there are {known or 'none'}")


def _refuse_twice(what: str, names: Iterable[str]) -> None:
    seen = set()
    for name in names:
        if name in seen:
            raise ConfigError(f"{what} {name} is there twice; keep one")
        seen.add(name)


def _check_terms(price_per_gb: float, latency_s: float, capacity_bytes_per_s: float) -> None:
    _require(0 <= price_per_gb < math.inf, "price_per_gb", price_per_gb, "0 or more")
    _require(0 <= latency_s <= 3600, "latency_s", latency_s, "0 to 3600")
    _require(capacity_bytes_per_s > 0, "capacity_bytes_per_s", capacity_bytes_per_s, "more than 0")


def _require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(f"{name}={value!r}: use {wanted}")
