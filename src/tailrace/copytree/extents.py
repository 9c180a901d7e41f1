"""What of a shard is to be copied next: pure, from what the source has and where the copy stands.

Invariants:
- Nothing is sent that the source could still lose: of the newest segment only flushed bytes, of others the bytes before
  the next one's base.
- The index of a look is sent after all data of that look, so that the copy of an index never leads its data.
- A segment is left only when all of it is sent. One that was never finished holds nothing, and is not copied.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..model.message_file import Track
from ..model.segment import Segment


@dataclass(frozen=True, slots=True)
class Extent:
    """How long the files of one segment are to become. `final`: they will not grow any more."""

    segment: Segment
    data_length: int
    index_length: int
    final: bool

    def length(self, track: Track) -> int:
        return self.data_length if track == "data" else self.index_length


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to where a copy goes, or will when everything on its way has arrived."""

    segment: Segment | None = None
    data_length: int = 0
    index_length: int = 0

    def length(self, track: Track) -> int:
        return self.data_length if track == "data" else self.index_length


@dataclass(frozen=True, slots=True)
class Run:
    """Bytes of one file that are to be sent."""

    segment: Segment
    track: Track
    offset: int
    size: int


def extents_of(segments: Sequence[Segment], data_flushed: int, index_flushed: int) -> list[Extent]:
    """Of a shard's segments, oldest first; the lengths are those of the newest one."""
    found = []
    for segment, later in pairwise(segments):
        if later.index_base > segment.index_base:
            data, index = later.data_base - segment.data_base, later.index_base - segment.index_base
            found.append(Extent(segment, data, index, final=True))
    if segments and index_flushed:
        found.append(Extent(segments[-1], data_flushed, index_flushed, final=False))
    return found


def next_run(extents: Sequence[Extent], at: Cursor, size_max: int) -> Run | None:
    """None: all of it is sent."""
    for extent in extents:
        if at.segment is not None and extent.segment.created_us < at.segment.created_us:
            continue
        here = at if extent.segment == at.segment else Cursor(extent.segment)
        tracks: tuple[Track, ...] = ("data", "index")
        for track in tracks:
            missing = extent.length(track) - here.length(track)
            if missing > 0:
                return Run(extent.segment, track, here.length(track), min(missing, size_max))
        if not extent.final:
            return None
    return None


def after(at: Cursor, run: Run) -> Cursor:
    here = at if at.segment == run.segment else Cursor(run.segment)
    if run.track == "data":
        return Cursor(run.segment, run.offset + run.size, here.index_length)
    return Cursor(run.segment, here.data_length, run.offset + run.size)


def missing_bytes(extents: Sequence[Extent], at: Cursor) -> int:
    """How much of it is not sent yet."""
    missing = 0
    for extent in extents:
        if at.segment is not None and extent.segment.created_us < at.segment.created_us:
            continue
        here = at if extent.segment == at.segment else Cursor(extent.segment)
        missing += max(0, extent.data_length - here.data_length) + max(0, extent.index_length - here.index_length)
    return missing
