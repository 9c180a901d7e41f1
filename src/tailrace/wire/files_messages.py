"""What a cluster tells consumers of other clusters that read its streams' files from afar. Plain types; `files_codec`
makes them bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Buffer

from ..model.message_file import Track
from ..model.segment import Segment

READ_BYTES_MAX = 4 << 20  # of one call, over all its ranges
RANGES_MAX = 1024


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a file goes: as `files.FileLength` says it."""

    flushed: int
    readable: int
    appending: bool


@dataclass(frozen=True, slots=True)
class NewestSegment:
    """The newest segment of a shard, and how far its two files go."""

    segment: Segment
    data: Reach
    index: Reach

    def reach(self, track: Track) -> Reach:
        return self.data if track == "data" else self.index


@dataclass(frozen=True, slots=True)
class ShardSight:
    """`listing` is another one whenever the names in the shard's folder are. Lengths are older than it."""

    shard: int
    listing: int
    newest: NewestSegment | None = None


@dataclass(frozen=True, slots=True)
class Sight:
    """How far all shards of a stream go. With the number that was seen before: as then, and `shards` is empty."""

    number: int
    shards: tuple[ShardSight, ...] = ()


@dataclass(frozen=True, slots=True)
class Listing:
    number: int
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ByteRange:
    path: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class FileBytes:
    """Of a file that is there: readable bytes only."""

    reach: Reach
    content: Buffer


class FilesService(Protocol):
    """What a cluster answers. It only looks, and only below `streams`. Called from several threads at once."""

    def sight(self, stream: str, seen: int) -> Sight | None:
        """None: there is no such stream. `seen`: the number of the sight that the caller has; 0: none."""
        ...

    def list(self, folder: str) -> Listing:
        """Names, sorted. A folder that is not there has none."""
        ...

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        """A part for each range; None: there is no such file. READ_BYTES_MAX together at most."""
        ...
