"""Monitors of a world: one in each cluster sees how far streams are there and when messages came; side by side they
tell what each hop adds and where a stream is stuck.

A cluster's monitor tells what it sees in the world's store, so that anybody can look at the whole world. Who has the
clusters' folders at hand sees for himself.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from typing import Any, Self

from ..coordination import Coordination, Put
from ..copytree import load
from ..copytree.hops import HopWatch, ShardSight, Sight, StreamReport, read_sight, write_sight
from ..env import Clock, SystemClock
from ..errors import Corrupt, TailraceError
from ..model import CopyTree
from .deployed import cluster_folder, open_store
from .telling import HeldLease
from .world import World, open_world
from .world_file import read_world_file

PREFIX = "monitors/"  # … CLUSTER: what its monitor sees
LEASE_S, TELL_S = 6.0, 1.0
_STEP_S = 0.2
_LOOK_S = 1.0  # how often for new streams


class ClusterMonitor:
    """Follows the streams of one cluster as a consumer does, in a thread of its own. `tell` is given what it sees, each
    second. `streams`: which; all if none is named."""

    def __init__(
        self,
        world: World,
        streams: Iterable[str] = (),
        *,
        tell: Callable[[Sight], object] = lambda sight: None,
        clock: Clock | None = None,
    ) -> None:
        self._world, self._wanted, self._tell = world, frozenset(streams), tell
        self._clock = clock or SystemClock()
        self.sight: Sight = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace monitor", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)

    # ---- inside

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._watch(self._there())
            except TailraceError:  # a stream was deleted or made anew, or bytes are bad: begin again
                self._closed.wait(_LOOK_S)

    def _there(self) -> list[str]:
        there = self._world.streams()
        return [name for name in there if not self._wanted or name in self._wanted]

    def _watch(self, streams: list[str]) -> None:
        """Until there are others."""
        if not streams:
            self._closed.wait(_STEP_S)
            return
        with self._world.monitor(*streams, compare=False) as monitor:
            told_s = looked_s = self._clock.monotonic_s()
            while not self._closed.is_set():
                monitor.step(_STEP_S)
                now_s = self._clock.monotonic_s()
                if now_s >= told_s + TELL_S or not self.sight:
                    told_s = now_s
                    self.sight = _sight(monitor.sightings())
                    self._tell(self.sight)
                if now_s >= looked_s + _LOOK_S:
                    looked_s = now_s
                    if self._there() != streams:
                        return


def _sight(sightings: Mapping[tuple[str, int], Mapping[str, Any]]) -> Sight:
    found: dict[str, list[ShardSight]] = {}
    for (stream, _), one in sorted(sightings.items()):
        found.setdefault(stream, []).append(ShardSight(**one))
    return {stream: tuple(shards) for stream, shards in found.items()}


class ClusterTeller:
    """Keeps what a cluster's monitor sees in the world's store, for as long as it is seen."""

    def __init__(self, store: Coordination, cluster: str, clock: Clock | None = None) -> None:
        self._store, self._key = store, f"{PREFIX}{cluster}"
        self._clock = clock or SystemClock()
        self._lease = HeldLease(store, LEASE_S)

    def tell(self, sight: Sight) -> None:
        with suppress(TailraceError):  # the store is away: next time
            lease, _ = self._lease.hold()
            self._store.transact((), [Put(self._key, write_sight(sight, self._clock.time_us()), lease)])

    def close(self) -> None:
        self._lease.release()


def told_sights(store: Coordination) -> dict[str, Sight]:
    """What the monitors of all clusters have told, by cluster."""
    sights = {}
    for entry in store.range(PREFIX).entries:
        with suppress(Corrupt):  # of another version: its cluster counts as unseen
            sights[entry.key.removeprefix(PREFIX)] = read_sight(entry.value, entry.key)
    return sights


class WorldMonitor:
    """The hops of a whole world. Clusters whose folders are here are watched; of the others their monitors tell."""

    def __init__(self, path: str, streams: Iterable[str] = (), clock: Clock | None = None) -> None:
        self._wanted = frozenset(streams)
        self._clock = clock or SystemClock()
        self._watch = HopWatch()
        file = read_world_file(path)
        with ExitStack() as undo:
            self._store = undo.enter_context(open_store(path, file))
            self._here: dict[str, ClusterMonitor] = {}
            for cluster in file.world.clusters:
                folder = cluster_folder(path, cluster)
                if os.path.isdir(folder):
                    world = undo.enter_context(open_world(folder))
                    self._here[cluster.name] = monitor = ClusterMonitor(world, self._wanted, clock=clock)
                    undo.callback(monitor.close)
            self._undo = undo.pop_all()

    def look(self) -> list[StreamReport]:
        """What is to be seen now; call it every now and then."""
        sights = told_sights(self._store) | {name: monitor.sight for name, monitor in self._here.items()}
        return self._watch.see(self._trees(), sights, self._clock.monotonic_s())

    def _trees(self) -> list[CopyTree]:
        trees = load(self._store).trees
        return [tree for stream, tree in trees.items() if not self._wanted or stream in self._wanted]

    def close(self) -> None:
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def described(reports: Iterable[StreamReport]) -> dict[str, Any]:
    """Plain values, for programs."""
    return {
        "streams": [
            {
                "stream": one.stream,
                "source": one.source,
                "producer": one.producer,
                "trouble": one.words,
                "hops": [
                    {"from": hop.upstream, "to": hop.downstream}
                    | {
                        name: value
                        for name, value in asdict(hop).items()
                        if name not in ("stream", "upstream", "downstream")
                    }
                    for hop in one.hops
                ],
            }
            for one in reports
        ]
    }
