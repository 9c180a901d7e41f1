"""Carry a rolling restart out: look at the world's store, ask processes to restart, wait. None of the deciding.

One at a time in a world, by lease. If it is ended half-way, what was restarted stays so, and the next one can go on
with what started before the same time.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from ...config import DATA_CACHE
from ...coordination import Coordination, Lease, put_if_absent
from ...copytree import WorldState, load
from ...env import Clock
from ...errors import CacheMissing, ConfigError, LeaseExpired, TailraceError
from ..cache_registry import CacheRegistry, cache_names
from ..process_registry import ask_to_restart, processes
from .plan import Process, Progress, Ring, Rollout

_LOCK = "rollout"
_LEASE_S = 5.0
_LOOK_S = 0.1


class RolloutStopped(TailraceError):
    """Not everything was restarted. What was stays so; `restarted` says how many."""

    took_effect: bool | None = True

    def __init__(self, message: str, restarted: int) -> None:
        super().__init__(message)
        self.restarted = restarted


@dataclass(frozen=True, slots=True)
class Restarting:
    """Something to tell: these were asked to restart, or where it stands."""

    asked: tuple[Process, ...]
    progress: Progress


class RollingRestart:
    """`own_stores`: those of clusters that can be looked into from here, where their caches are registered. Of the
    others any two backends of a cache are taken to share keys."""

    def __init__(
        self,
        store: Coordination,
        clusters: list[str],
        own_stores: Mapping[str, Coordination],
        clock: Clock,
        *,
        before_us: int | None = None,
        deadline_s: float = 600.0,
    ) -> None:
        self._store, self._clock, self._deadline_s = store, clock, deadline_s
        self.before_us = time.time_ns() // 1000 if before_us is None else before_us
        found = [one.process for one in processes(store)]
        there = {one.cluster for one in found}
        if missing := [cluster for cluster in clusters if cluster not in there]:
            raise ConfigError(
                f"no process of {', '.join(missing)} is known to run: start the world first; nothing was restarted"
            )
        self._rollout = Rollout(found, clusters, _rings(own_stores), self.before_us)
        self._usual = _complaints(load(store))  # what was wrong before is not our doing, and we do not wait for it

    @property
    def progress(self) -> Progress:
        return self._rollout.progress

    def run(self, tell: Callable[[Restarting], None], stopping: threading.Event) -> Progress:
        """Until all is done. RolloutStopped: nothing came forward for the deadline, or it was told to stop."""
        lease = self._store.lease(_LEASE_S)
        try:
            made = put_if_absent(self._store, _LOCK, f"since {self.before_us}".encode(), lease=lease.id)
            if not made.succeeded:
                raise ConfigError("another rollout of this world is under way: wait for its end; nothing was restarted")
            return self._run(lease, tell, stopping)
        finally:
            with suppress(TailraceError):
                lease.revoke()

    def _run(self, lease: Lease, tell: Callable[[Restarting], None], stopping: threading.Event) -> Progress:
        shown: Progress | None = None
        moved_s = self._clock.monotonic_s()
        while True:
            try:
                lease.keep_alive()
            except LeaseExpired:
                raise self._stopped("it was silent for too long, and another one may have begun") from None
            seen = [one.process for one in processes(self._store)]
            orders = self._rollout.look(seen, _complaints(load(self._store)) - self._usual)
            for process in orders:
                ask_to_restart(self._store, process.instance, lease)
            progress = self._rollout.progress
            if progress != shown:
                tell(Restarting(tuple(orders), progress))
                shown, moved_s = progress, self._clock.monotonic_s()
            if progress.done:
                return progress
            if self._clock.monotonic_s() > moved_s + self._deadline_s:
                raise self._stopped(f"it waited {self._deadline_s:g} s in vain for {progress.waits_for or 'an end'}")
            if stopping.is_set():
                raise self._stopped("it was told to stop")
            self._clock.wait(stopping, _LOOK_S)

    def _stopped(self, why: str) -> RolloutStopped:
        progress = self._rollout.progress
        left = progress.left + len(progress.under_way)
        return RolloutStopped(
            f"the rollout stopped: {why}. {progress.restarted} processes were restarted and {left} were not; look at "
            f"what it waited for, then go on with --before {self.before_us}",
            progress.restarted,
        )


def _rings(own_stores: Mapping[str, Coordination]) -> dict[tuple[str, str], Ring]:
    rings = {}
    for cluster, store in own_stores.items():
        for cache in {*cache_names(store), DATA_CACHE}:
            with suppress(CacheMissing):
                config = CacheRegistry(store, cache).record().config
                rings[cluster, cache] = Ring(config.backends, config.copies)
    return rings


def _complaints(state: WorldState) -> set[str]:
    """What clusters say is wrong."""
    words = {f"{name} says nothing" for name in (one.name for one in state.world.clusters) if name not in state.reports}
    for name, report in state.reports.items():
        words |= {f"{stream} comes late to {name}" for stream in report.late}
        words |= {f"{name} cannot send to {other}" for other in report.cut}
    return words
