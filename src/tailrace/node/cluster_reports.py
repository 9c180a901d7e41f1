"""What a cluster says of itself to the router: that it is there, what comes late to it, whom it cannot reach.

One process of the cluster speaks, the one that schedules; writers of other processes tell it what arrives at them:

arrivals/CLUSTER/NUMBER    {"late": [streams], "behind": [streams], "caught_up": [streams]}

All is held by short leases: a cluster that is gone is noticed by its silence.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ..coordination import Coordination, Put
from ..copytree.world_record import report
from ..wire import Operation, Running
from .telling import Telling

LEASE_S = 1.0
_SAY_S = 0.2
_ARRIVALS = "arrivals/"
HEAD_BYTES = 1 << 20  # so close to the head a copy counts as caught up …
FAR_BYTES = 64 << 20  # … until it is so far behind


@dataclass(frozen=True, slots=True)
class Health:
    late: frozenset[str] = frozenset()  # streams
    cut: frozenset[str] = frozenset()  # clusters that none of our operations reaches
    caught_up: frozenset[str] = frozenset()  # streams
    behind: frozenset[str] = frozenset()  # streams of which some shard is not at the head

    def with_arrivals(self, others: "Iterable[Health]") -> "Health":
        """What several writers know, put together: a stream is at the head when all of its shards are.

        >>> here = Health(caught_up=frozenset({"s", "t"}))
        >>> there = Health(behind=frozenset({"t"}), late=frozenset({"t"}))
        >>> sorted(here.with_arrivals([there]).caught_up), sorted(here.with_arrivals([there]).late)
        (['s'], ['t'])
        """
        all_of = [self, *others]
        behind = frozenset[str]().union(*(one.behind for one in all_of))
        return Health(
            late=frozenset[str]().union(*(one.late for one in all_of)),
            cut=self.cut,
            caught_up=frozenset[str]().union(*(one.caught_up for one in all_of)) - behind,
            behind=behind,
        )


def unreachable(running: dict[Operation, Running]) -> frozenset[str]:
    """Clusters to which all operations have failed."""
    targets: dict[str, list[bool]] = {}
    for operation, state in running.items():
        targets.setdefault(operation.target, []).append(state.state == "failed")
    return frozenset(target for target, failed in targets.items() if all(failed))


def arrivals_elsewhere(store: Coordination, cluster: str, number: int) -> list[Health]:
    """What writers of other processes of a cluster tell."""
    found = []
    for entry in store.range(f"{_ARRIVALS}{cluster}/").entries:
        if not entry.key.endswith(f"/{number:05d}"):
            with suppress(ValueError, AttributeError, TypeError):  # one of another release: it does not count
                told = json.loads(entry.value)
                late, behind, caught_up = (frozenset(told.get(name, ())) for name in ("late", "behind", "caught_up"))
                found.append(Health(late=late, behind=behind, caught_up=caught_up))
    return found


class ClusterReports:
    """`writer`: the number of one that tells the cluster's schedulers what arrives at it, instead of the world."""

    def __init__(
        self, store: Coordination, cluster: str, health: Callable[[], Health], writer: int | None = None
    ) -> None:
        self._store, self._cluster, self._health, self._writer = store, cluster, health, writer
        self._said: Health | None = None
        self._telling = Telling(store, self._say, lease_s=LEASE_S, every_s=_SAY_S, name=f"tailrace report {cluster}")

    def close(self) -> None:
        self._telling.close()

    def _say(self, lease: int, anew: bool) -> None:
        health = self._health()
        if health == self._said and not anew:
            return
        if self._writer is not None:
            told = {"late": sorted(health.late), "behind": sorted(health.behind), "caught_up": sorted(health.caught_up)}
            key = f"{_ARRIVALS}{self._cluster}/{self._writer:05d}"
            self._store.transact((), [Put(key, json.dumps(told).encode(), lease)])
        else:
            report(
                self._store,
                self._cluster,
                late=health.late,
                cut=health.cut,
                caught_up=health.caught_up,
                lease=lease,
            )
        self._said = health
