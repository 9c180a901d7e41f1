"""What clusters tell each other to find out whether they have the same bytes. Plain types; `check_codec` makes them
bytes."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Protocol

from typing_extensions import Buffer

from ..model.message_file import Track
from ..model.segment import Segment

BLOCK_HASH_BYTES = 16
HASHES_MAX = 4096  # of one call
HASHED_BYTES_MAX = 64 << 20  # … and of how many bytes


@dataclass(frozen=True, slots=True)
class Held:
    """A segment, and how much of it is flushed here."""

    segment: Segment
    data_length: int
    index_length: int

    def length(self, track: Track) -> int:
        return self.data_length if track == "data" else self.index_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a cluster has of a shard, oldest first. shards: of the stream."""

    incarnation: str
    shards: int
    held: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Bytes of one file, in blocks; the last one may be shorter."""

    stream: str
    shard: int
    segment: Segment
    track: Track
    offset: int
    size: int
    block_bytes: int

    @property
    def count(self) -> int:
        return -(-self.size // self.block_bytes)


class CheckService(Protocol):
    """What a cluster answers. Called from several threads at once."""

    def holding(self, stream: str, shard: int) -> Holding | None:
        """None: there is no such stream."""
        ...

    def hashes(self, blocks: Blocks) -> bytes:
        """BLOCK_HASH_BYTES for each block; fewer if the file ends before, none if it is gone."""
        ...


def block_hash(block: Buffer) -> bytes:
    return blake2b(block, digest_size=BLOCK_HASH_BYTES).digest()
