"""A world's folder as one cluster of the copy tree: what readers and writers of this process need of it."""

import secrets
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from ..copytree import CacheSource, CacheTarget, DurableSource, Source, StreamSettings, Target
from ..copytree.cache_lock import HOLDER_BYTES
from ..copytree.durable_source import GATHER_S
from ..copytree.hot_bytes import Layers, all_cached
from ..copytree.settings import read_settings
from ..errors import TailraceError
from ..files import Files
from ..files.lengths import hint_slot, late_slot
from ..model.message_file import Track
from ..model.segment import Segment
from ..native.hints import Waiter
from ..wire import Opening, Operation
from .hosts import host_tag
from .world import World

_STANDING_BY = b"standing by"  # a key that says nothing: who has written it once has found the way


class ClusterPlace:
    def __init__(self, world: World) -> None:
        self._world = world
        self._slow_reads = ThreadPoolExecutor(4, thread_name_prefix="tailrace slow reads")

    @property
    def files(self) -> Files:
        return self._world.files

    def prepare(self, stream: str, *, writing: bool) -> bool:
        """Open what an operation of this stream needs, before there is one; False: it is not there yet. The first time
        takes a hundred milliseconds, which a worker that takes over has not got."""
        settings = read_settings(self.files, stream)
        if settings is None or not settings.config.cached:
            return settings is not None
        cache = settings.config.cache
        layers = self._world._layers.join(cache) if writing else self._world._find_layers(cache)
        if layers is None:
            return False
        layers.lengths.get_many([_STANDING_BY])
        if writing:
            for cell in (layers.lengths, layers.data):
                cell.set_many({_STANDING_BY: b""})
        return True

    # ---- for writers

    def flushed(self, settings: StreamSettings) -> None:
        if (hints := self._world._hints()) is not None:
            hints.raise_(hint_slot(settings.incarnation))

    def rolled(self, stream: str, shard: int) -> None:
        with suppress(TailraceError):  # what cannot be collected now can be later; the copy must go on
            self._world._trim(stream, shard)

    def cache_target(self, opening: Opening, settings: StreamSettings) -> Target:
        return CacheTarget(
            self.files,
            opening,
            settings,
            self._world._layers.serve(settings.config.cache),
            self._world._clock,
            secrets.token_bytes(HOLDER_BYTES),
            pause=time.sleep,
            host=host_tag(self._world.config.host),
            on_written=lambda: self.flushed(settings),
        )

    # ---- for readers

    def waiter(self, incarnations: Iterable[str]) -> Waiter | None:
        hints = self._world._hints()
        try:
            known = set(incarnations)
            return None if hints is None else Waiter(hints, map(hint_slot, known), map(late_slot, known))
        except ValueError:
            return None

    def durable_source(self, operation: Operation, settings: StreamSettings) -> DurableSource:
        incarnation, layers = settings.incarnation, self._layers_of(settings)

        def from_cache(segment: Segment, track: Track, offset: int, size: int) -> memoryview | None:
            return all_cached(layers(), incarnation, operation.shard, segment, track, offset, size)

        return DurableSource(
            self.files,
            self._world._clock,
            operation,
            incarnation,
            from_cache=from_cache,
            gather_s=GATHER_S if settings.config.cached else 0.0,
        )

    def cache_source(self, operation: Operation, settings: StreamSettings, wake: Callable[[], object]) -> Source:
        return CacheSource(
            self.files, operation, settings.incarnation, self._layers_of(settings), pool=self._slow_reads, wake=wake
        )

    def _layers_of(self, settings: StreamSettings) -> Callable[[], Layers | None]:
        return lambda: self._world._find_layers(settings.config.cache) if settings.config.cached else None

    def changed(self, shards: Iterable[tuple[str, int]]) -> set[tuple[str, int]] | None:
        return None
