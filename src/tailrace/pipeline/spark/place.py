"""A world's folder as the tasks of a Spark job see it: files and settings, no more. Each process opens its own."""

import gc
import os
from functools import cache, cached_property

from ...config import StreamConfig, WorldConfig, parse_world
from ...coordination import SqliteCoordination
from ...env import SystemClock
from ...errors import ConfigError
from ...files import PosixFiles
from ...streams import Catalog, Checkpoints, Collected, collect


class WorldFolder:
    def __init__(self, path: str, *, make: bool = False, owner: str | None = None) -> None:
        """`make`: a folder that is not there is made; else it is refused, for nothing can be read in it."""
        self.path = os.path.abspath(path.removeprefix("file://"))
        if not make and not os.path.isdir(self.path):
            raise ConfigError(
                f"there is no world in {self.path}: this machine has no such folder. On a cluster every machine needs "
                "it under the same path. Nothing was read"
            )
        self.files = PosixFiles(self.path, owner=owner)
        self.clock = SystemClock()
        self.catalog = Catalog(self.files)

    def config(self, stream: str) -> StreamConfig:
        return self.catalog.config(stream)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        config = self._world.coordination
        if not config.etcd:
            return Checkpoints(SqliteCoordination(os.path.join(self.path, "coordination.db")))
        from ...coordination import EtcdCoordination

        return Checkpoints(EtcdCoordination(config))

    def incarnation(self, stream: str) -> tuple[str, str]:
        """What checkpoints of a stream belong to."""
        return stream, self.catalog.incarnation(stream)

    def trim(self, stream: str, shard: int) -> Collected:
        """Delete what the stream's retention allows, as a producer does when it begins a new file."""
        policy, passed = self.config(stream).retention, []
        if policy.waits_for:
            known = self.checkpoints.load_all(self.incarnation(stream))
            passed = [known.get(name, {}).get(shard, 0) for name in policy.waits_for]
        return collect(self.files, stream, shard, policy, self.clock.time_us(), passed)

    def settings(self, stream: str) -> StreamConfig:
        """What a stream is made with that is not there yet, as the world's tailrace.toml says."""
        return self._world.stream(stream)

    @cached_property
    def _world(self) -> WorldConfig:
        path = os.path.join(self.path, "tailrace.toml")
        try:
            with open(path, encoding="utf-8") as file:
                return parse_world(file.read(), path)
        except FileNotFoundError:
            return WorldConfig()


@cache
def settle_memory() -> None:
    """Once per process: what is loaded by now stays, so the full collection that PySpark makes after every task need
    not look at it. That saves some 20 ms per task."""
    gc.collect()
    gc.freeze()
