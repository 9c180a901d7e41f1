from collections.abc import Callable, MutableMapping
from typing import Protocol, TypeVar

from typing_extensions import Buffer

from ._client import CellClient, Watcher
from ._core import Records
from ._vigil import Vigil

_B = TypeVar("_B", bound=Records)
_Source = TypeVar("_Source")

class _Lock(Protocol):
    def acquire(self, blocking: bool, /) -> bool: ...
    def release(self) -> None: ...

class Follower:
    entries_max: int
    ahead_bytes: int
    @property
    def told_end(self) -> int: ...
    @property
    def at_end(self) -> bool: ...
    @property
    def holds(self) -> bool: ...
    def hold(self, lengths: CellClient, data: CellClient, for_s: float, deadline_s: float) -> None: ...
    def let_go(self) -> None: ...
    def overhear(self, raw: bytes) -> None: ...
    def glance(self, entry: int, start: int, bytes_max: int) -> tuple[memoryview, memoryview] | None: ...
    def __init__(
        self,
        lengths_key: bytes,
        segment: tuple[int, int, int],
        index_key: bytes,
        index_chunk: int,
        data_key: bytes,
        data_chunk: int,
        header_bytes: int,
        room: Callable[[int], Buffer],
    ) -> None: ...
    def look(
        self,
        lengths: CellClient,
        data: CellClient,
        entry: int,
        start: int,
        bytes_max: int,
        silent_s: float = 1.0,
        deadline_s: float = 0.5,
    ) -> tuple[memoryview, memoryview] | None: ...

class HeadVigil(Vigil[_B]):
    def __init__(
        self,
        follower: Follower,
        watcher: Watcher,
        reading: _Lock,
        renew: Callable[[], bool],
        batch: type[_B],
        stream: str,
        shard: int,
        created_us: int,
        entry: int,
        position: int,
        bytes_max: int,
        patience_s: float,
        counts: MutableMapping[_Source, int],
        source: _Source,
    ) -> None: ...
