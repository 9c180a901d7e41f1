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
_LEASE_S = 15.0
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
        self._asked: set[str] = set()  # instances that have not ended yet
        self._usual = _complaints(load(store))  # what was wrong before is not our doing, and we do not wait for it

    @property
    def progress(self) -> Progress:
        return self._rollout.progress

    def run(self, tell: Callable[[Restarting], None], stopping: threading.Event) -> Progress:
        """Until all is done. RolloutStopped: nothing came forward for the deadline, or it was told to stop."""
        lease = self._acquire()
        if lease is None:
            raise ConfigError("another rollout of this world is under way: wait for its end; nothing was restarted")
        self._lease = lease
        try:
            return self._run(tell, stopping)
        finally:
            with suppress(TailraceError):
                self._lease.revoke()

    def _acquire(self) -> Lease | None:
        lease = self._store.lease(_LEASE_S)
        made = put_if_absent(self._store, _LOCK, f"since {self.before_us}".encode(), lease=lease.id)
        if made.succeeded:
            return lease
        lease.revoke()
        return None

    def _keep(self) -> None:
        """If we were silent for too long what we asked for is gone with our lease: ask again, unless there is another
        rollout by now."""
        try:
            self._lease.keep_alive()
        except LeaseExpired:
            if (lease := self._acquire()) is None:
                raise self._stopped("it was silent for too long, and another one has begun") from None
            self._lease = lease
            for instance in self._asked:
                ask_to_restart(self._store, instance, lease)

    def _run(self, tell: Callable[[Restarting], None], stopping: threading.Event) -> Progress:
        shown: Progress | None = None
        moved_s = self._clock.monotonic_s()
        while True:
            self._keep()
            seen = [one.process for one in processes(self._store)]
            orders = self._rollout.look(seen, _complaints(load(self._store)) - self._usual)
            for process in orders:
                ask_to_restart(self._store, process.instance, self._lease)
            self._asked = {one.instance for one in seen if one.instance in self._asked}
            self._asked |= {one.instance for one in orders}
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
