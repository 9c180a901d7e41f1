"""A world's clusters as those who compare them see them: by their folders where these are, else by their doors."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ..config import TlsConfig
from ..coordination import Coordination
from ..copytree import Compared, Comparison, FilesCheck
from ..errors import ConfigError, TailraceError, Unreachable
from ..wire import Blocks, CheckService, Holding
from .any_door import AnyDoor
from .cluster_registry import ClusterRegistry
from .deployed import cluster_folder, open_store
from .world import open_world
from .world_file import WorldFile, read_world_file

if TYPE_CHECKING:
    from ..wire import CheckPeer

Way = Literal["best", "folders", "calls"]
WAYS: tuple[Way, ...] = ("best", "folders", "calls")


@dataclass(slots=True)
class Verdict:
    """By stream; `ways`: how each cluster was asked."""

    streams: dict[str, Compared] = field(default_factory=dict)
    ways: dict[str, str] = field(default_factory=dict)

    @property
    def together(self) -> Compared:
        found = Compared()
        for one in self.streams.values():
            found.add(one)
        return found


def verify_across(
    path: str,
    streams: Sequence[str] = (),
    *,
    way: Way = "best",
    tls: TlsConfig | None = None,
    on_progress: Callable[[int], object] = lambda count: None,
) -> Verdict:
    """Compare every copy of these streams, or of all in the world's file, with what its source has."""
    file, verdict = read_world_file(path), Verdict()
    demands = {demand.stream: demand for demand in file.world.demands}
    for name in streams:
        if name not in demands:
            raise ConfigError(f"{path} has no stream {name!r}; there is {', '.join(demands) or 'none'}")
    with _Clusters(path, file, way, tls) as clusters:
        for name in streams or demands:
            source = clusters.check(demands[name].source)
            copies: dict[str, CheckService] = {}
            unasked: dict[str, TailraceError] = {}
            for cluster in file.world.destinations(demands[name]):
                try:
                    copies[cluster] = clusters.check(cluster)
                except TailraceError as problem:
                    unasked[cluster] = problem
            found = Comparison(name, source, copies, on_progress=on_progress).run()
            found.problems |= unasked
            verdict.streams[name] = found
        verdict.ways = dict(clusters.ways)
    return verdict


class _Clusters:
    def __init__(self, path: str, file: WorldFile, way: Way, tls: TlsConfig | None) -> None:
        self._path, self._file, self._way, self._tls = path, file, way, tls
        self._undo = ExitStack()
        self._known: dict[str, CheckService] = {}
        self._store: Coordination | None = None
        self.ways: dict[str, str] = {}

    def __enter__(self) -> "_Clusters":
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def check(self, cluster: str) -> CheckService:
        if cluster not in self._known:
            self._known[cluster] = self._find(cluster)
        return self._known[cluster]

    def _find(self, cluster: str) -> CheckService:
        folder = cluster_folder(self._path, self._file.world.cluster(cluster))
        if self._way != "calls" and os.path.isdir(folder):
            self.ways[cluster] = "folder"
            return FilesCheck(self._undo.enter_context(open_world(folder)).files)
        if self._way == "folders":
            raise ConfigError(f"{cluster}: there is no folder {folder} here; --through calls asks its processes")
        if self._store is None:
            self._store = self._undo.enter_context(open_store(self._path, self._file))
        doors = ClusterRegistry(self._store).all_doors().get(cluster, {})
        addresses = [address for role in ("writer", "scheduler") for address in doors.get(role, ())]
        if not addresses:
            raise Unreachable(
                f"{cluster}: its folder {folder} is not here, and none of its processes is known; is it up?"
            )
        self.ways[cluster] = "calls"
        from ..wire import CheckPeer  # with it comes gRPC

        return _Asked(
            self._undo.enter_context(
                AnyDoor(cluster, lambda: addresses, lambda address: CheckPeer(address, tls=self._tls))
            )
        )


class _Asked:
    """Implements CheckService, by whoever of a cluster answers."""

    def __init__(self, door: "AnyDoor[CheckPeer]") -> None:
        self._door = door

    def holding(self, stream: str, shard: int) -> Holding | None:
        return self._door.ask(lambda peer: peer.holding(stream, shard))

    def hashes(self, blocks: Blocks) -> bytes:
        return self._door.ask(lambda peer: peer.hashes(blocks))
