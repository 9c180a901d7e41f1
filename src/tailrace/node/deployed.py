"""A cluster as its world's file describes it: where its files are, its store, and the processes that it wants."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from ..config import DATA_CACHE, LENGTHS_CACHE
from ..coordination import Coordination
from ..copytree.world_record import change_map
from ..errors import CacheExists, ConfigError, StreamExists
from ..model import Cluster
from .coordination_store import open_coordination
from .supervision import ProcessPlan
from .world import World, open_world
from .world_file import WorldFile, read_world_file

_COPIES = 3  # of a cache with so many backends or more


class Deployed:
    def __init__(self, path: str, cluster: str) -> None:
        self.path, self.file = path, read_world_file(path)
        if cluster not in self.file.world:
            known = ", ".join(one.name for one in self.file.world.clusters)
            raise ConfigError(f"{path}: no cluster {cluster!r}; there are {known or 'none'}")
        self.cluster = self.file.world.cluster(cluster)
        self.folder = cluster_folder(path, self.cluster)
        self.tls = self.file.tls_of(cluster, os.path.dirname(os.path.abspath(path)))

    def make_caches(self, world: World) -> None:
        """The two caches of the cluster, with as many backends as its file says; as they are if they are there."""
        backends = max(1, self.cluster.sizes.cache)
        mode = "R=3.2" if backends >= _COPIES else "R=1"
        for name in (DATA_CACHE, LENGTHS_CACHE):
            with suppress(CacheExists):
                # Not embedded: while a server restarts, nobody who writes must take its place.
                world.create_cache(name, mode=mode, backends=backends, embedded=not self.cluster.sizes.cache)

    @contextmanager
    def node(self, world: World, roles: Sequence[str], **settings: Any) -> Iterator[Any]:
        from .cluster import ClusterNode  # with it comes gRPC

        with open_store(self.path, self.file) as store:
            node = ClusterNode(world, self.folder, self.cluster.name, store, roles, **settings)
            try:
                yield node
            finally:
                node.close()


def cluster_folder(path: str, cluster: Cluster) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(path)), cluster.folder or cluster.name)


def open_store(path: str, file: WorldFile) -> Coordination:
    """The world's own store: which tree a stream takes, who is where."""
    return open_coordination(file.coordination, os.path.dirname(os.path.abspath(path)))


def publish(path: str, file: WorldFile, store: Coordination) -> None:
    """Tell the world what its file says: the map goes to the store, new streams are made where they are produced."""
    change_map(store, lambda world, preferences: (file.world, file.preferences))
    for demand in file.world.demands:
        if (settings := file.settings.get(demand.stream)) is not None:
            with open_world(cluster_folder(path, file.world.cluster(demand.source))) as world, suppress(StreamExists):
                world.create_stream(demand.stream, settings)


def make_all_caches(path: str, file: WorldFile) -> None:
    """Before anybody who writes makes them as they would be without servers."""
    for cluster in file.world.clusters:
        if cluster.sizes.cache:
            deployed = Deployed(path, cluster.name)
            with open_world(deployed.folder) as world:
                deployed.make_caches(world)


def process_plans(path: str, file: WorldFile, *, together: bool, listen: str | None = None) -> list[ProcessPlan]:
    """The processes of all clusters. `together`: one for all roles of a cluster. `listen`: a host at which they take
    each other's calls, rather than by sockets of this machine."""
    plans = []
    for cluster in file.world.clusters:
        sizes = cluster.sizes
        roles = ("cache", "writer", "reader", "scheduler", "monitor")
        counts: dict[str, int] = {role: getattr(sizes, role) for role in roles}
        if together:
            if wanted := ",".join(role for role in roles if counts[role]):
                plans.append(_plan(path, cluster.name, wanted, 0, listen))
            continue
        for role, count in counts.items():
            plans += [_plan(path, cluster.name, role, number, listen) for number in range(count)]
    return plans


def _plan(path: str, cluster: str, roles: str, number: int, listen: str | None) -> ProcessPlan:
    name = f"{cluster}-{roles if ',' not in roles else 'node'}-{number}"
    command = ["node", "--roles", roles, "--world-file", path, "--cluster", cluster, "--number", str(number)]
    extra = ["--backend", str(number)] if roles == "cache" else []
    if listen is not None and roles != "cache":
        extra += ["--listen", f"{listen}:0"]
    return ProcessPlan(name, (sys.executable, "-m", "tailrace", *command, *extra))
