"""How the files of a shard hang together: pure, from their names alone.

A segment is the data file and the index file of one creation time. The next segment's bases cut this one: an entry or a
byte behind that line was never acknowledged and is never looked at. So a producer that starts again after a crash needs
to mend nothing; it begins a new segment where the good bytes end.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .message_file import MessageFile, Track

HEADER_BYTES, ENTRY_BYTES = 48, 24  # of an index file


@dataclass(frozen=True, slots=True)
class Segment:
    created_us: int
    data_base: int
    index_base: int

    @property
    def data_name(self) -> str:
        return MessageFile(self.created_us, self.data_base, "data").name

    @property
    def index_name(self) -> str:
        return MessageFile(self.created_us, self.index_base, "index").name

    def name(self, track: Track) -> str:
        return self.data_name if track == "data" else self.index_name

    def base(self, track: Track) -> int:
        return self.data_base if track == "data" else self.index_base

    def entries_before(self, later: "Segment") -> int:
        """How many messages this segment has, as the next one tells; a segment that was never finished has none."""
        return max(0, later.index_base - self.index_base - HEADER_BYTES) // ENTRY_BYTES

    def index_base_after(self, entries: int) -> int:
        return self.index_base + HEADER_BYTES + entries * ENTRY_BYTES


def segments_of(names: Iterable[str]) -> list[Segment]:
    """The segments among a folder's names, in order. A file without its other half is half made or half deleted."""
    data: dict[int, MessageFile] = {}
    index: dict[int, MessageFile] = {}
    for name in names:
        if file := MessageFile.parse(name):
            (data if file.track == "data" else index)[file.created_us] = file
    return [Segment(created, data[created].base, index[created].base) for created in sorted(data.keys() & index.keys())]


def newest_segment(names: Sequence[str]) -> Segment | None:
    """The last one of `segments_of`, of sorted names: without a look at all the others."""
    halves: dict[int, MessageFile] = {}
    for name in reversed(names):
        if file := MessageFile.parse(name):
            other = halves.setdefault(file.created_us, file)
            if other.track != file.track:
                data, index = (file, other) if file.track == "data" else (other, file)
                return Segment(file.created_us, data.base, index.base)
    return None


def newest_creation_us(names: Iterable[str]) -> int:
    """The newest creation time among all files, half ones too: a new name must sort behind them."""
    return max((file.created_us for name in names if (file := MessageFile.parse(name))), default=0)
