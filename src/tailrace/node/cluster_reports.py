"""What a cluster says of itself to the router: that it is there, what comes late to it, whom it cannot reach.

One process of the cluster speaks, the one that schedules. It is held by a short lease: a cluster that is gone is
noticed by its silence.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from ..coordination import Coordination, Lease
from ..copytree.world_record import report
from ..errors import LeaseExpired, TailraceError
from ..wire import Operation, Running

LEASE_S = 1.0
_SAY_S = 0.2
HEAD_BYTES = 1 << 20  # so close to the head a copy counts as caught up …
FAR_BYTES = 64 << 20  # … until it is so far behind


@dataclass(frozen=True, slots=True)
class Health:
    late: frozenset[str] = frozenset()  # streams
    cut: frozenset[str] = frozenset()  # clusters that none of our operations reaches
    caught_up: frozenset[str] = frozenset()  # streams


def unreachable(running: dict[Operation, Running]) -> frozenset[str]:
    """Clusters to which all operations have failed."""
    targets: dict[str, list[bool]] = {}
    for operation, state in running.items():
        targets.setdefault(operation.target, []).append(state.state == "failed")
    return frozenset(target for target, failed in targets.items() if all(failed))


class ClusterReports:
    def __init__(self, store: Coordination, cluster: str, health: Callable[[], Health]) -> None:
        self._store, self._cluster, self._health = store, cluster, health
        self._lease: Lease | None = None
        self._said: Health | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tailrace report {cluster}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        with suppress(TailraceError):
            if self._lease is not None:
                self._lease.revoke()

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(TailraceError):  # the store is away: next time
                self._say()
            self._closed.wait(_SAY_S)

    def _say(self) -> None:
        try:
            if self._lease is not None:
                self._lease.keep_alive()
        except LeaseExpired:
            self._lease = None
        if self._lease is None:
            self._lease, self._said = self._store.lease(LEASE_S), None
        health = self._health()
        if health != self._said:
            report(
                self._store,
                self._cluster,
                late=health.late,
                cut=health.cut,
                caught_up=health.caught_up,
                lease=self._lease.id,
            )
            self._said = health
