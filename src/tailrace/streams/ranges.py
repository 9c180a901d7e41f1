"""Byte ranges of a shard: which files hold them, where they can be cut, and their messages as Arrow batches.

Invariant: a message belongs to the range [begin, end) in which it begins. So ranges that follow each other hand out
every message once, wherever they are cut.

This is how work is divided: among the tasks of a Spark job, and among the work units of a pipeline.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self

from ..env import Clock
from ..errors import FileProblem
from ..files import Files
from .batch import Batch
from .segments import Segment, entries_in, segments_of
from .shard_files import SegmentView, find_end, shard_folder
from .tail import ShardTail, Start

if TYPE_CHECKING:
    import pyarrow

BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """A message file of a shard, by the name of its data file, and the positions that it holds now: [begin, end).

    newest: it may still grow. The others have all they will ever have.
    """

    name: str
    created_us: int
    begin: int
    end: int
    newest: bool


def file_ranges(files: Files, stream: str, shard: int) -> list[FileRange]:
    """The message files of a shard, oldest first, as far as consumers can read them. Files without messages are left
    out, so each begins where the one before ends."""
    end = find_end(files, stream, shard)
    if end.segment is None:
        return []
    segments = [
        segment
        for segment in segments_of(files.list(shard_folder(stream, shard)))
        if segment.created_us <= end.segment.created_us
    ]
    ends = [*(segment.data_base for segment in segments[1:]), end.position]
    return [
        FileRange(segment.data_name, segment.created_us, segment.data_base, stop, newest=segment == end.segment)
        for segment, stop in zip(segments, ends, strict=True)
        if segment.data_base < stop
    ]


def find_position(files: Files, clock: Clock, stream: str, shard: int, start: Start) -> int:
    """Where the messages begin that a consumer with this start would get: earliest, latest, not older than a time."""
    tail = ShardTail(files, clock, stream, shard, start)
    tail.close()
    return tail.position


def cut_positions(files: Files, stream: str, shard: int, begin: int, end: int, bytes_max: int) -> list[int]:
    """Positions between begin and end where a message begins, so that the pieces between them are of up to bytes_max; a
    longer message is a piece of its own. A few small reads per cut, whatever lies between. Behind what can be read now
    there are none."""
    if not 0 <= begin <= end or bytes_max < 1:
        raise ValueError(f"positions {begin} to {end} cannot be cut into pieces of {bytes_max} bytes")
    cuts: list[int] = []
    with _Cutter(files, stream, shard) as cutter:
        at: int | None = begin
        while at is not None and end - at > bytes_max:
            at = cutter.next_cut(at, bytes_max)
            if at is not None and at < end:
                cuts.append(at)
    return cuts


def next_cut(files: Files, stream: str, shard: int, begin: int, bytes_max: int) -> int | None:
    """The first of the `cut_positions` of an endless range; None if less than bytes_max can be read."""
    with _Cutter(files, stream, shard) as cutter:
        return cutter.next_cut(begin, bytes_max)


def read_range(
    files: Files,
    clock: Clock,
    stream: str,
    shard: int,
    begin: int,
    end: int,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Batch]:
    """The messages that begin in [begin, end), checked, in batches of about batch_bytes.

    PositionRetired if retention has taken some of them, Corrupt at one that is damaged (whose error tells where to go
    on), FileProblem if the shard does not reach the end here, as when a copy is behind.
    """
    if end <= begin:
        return
    tail = ShardTail(files, clock, stream, shard, begin)
    try:
        while tail.position < end:
            batch = tail.poll(batch_bytes, before=end)
            if batch is not None:
                yield batch
            elif tail.position < end and (now := tail.end()) <= tail.position:
                raise FileProblem(
                    f"{stream}/{shard} ends at {now} here, before {end}, up to where it was to be read from {begin}. "
                    "If this is a copy, wait until it has caught up; what was read so far is whole"
                )
    finally:
        tail.close()


def read_arrow(
    files: Files,
    clock: Clock,
    stream: str,
    shard: int,
    begin: int,
    end: int,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> "Iterator[pyarrow.RecordBatch]":
    """`read_range` as Arrow record batches with the columns of `arrow_schema`; no work per message in Python."""
    for batch in read_range(files, clock, stream, shard, begin, end, batch_bytes=batch_bytes):
        yield batch.to_record_batch()


class _Cutter:
    """Finds the message that lies at a position, by binary search over an index file. Keeps that open for the next."""

    def __init__(self, files: Files, stream: str, shard: int) -> None:
        self._files, self._folder = files, shard_folder(stream, shard)
        self._ranges = file_ranges(files, stream, shard)
        self._segments = {segment.data_name: segment for segment in segments_of(files.list(self._folder))}
        self._view: SegmentView | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._view is not None:
            self._view.close()

    def next_cut(self, begin: int, bytes_max: int) -> int | None:
        """Where the message begins that lies bytes_max further, or where it ends if it is the first."""
        if (place := self.message_at(begin + bytes_max)) is None:
            return None
        starts, ends = place
        return starts if starts > begin else ends

    def message_at(self, position: int) -> tuple[int, int] | None:
        """Where the message begins and ends whose bytes lie there; None where there are none (yet, or any more)."""
        place = bisect_right(self._ranges, position, key=lambda one: one.begin) - 1
        if place < 0 or position >= self._ranges[place].end or self._ranges[place].name not in self._segments:
            return None
        view = self._open(self._segments[self._ranges[place].name])
        number = _first_behind(view, position)
        return view.start_of(number), view.entry(number)[0]

    def _open(self, segment: Segment) -> SegmentView:
        if self._view is None or self._view.segment != segment:
            if self._view is not None:
                self._view.close()
                self._view = None
            self._view = SegmentView(self._files, self._folder, segment)
        return self._view


def _first_behind(view: SegmentView, position: int) -> int:
    """The first entry whose message ends behind the position, given that there is one. Entries behind a cut may follow:
    they do not matter, since those before them are in order."""
    low, high = 0, entries_in(view.length().readable_bytes)
    while low < high:
        middle = (low + high) // 2
        if view.entry(middle)[0] > position:
            high = middle
        else:
            low = middle + 1
    return low
