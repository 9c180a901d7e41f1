"""Walk the files of a shard and say exactly what is wrong with them, by file and byte range. Reads only.

Findings are either *damage* (flushed bytes that are bad: consumers stop there) or *leftover* (bytes that were never
acknowledged and are never read: what a crash leaves behind).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from ..errors import Corrupt, FileMissing
from ..files import Files
from ..model import MessageFile
from ..native import ENTRY_BYTES, Records, count_to_position, entry_at
from .segments import HEADER_BYTES, Segment, entries_in, entry_offset, segments_of
from .shard_files import SegmentView, shard_folder
from .snapshot import SnapshotFile
from .snapshots import is_good, snapshot_folder

_STEP_ENTRIES, _STEP_BYTES = 65536, 16 << 20

Kind = Literal["damage", "leftover"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Bytes from_byte to to_byte of a file (to_byte None: to its end)."""

    kind: Kind
    what: str
    file: str
    from_byte: int
    to_byte: int | None


@dataclass(slots=True)
class Checked:
    """How much was good."""

    messages: int = 0
    data_bytes: int = 0
    files: int = 0


def verify_shard(
    files: Files, stream: str, shard: int, checked: Checked, on_progress: Callable[[int], None] = lambda count: None
) -> Iterator[Finding]:
    """Findings of one shard, oldest first; `checked` counts on; `on_progress` is told of each run of bytes."""
    folder = shard_folder(stream, shard)
    names = files.list(folder)
    segments = segments_of(names)
    yield from _halves(folder, names, segments)
    yield from _snapshots(files, stream, shard, checked)
    for place, segment in enumerate(segments):
        later = segments[place + 1] if place + 1 < len(segments) else None
        try:
            view = SegmentView(files, folder, segment)
        except FileMissing:
            continue  # retention took it meanwhile
        checked.files += 1
        with view:
            yield from _verify_segment(view, later, checked, on_progress)


def _snapshots(files: Files, stream: str, shard: int, checked: Checked) -> Iterator[Finding]:
    folder = snapshot_folder(stream, shard)
    for name in files.list(folder):
        snapshot = SnapshotFile.parse(name)
        if snapshot is None:
            yield Finding("leftover", "not a snapshot", f"{folder}/{name}", 0, None)
        elif is_good(files, stream, shard, snapshot):
            checked.files += 1
        elif name in files.list(folder):  # else it was collected meanwhile
            yield Finding("damage", "snapshot does not match the checksum in its name", f"{folder}/{name}", 0, None)


def _halves(folder: str, names: list[str], segments: list[Segment]) -> Iterator[Finding]:
    whole = {segment.created_us for segment in segments}
    for name in names:
        file = MessageFile.parse(name)
        if file is None:
            yield Finding("leftover", "not a message file", f"{folder}/{name}", 0, None)
        elif file.created_us not in whole:
            yield Finding("leftover", "without its other half: half made or half deleted", f"{folder}/{name}", 0, None)


def _verify_segment(
    view: SegmentView, later: Segment | None, checked: Checked, on_progress: Callable[[int], None]
) -> Iterator[Finding]:
    segment, length = view.segment, view.length()
    if later is not None and later.index_base == segment.index_base:
        yield Finding("leftover", "never finished; the next file took its place", view.index_path, 0, None)
        return
    if length.readable_bytes < HEADER_BYTES and later is None:
        yield Finding("leftover", "never finished", view.index_path, 0, None)
        return
    flushed = segment.entries_before(later) if later is not None else entries_in(length.flushed_bytes)
    readable = flushed if later is not None else entries_in(length.readable_bytes)
    try:
        view.header()
    except Corrupt as wrong:
        damaged = later is not None or length.flushed_bytes >= HEADER_BYTES
        yield Finding("damage" if damaged else "leftover", str(wrong), view.index_path, 0, HEADER_BYTES)
        return
    number, position = 0, segment.data_base
    while number < readable:
        entries = view.entries(number, min(readable - number, _STEP_ENTRIES))
        if not entries:
            yield Finding(
                "damage", "index file too short", view.index_path, entry_offset(number), entry_offset(readable)
            )
            break
        good, size = _good_run(view, position, entries)
        if good:
            position, number = entry_at(entries, good - 1)[0], number + good
            checked.messages += good
            checked.data_bytes += size
            on_progress(size)
            continue
        offset, start = entry_offset(number), position - segment.data_base
        if number >= flushed:
            yield Finding("leftover", "torn tail", view.index_path, offset, None)
            yield Finding("leftover", "torn tail", view.data_path, start, None)
            break
        end = entry_at(entries, 0)[0]
        yield Finding("damage", "entry does not match its message", view.index_path, offset, offset + ENTRY_BYTES)
        if not position < end <= segment.data_base + view.data_length().readable_bytes:
            yield Finding("damage", "unreadable from here on: the entry's end is wrong", view.data_path, start, None)
            break
        yield Finding("damage", "message does not match its entry", view.data_path, start, end - segment.data_base)
        number, position = number + 1, end  # the entry still says where the next message begins
    if later is not None:
        if later.data_base != position:
            what = f"the next file begins at position {later.data_base}, but this one ends at {position}"
            yield Finding("damage", what, view.data_path, position - segment.data_base, None)
        yield from _behind(view.index_path, entry_offset(flushed), view.length().readable_bytes)
        yield from _behind(view.data_path, later.data_base - segment.data_base, view.data_length().readable_bytes)


def _good_run(view: SegmentView, start: int, entries: memoryview) -> tuple[int, int]:
    """How many entries from the first on are good, and the bytes of their messages, in a piece of bounded size."""
    count = max(1, count_to_position(entries, start + _STEP_BYTES))
    end = entry_at(entries, count - 1)[0]
    available = view.data_length().readable_bytes - (start - view.segment.data_base)
    data = view.data(start, start + max(0, min(end - start, available)))
    records = Records("", 0, start, entries[: count * ENTRY_BYTES], data)
    return records.count, records.end - start


def _behind(path: str, cut: int, size: int) -> Iterator[Finding]:
    if size > cut:
        yield Finding("leftover", "behind the cut: never acknowledged", path, cut, size)
