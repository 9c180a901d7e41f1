"""What a cluster sends on: which streams to which neighbours, and the operations that follow from it. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..wire import Operation, Order, Storage
from .schedule import score
from .settings import StreamSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One edge of a stream's copy tree, seen from upstream."""

    stream: str
    origin: str  # the cluster where it is produced
    target: str
    writers: tuple[str, ...]  # addresses of the target's
    epoch: int = 0  # of the tree: higher is newer
    compression: str = ""
    bytes_per_s: int = 0  # 0: as fast as it can
    cached: bool = True  # whether the cache's copy travels, too


#: What this scheduler is to see to, of all operations of its cluster.
Share = Callable[[Operation], bool]


def orders_for(
    routes: Iterable[Route], settings: Callable[[str], StreamSettings | None], mine: Share = lambda operation: True
) -> dict[Operation, Order]:
    """All operations of these routes. A stream that is not here yet has none."""
    orders = {}
    for route in routes:
        found = settings(route.stream)
        if found is None or not route.writers:
            continue
        storages: Sequence[Storage] = ("durable", "cache") if found.config.cached and route.cached else ("durable",)
        for shard in range(found.config.shards):
            # Both copies of a shard prefer the same writer: it then knows both lengths without asking.
            writers = sorted(route.writers, key=lambda who, shard=shard: -score(f"{route.stream}/{shard}", who))  # type: ignore[misc]
            for storage in storages:
                operation = Operation(route.stream, shard, storage, route.target)
                if mine(operation):
                    orders[operation] = Order(
                        operation=operation,
                        writers=tuple(writers),
                        origin=route.origin,
                        epoch=route.epoch,
                        compression=route.compression,
                        bytes_per_s=route.bytes_per_s,
                    )
    return orders
