"""Keep the copy trees of a world right while clusters fall ill, recover, come and go.

Always holds: the newest tree that was ordered for a stream fits the newest map. A cluster that was late or away counts
as bad until it has been well for `probation_s`, so that a tree does not swing to and fro with it.

Pure: events in, orders out; the time is part of each event. `router.py` feeds and obeys it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from tailrace.model import CopyTree, WorldMap

from .outages import blame
from .plan import Plan, Planner
from .preferences import Preferences
from .task import Conditions, Load

Pair = tuple[str, str]
T = TypeVar("T", str, tuple[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    settle_s: float = 0.2  # reports of one outage come one after the other: whom to blame is decided after this
    probation_s: float = 30.0  # how long a cluster or link must have been well


@dataclass(frozen=True, slots=True)
class WorldChanged:
    world: WorldMap
    preferences: Preferences = field(default_factory=Preferences)


@dataclass(frozen=True, slots=True)
class ClusterReported:
    """What a cluster says of itself: the streams that come late to it, and clusters it cannot send to."""

    cluster: str
    late: frozenset[str] = frozenset()
    cut: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ClusterSilent:
    """Nothing was heard of a cluster for too long, or an operator took it out."""

    cluster: str


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """A cluster that joined a stream is at the head for the first time."""

    stream: str
    cluster: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


Event = WorldChanged | ClusterReported | ClusterSilent | CaughtUp | Tick


@dataclass(frozen=True, slots=True)
class PublishTree:
    plan: Plan
    why: str

    @property
    def tree(self) -> CopyTree:
        return self.plan.tree


class Rerouting:
    def __init__(self, trees: Iterable[CopyTree] = (), patience: Patience | None = None) -> None:
        """`trees`: as they were published last, so that a new router goes on where the old one was."""
        self.trees = {tree.stream: tree for tree in trees}
        self._patience = patience or Patience()
        self._planner: Planner | None = None
        self._late: dict[str, set[str]] = {}  # by stream, the clusters it comes late to
        self._cut: set[Pair] = set()
        self._silent: set[str] = set()
        self._settled_s: float | None = None  # then the reports are complete enough to decide
        # What counts as bad, and since when it has been well again; infinite while it is not.
        self._bad_clusters: dict[str, float] = {}
        self._bad_links: dict[Pair, float] = {}

    @property
    def conditions(self) -> Conditions:
        return Conditions(bad_clusters=frozenset(self._bad_clusters), bad_links=frozenset(self._bad_links))

    @property
    def due_s(self) -> float | None:
        """When a Tick has something to do; None if nothing waits."""
        well = [since_s for since_s in (*self._bad_clusters.values(), *self._bad_links.values()) if since_s < math.inf]
        times = [since_s + self._patience.probation_s for since_s in well]
        return min([*times, *([] if self._settled_s is None else [self._settled_s])], default=None)

    def handle(self, event: Event, now_s: float) -> list[PublishTree]:
        orders: list[PublishTree] = []
        match event:
            case WorldChanged(world, preferences):
                orders += self._take_world(world, preferences)
            case ClusterReported():
                self._take_report(event, now_s)
            case ClusterSilent(cluster):
                if cluster not in self._silent:
                    self._silent.add(cluster)
                    self._settled_s = now_s  # nothing to wait for
            case CaughtUp(stream, cluster):
                orders += self._promote(stream, cluster)
            case Tick():
                pass
        if self._settled_s is not None and now_s >= self._settled_s:
            self._settled_s = None
            orders += self._reroute(now_s)
        return orders + self._forgive(now_s)

    def _take_world(self, world: WorldMap, preferences: Preferences) -> list[PublishTree]:
        self._planner = Planner(world, preferences)
        for stream in set(self.trees) - {demand.stream for demand in world.demands}:
            del self.trees[stream]
        self._bad_clusters = {name: since for name, since in self._bad_clusters.items() if name in world}
        return self._plan_again([demand.stream for demand in world.demands], "the world's configuration changed")

    def _take_report(self, report: ClusterReported, now_s: float) -> None:
        before = (report.cluster in self._silent, self._late_streams(report.cluster), self._cut_from(report.cluster))
        self._silent.discard(report.cluster)
        for stream in report.late | set(self._late):
            (set.add if stream in report.late else set.discard)(self._late.setdefault(stream, set()), report.cluster)
        self._cut = {pair for pair in self._cut if pair[0] != report.cluster}
        self._cut |= {(report.cluster, other) for other in report.cut}
        if before != (False, set(report.late), set(report.cut)) and self._settled_s is None:
            self._settled_s = now_s + self._patience.settle_s

    def _late_streams(self, cluster: str) -> set[str]:
        return {stream for stream, late in self._late.items() if cluster in late}

    def _cut_from(self, cluster: str) -> set[str]:
        return {downstream for upstream, downstream in self._cut if upstream == cluster}

    def _reroute(self, now_s: float) -> list[PublishTree]:
        clusters, links = set(self._silent), set(self._cut)
        for tree in self.trees.values():
            # Who is silent brings nothing on, so those behind it are late whatever they say, or do not say.
            late = (self._late.get(tree.stream, set()) | self._silent) - {tree.source}
            found = blame(tree, late)
            clusters |= found.clusters
            # A cluster that stayed late after its way was changed is ill itself: no more of its ways are blamed.
            links |= {link for link in found.links if link[1] not in self._bad_clusters and link[1] not in self._silent}
        newly = self._note(self._bad_clusters, clusters, now_s)
        newly_links = self._note(self._bad_links, links, now_s)
        if not newly and not newly_links:
            return []
        named = ", ".join([*sorted(newly), *(f"{u} to {v}" for u, v in sorted(newly_links))])
        hurt = [
            stream
            for stream, tree in self.trees.items()
            if any(tree.downstream(name) for name in newly)
            or any(tree.upstream(downstream) == upstream for upstream, downstream in newly_links)
        ]
        return self._plan_again(hurt, f"around {named}")

    def _note(self, bad: dict[T, float], now_bad: set[T], now_s: float) -> set[T]:
        """Bring up to date since when each is well; those that are newly bad."""
        newly = now_bad - bad.keys()
        for name, since_s in bad.items():
            if since_s == math.inf and name not in now_bad:
                bad[name] = now_s
        bad.update(dict.fromkeys(now_bad, math.inf))
        return newly

    def _forgive(self, now_s: float) -> list[PublishTree]:
        limit_s = now_s - self._patience.probation_s
        well = [name for name, since_s in self._bad_clusters.items() if since_s <= limit_s]
        well_links = [link for link, since_s in self._bad_links.items() if since_s <= limit_s]
        if not well and not well_links:
            return []
        for name in well:
            del self._bad_clusters[name]
        for link in well_links:
            del self._bad_links[link]
        named = ", ".join([*sorted(well), *(f"{u} to {v}" for u, v in sorted(well_links))])
        return self._plan_again(list(self.trees), f"{named} well again")

    def _promote(self, stream: str, cluster: str) -> list[PublishTree]:
        tree = self.trees.get(stream)
        hop = tree.hop(cluster) if tree else None
        if hop is None or not hop.joining:
            return []
        return self._plan_again([stream], f"{cluster} is at the head", promoted=cluster)

    def _plan_again(self, streams: list[str], why: str, promoted: str | None = None) -> list[PublishTree]:
        planner = self._planner
        if planner is None:
            return []
        orders = []
        for stream in streams:
            demand, current = planner.world.demand(stream), self.trees.get(stream)
            load = Load()
            for other in planner.world.demands:
                if other.stream != stream and (tree := self.trees.get(other.stream)) is not None:
                    load.add(tree, other.edge_bytes_per_s)
            conditions = Conditions(
                bad_clusters=frozenset(self._bad_clusters),
                bad_links=frozenset(self._bad_links),
                joining=self._joining(planner.world.destinations(demand), current) - {promoted},
            )
            plan = planner.plan_stream(demand, conditions, load, current)
            if plan.tree != current:
                self.trees[stream] = plan.tree
                orders.append(PublishTree(plan, why))
        return orders

    def _joining(self, destinations: Iterable[str], current: CopyTree | None) -> frozenset[str]:
        """Whoever was not in the tree, or has not caught up since. With its first tree a stream is still empty."""
        if current is None:
            return frozenset()
        return frozenset(name for name in destinations if (hop := current.hop(name)) is None or hop.joining)
