"""The two storage layers of a stream: durable files, and a cache beside them that holds only what is hot (A8).

The files are the truth, and everything here works without the cache. What a layer is asked for is small enough to be a
protocol: `Cache` of the cache room is one, and so is whatever a test needs.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from typing_extensions import Buffer

from ..native.client import Follower

Source = Literal["relaxed", "consistent", "durable", "ambassador"]


class ChunkCache(Protocol):
    """The data cache: chunks by key."""

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]: ...

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object: ...


class LengthCache(Protocol):
    """The metadata cache: how far each shard goes."""

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object: ...


class Quick(Protocol):
    """What a follower finds in both caches at once, where both lie in the memory of this host."""

    def __call__(
        self, follower: Follower, entry: int, start: int, bytes_max: int
    ) -> tuple[memoryview, int, memoryview] | None: ...


@dataclass(slots=True)
class Layers:
    """The cache beside the files. `bytes_from` counts where consumers of this process got their bytes; a relaxed look
    counts as `nearest`. `quick`: the short way to the head of a shard, if there is one."""

    data: ChunkCache
    lengths: LengthCache
    bytes_from: Counter[Source] = field(default_factory=Counter)
    nearest: Source = "relaxed"
    quick: Quick | None = None
