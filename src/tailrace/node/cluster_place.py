"""A world's folder as one cluster of the copy tree: what readers and writers of this process need of it."""

from collections.abc import Iterable
from contextlib import suppress

from ..copytree import DurableSource, StreamSettings, Target
from ..copytree.copying import Source
from ..errors import Closed, TailraceError
from ..files import Files
from ..files.lengths import hint_slot
from ..native.hints import Waiter
from ..wire import Opening, Operation
from .world import World


class ClusterPlace:
    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def files(self) -> Files:
        return self._world.files

    # ---- for writers

    def flushed(self, settings: StreamSettings) -> None:
        if (hints := self._world._hints()) is not None:
            hints.raise_(hint_slot(settings.incarnation))

    def rolled(self, stream: str, shard: int) -> None:
        with suppress(TailraceError):  # what cannot be collected now can be later; the copy must go on
            self._world._trim(stream, shard)

    def cache_target(self, opening: Opening, settings: StreamSettings) -> Target:
        raise Closed(f"{opening.operation}: no cache here")

    # ---- for readers

    def waiter(self, incarnations: Iterable[str]) -> Waiter | None:
        hints = self._world._hints()
        try:
            return None if hints is None else Waiter(hints, {hint_slot(one) for one in incarnations})
        except ValueError:
            return None

    def durable_source(self, operation: Operation, settings: StreamSettings) -> DurableSource:
        return DurableSource(self.files, self._world._clock, operation, settings.incarnation)

    def cache_source(self, operation: Operation, settings: StreamSettings) -> Source:
        raise Closed(f"{operation}: no cache here")

    def changed(self, shards: Iterable[tuple[str, int]]) -> set[tuple[str, int]] | None:
        return None
