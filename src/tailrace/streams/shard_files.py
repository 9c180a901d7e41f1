"""Reading the files of one shard: a segment's index and data, and where a shard ends."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ..errors import Corrupt, FileMissing, FileProblem
from ..files import FileLength, Files
from ..model.message_file import Track as TrackName
from ..model.segment import newest_segment
from ..native import ENTRY_BYTES, Records, entry_at
from .segments import HEADER_BYTES, IndexHeader, Segment, entries_in, entry_offset, segments_of
from .tracks import DurableTrack, Track

#: Puts the cache before a durable file.
Wrap = Callable[[DurableTrack, Segment, TrackName], Track]

_TRIES = 100
_TAIL_ENTRIES, _TAIL_BYTES = 65536, 8 << 20  # how much is checked at a time when a tail may be torn


def shard_folder(stream: str, shard: int) -> str:
    return f"streams/{stream}/{shard:05d}"


class SegmentView:
    """One segment opened for reading. Numbers of entries count from 0 in this segment."""

    def __init__(
        self, files: Files, folder: str, segment: Segment, *, in_place: bool = True, wrap: Wrap | None = None
    ) -> None:
        self.segment = segment
        self.index_path = f"{folder}/{segment.index_name}"
        self.data_path = f"{folder}/{segment.data_name}"
        index = DurableTrack(files.view(self.index_path))
        try:
            data = DurableTrack(files.view(self.data_path), in_place=in_place)
        except BaseException:
            index.close()
            raise
        self._durable_index, self._durable_data = index, data
        self._index: Track = index if wrap is None else wrap(index, segment, "index")
        self._data: Track = data if wrap is None else wrap(data, segment, "data")
        self._index_read, self._data_read = self._index, self._data  # what was read last

    def close(self) -> None:
        self._index.close()
        self._data.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def entries_proven(self) -> bool:
        """Whether the entries that were read last need no sums any more."""
        return self._index_read.proven

    @property
    def data_proven(self) -> bool:
        return self._data_read.proven

    @property
    def data_by_file(self) -> bool:
        """Whether the data that were read last came from the file, without asking the cache."""
        return self._data_read is not self._data

    def track(self, name: TrackName) -> Track:
        return self._data if name == "data" else self._index

    def length(self) -> FileLength:
        """Of the index, which is the last to be flushed and so tells how far the segment goes."""
        return self._index.length()

    def data_length(self) -> FileLength:
        return self._data.length()

    def header(self) -> IndexHeader:
        raw = bytes(self._index.read(0, HEADER_BYTES))
        try:
            header = IndexHeader.decode(raw)
            if (header.created_us, header.base_position) != (self.segment.created_us, self.segment.data_base):
                raise ValueError("says in its header that it belongs to another name")
        except ValueError as wrong:
            raise Corrupt(f"{self.index_path} {wrong}. Run `tailrace verify` to see how much is affected") from None
        return header

    def has_header(self, length: FileLength, later: Segment | None) -> bool:
        """False for a segment that is not begun yet, or was torn while it was. Corrupt if its flushed header is bad."""
        if length.readable_bytes < HEADER_BYTES and later is None:
            return False
        try:
            self.header()
        except Corrupt:
            # A copy's cache may have been ahead of its file, and be gone: only what the file itself has can be bad.
            if later is None and self._durable_index.length().flushed_bytes < HEADER_BYTES:
                return False
            self.header()  # it may have come between the look at its bytes and the one at its length
        return True

    @property
    def data_in_place(self) -> bool:
        """Whether large reads of the data file lie where the kernel has them."""
        return self._durable_data.in_place

    def entries(self, first: int, count: int, *, by_file: bool = False) -> memoryview:
        """Entries first … first+count, fewer if the file does not have them yet. `by_file`: without asking the cache,
        unless the file has none of them: the cache of a copy may be ahead of it."""
        offset, size = entry_offset(first), count * ENTRY_BYTES
        self._index_read = self._durable_index if by_file else self._index
        found = self._index_read.read(offset, size)
        if by_file and len(found) < ENTRY_BYTES:
            self._index_read = self._index
            found = self._index.read(offset, size)
        return found[: len(found) - len(found) % ENTRY_BYTES]

    def entry(self, number: int) -> tuple[int, int]:
        """(end, time_us) of one entry."""
        raw = self.entries(number, 1)
        if not raw:
            raise Corrupt(f"{self.index_path} has no entry {number}, though its length says so")
        return entry_at(raw, 0)

    def checked_entry(self, number: int) -> tuple[int, int]:
        """(end, time_us) of one entry, which must match its message: others will build on it."""
        start, raw = self.start_of(number), self.entries(number, 1)
        end = entry_at(raw, 0)[0] if raw else start
        available = self.segment.data_base + self.data_length().readable_bytes
        if not start < end <= available or Records("", 0, start, raw, self.data(start, end)).count != 1:
            raise Corrupt(
                f"the last message is damaged: {self.index_path} byte {entry_offset(number)}, {self.data_path} byte "
                f"{start - self.segment.data_base}. Restore the files from a copy, or delete the stream; nothing was "
                "changed. `tailrace verify` shows all damage",
                position=start,
            )
        return entry_at(raw, 0)

    def start_of(self, number: int) -> int:
        return self.entry(number - 1)[0] if number else self.segment.data_base

    def data(self, start: int, end: int, *, by_file: bool = False) -> memoryview:
        """The bytes between two positions, fewer if the file does not have them yet. `by_file`: without asking the
        cache, unless the file has not all of them."""
        offset, size = start - self.segment.data_base, end - start
        self._data_read = self._durable_data if by_file else self._data
        found = self._data_read.read(offset, size)
        if by_file and len(found) < size:
            self._data_read = self._data
            found = self._data.read(offset, size)
        return found


@dataclass(frozen=True, slots=True)
class ShardEnd:
    """Where the good messages of a shard end, and in which segment: None when it never had a whole one."""

    position: int
    number: int
    time_us: int
    segment: Segment | None
    index_base: int  # where the next index file begins


def flushed_index(files: Files, stream: str, shard: int) -> int:
    """How far the index of a shard goes, over all its files: the same number in every cluster that has as much. Unlike
    `find_end` it reads nothing, so it costs little from afar, too."""
    folder = shard_folder(stream, shard)
    for _ in range(_TRIES):
        segment = newest_segment(files.list(folder))
        if segment is None:
            return 0
        with suppress(FileMissing), files.view(f"{folder}/{segment.index_name}") as view:
            flushed = view.length().flushed_bytes
            return segment.index_base + (
                flushed if flushed > HEADER_BYTES else 0
            )  # one that has no message says nothing
    raise FileProblem(f"{folder} changed {_TRIES} times while it was looked at; try again")


def find_end(files: Files, stream: str, shard: int) -> ShardEnd:
    """Where a shard ends, judged as every consumer judges it. Corrupt if flushed bytes near the end are bad."""
    folder = shard_folder(stream, shard)
    for _ in range(_TRIES):
        segments = segments_of(files.list(folder))
        with suppress(FileMissing):  # retention was faster
            end = _find_end(files, folder, segments)
            # A file that nobody appends to may have been cut by a segment that came after the list was made.
            if segments_of(files.list(folder))[-1:] == segments[-1:]:
                return end
    raise FileProblem(f"{folder} changed {_TRIES} times while its end was looked for; try again")


def _find_end(files: Files, folder: str, segments: list[Segment]) -> ShardEnd:
    for place in range(len(segments) - 1, -1, -1):
        segment = segments[place]
        later = segments[place + 1] if place + 1 < len(segments) else None
        if later is not None and later.index_base == segment.index_base:
            continue  # never finished: the later one took its place
        with SegmentView(files, folder, segment) as view:
            length = view.length()
            if not view.has_header(length, later):
                continue  # never finished, and nobody took its place yet
            header = view.header()
            entries = segment.entries_before(later) if later is not None else whole_entries(view, length)
            position, time_us = view.checked_entry(entries - 1) if entries else (segment.data_base, segment.created_us)
            number = header.base_number + entries
            return ShardEnd(position, number, time_us, segment, segment.index_base_after(entries))
    if segments:  # all of them torn while they were made
        return ShardEnd(segments[0].data_base, 0, 0, None, segments[0].index_base)
    return ShardEnd(0, 0, 0, None, 0)


def whole_entries(view: SegmentView, length: FileLength) -> int:
    """How many entries of a last segment are good: all that were flushed, and of a tail that may be torn, those that
    match their data."""
    number, readable = entries_in(length.flushed_bytes), entries_in(length.readable_bytes)
    start = view.start_of(number) if number < readable else 0
    while number < readable:
        entries = view.entries(number, min(readable - number, _TAIL_ENTRIES))
        good = _good_entries(view, start, entries) if entries else 0
        if good == 0:
            break
        number, start = number + good, entry_at(entries, good - 1)[0]
    return number


def _good_entries(view: SegmentView, start: int, entries: memoryview) -> int:
    """How many of the entries match their data, looking at a bounded piece of it; 0 only if the first does not."""
    available = max(0, view.data_length().readable_bytes - (start - view.segment.data_base))
    if good := Records("", 0, start, entries, view.data(start, start + min(available, _TAIL_BYTES))).count:
        return good
    end = entry_at(entries, 0)[0]
    if not _TAIL_BYTES < end - start <= available:
        return 0
    return Records(
        "", 0, start, entries[:ENTRY_BYTES], view.data(start, end)
    ).count  # one message larger than the piece
