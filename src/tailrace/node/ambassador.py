"""The ambassador of this host: serves a cache in its memory, and keeps in it what the streams have on other hosts."""

import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from ..config import MIB, CacheConfig, StreamConfig
from ..env import Clock
from ..errors import ConfigError, StreamMissing
from ..files import Files
from ..native.hints import Hints
from ..streams import Ambassador, Catalog, Layers
from .caches import Caches
from .hosts import host_tag
from .layers import WorldLayers, near_cache

_RELIST_S = 1.0  # how soon a new stream is noticed
_BEAT_S = 0.1  # how long to sleep at most: producers' beats are told on, too
MEMORY_BYTES = 1024 * MIB
_TTL_S = 60.0


class HostAmbassador:
    """Of these streams; of all that have a cache if none is named. Belongs to one thread."""

    def __init__(
        self,
        streams: Sequence[str],
        caches: Caches,
        layers: WorldLayers,
        catalog: Catalog,
        files: Files,
        hints: Hints | None,
        clock: Clock,
        host: str | None,
        memory_bytes: int,
    ) -> None:
        for stream in streams:
            if not catalog.config(stream).cached:
                raise ConfigError(f"the stream {stream!r} has no cache (cached = false), so there is nothing to bring")
        self._streams, self._layers, self._catalog, self._clock = streams, layers, catalog, clock
        name, config = near_cache(host), CacheConfig(ttl_s=_TTL_S, memory_bytes=memory_bytes)
        if name in caches.names():
            caches.configure(name, config)  # one that was here before may have had another amount
        else:
            caches.create(name, config)
        near = caches.open(name, transport="memory")
        self._ambassador = Ambassador(files, Layers(near, near), hints, host_tag(host), clock)
        self._known: set[str] = set()  # incarnations
        self._listed_s = float("-inf")
        self.shards = 0

    @property
    def brought_bytes(self) -> int:
        return self._ambassador.brought_bytes

    def step(self) -> int:
        """Bring what is new. How many shards had news."""
        if self._clock.monotonic_s() >= self._listed_s + _RELIST_S:
            self._listed_s = self._clock.monotonic_s()
            for stream in self._streams or self._catalog.names():
                self._meet(stream)
        return self._ambassador.step()

    def run(self, stop: threading.Event, poll_s: float, seen: Callable[[Self], None] = lambda ambassador: None) -> None:
        """Until it is told to stop."""
        while not stop.is_set():
            self.step()
            seen(self)
            if self._ambassador.wait(_BEAT_S) is None:
                self._clock.wait(stop, poll_s)

    def _meet(self, stream: str) -> None:
        try:
            config, incarnation = self._catalog.config(stream), self._catalog.incarnation(stream)
        except StreamMissing:
            return  # it was deleted meanwhile
        if config.cached and incarnation not in self._known:
            self._known.add(incarnation)
            self.shards += config.shards
            for shard in range(config.shards):
                self._ambassador.bring(stream, shard, incarnation, self._home_of(config))

    def _home_of(self, config: StreamConfig) -> Callable[[], Layers | None]:
        return lambda: self._layers.home(config.cache)

    def close(self) -> None:
        self._ambassador.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
