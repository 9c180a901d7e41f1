"""Decide which processes of a world may be restarted next.

Always holds, within a cluster:
- of the replicas of a key, one restarts at a time, and the next only after it has repaired what it lost;
- of the readers, and of the writers, at most a third restarts at a time (if there are fewer than three: one);
- no scheduler restarts while a reader or writer does. A process that is both restarts with nothing else.
And in the world: one cluster at a time, and nothing begins while a process is missing or something else is wrong.

Pure: what is seen goes in, restarts come out. `run.py` feeds and obeys it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["cache", "writer", "reader", "scheduler", "ambassador", "monitor", "together"]
_ORDER: tuple[Kind, ...] = ("cache", "writer", "reader", "scheduler", "ambassador", "monitor", "together")
_ALONE: tuple[Kind, ...] = ("scheduler", "writer", "reader", "cache", "ambassador")
_WORKERS = frozenset(("reader", "writer"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One that runs. `name` is the same for whoever takes its place, `instance` is not."""

    cluster: str
    name: str
    instance: str
    roles: frozenset[str]
    started_us: int = 0
    backends: frozenset[tuple[str, int]] = frozenset()  # (cache, number) of those that it serves
    ready: bool = True  # it does its work, and its backends have all that they should

    @property
    def kind(self) -> Kind:
        if "scheduler" in self.roles and self.roles & _WORKERS:
            return "together"
        return next((kind for kind in _ALONE if kind in self.roles), "monitor")


@dataclass(frozen=True, slots=True)
class Ring:
    """A cache: how many backends it has, and how many of them, neighbours, have a copy of each key."""

    backends: int
    copies: int


@dataclass(frozen=True, slots=True)
class Progress:
    restarted: int
    under_way: tuple[str, ...]  # CLUSTER/NAME
    left: int
    waits_for: str  # in words; empty: for nothing

    @property
    def done(self) -> bool:
        return not self.left and not self.under_way and not self.waits_for


@dataclass(slots=True)
class _Wave:
    cluster: str = ""
    asked: dict[str, Process] = field(default_factory=dict)  # by instance


class Rollout:
    """`processes`: all that run now; those that started before `before_us` are to be restarted, in the order of
    `clusters`, the others are not. `rings` by (cluster, cache)."""

    def __init__(
        self,
        processes: Sequence[Process],
        clusters: Iterable[str],
        rings: Mapping[tuple[str, str], Ring],
        before_us: int,
    ) -> None:
        self._clusters, self._rings = list(clusters), dict(rings)
        self._due = {
            one.instance: one for one in processes if one.cluster in self._clusters and one.started_us < before_us
        }
        self._total = len(self._due)
        self._expected = Counter(_place(one) for one in processes if one.cluster in self._clusters)
        self._wave = _Wave()
        self._progress = Progress(0, (), self._total, "")

    @property
    def progress(self) -> Progress:
        return self._progress

    def look(self, processes: Sequence[Process], complaints: Collection[str] = ()) -> list[Process]:
        """What to restart now, given what runs, and what else is wrong in the world, in words."""
        here = {one.instance: one for one in processes}
        for instance in [instance for instance in self._due if instance not in here]:
            del self._due[instance]  # it ended, whether it was asked to or not
        waits_for = self._lacking(here, complaints)
        if not any(instance in here for instance in self._wave.asked) and not waits_for:
            self._wave = _Wave()
        orders: list[Process] = []
        if not self._wave.asked and not waits_for and self._due:
            orders = self._next_wave(here)
            self._wave = _Wave(orders[0].cluster, {one.instance: one for one in orders})
            for one in orders:
                del self._due[one.instance]
        under_way = tuple(f"{one.cluster}/{one.name}" for one in self._wave.asked.values())
        restarted = self._total - len(self._due) - len(under_way)
        self._progress = Progress(restarted, under_way, len(self._due), waits_for)
        return orders

    def _lacking(self, here: Mapping[str, Process], complaints: Collection[str]) -> str:
        """What must come right before anything more is restarted."""
        running = Counter(_place(one) for one in here.values() if one.instance not in self._wave.asked)
        away = [place for place, count in self._expected.items() if running[place] < count]
        if away:
            return f"{', '.join(map('/'.join, away))} to be back"
        busy = [one for one in here.values() if one.cluster in self._clusters and not one.ready]
        if busy:
            return ", ".join(
                f"{'/'.join(_place(one))} to {'repair what it lost' if one.backends else 'do its work'}" for one in busy
            )
        return f"the world to be well: {'; '.join(sorted(complaints))}" if complaints else ""

    def _next_wave(self, here: Mapping[str, Process]) -> list[Process]:
        due = [here[instance] for instance in self._due]
        cluster = min((one.cluster for one in due), key=self._clusters.index)
        due = sorted((one for one in due if one.cluster == cluster), key=lambda one: (_ORDER.index(one.kind), one.name))
        kind = due[0].kind
        of_kind = sum(1 for one in here.values() if one.cluster == cluster and one.kind == kind)
        limit = 1 if kind == "together" else max(1, of_kind // 3)
        wave: list[Process] = []
        for one in due:
            if one.kind == kind and len(wave) < limit and not any(self._share(one, other) for other in wave):
                wave.append(one)
        return wave

    def _share(self, one: Process, other: Process) -> bool:
        """Whether a key may have copies in both."""
        for cache, number in one.backends:
            ring = self._rings.get((one.cluster, cache))
            for other_cache, other_number in other.backends:
                if cache != other_cache:
                    continue
                if ring is None:
                    return True
                apart = abs(number - other_number)
                if min(apart, ring.backends - apart) < ring.copies:
                    return True
        return False


def _place(process: Process) -> tuple[str, str]:
    return process.cluster, process.name
