"""The reading end of one shard: a cursor that follows the segments from a position on.

Invariants:
- It hands out every message from its position on, once and in order, and nothing that was not flushed and checked.
- It leaves a segment only when it has read up to the next one's base.
- It holds two open files and one window of entries, however long the shard is.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Literal

from ..env import Clock
from ..errors import Corrupt, FileMissing, PositionRetired, StreamMissing
from ..files import FileLength, Files
from ..native import ENTRY_BYTES, count_to_position, entry_at
from ..native.client import HeadVigil, Watcher
from ..native.hints import Waiter
from ..native.sheets import SheetVigil
from ..native.vigil import Vigil
from .batch import Batch
from .board import Followed
from .catalog import Catalog
from .head import Head
from .quicker import LARGE_BYTES, Quicker
from .segments import Segment, entries_in, entry_offset, segments_of
from .shard_files import SegmentView, find_end, shard_folder, whole_entries

Start = Literal["earliest", "latest"] | datetime | int

_WINDOW_ENTRIES = 16384
_MESSAGE_BYTES_MAX = 1 << 30  # an entry that claims more is not one of ours
_TRIES = 20
_RELIST_S = 1.0  # a safety net: look for a new segment now and then even though the old one seems to be alive


class ShardTail:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        stream: str,
        shard: int,
        start: Start,
        *,
        in_place: bool = True,
        in_place_bytes: int = 0,
        followed: Followed | None = None,
        incarnation: str | None = None,
    ) -> None:
        """`in_place`: large batches that come from files lie where the kernel has them; `in_place_bytes`: then they may
        be so large, even if less is asked for. `followed`: read through the cache. Looking for a place by time, or for
        the end, is left to the files. `incarnation`: whose positions these are; StreamMissing when the stream is
        another one. None: whichever."""
        self.incarnation = incarnation
        self.stream, self.shard, self._in_place, self._followed = stream, shard, in_place, followed
        self._files, self._clock, self._in_place_bytes = files, clock, in_place_bytes
        self._folder = shard_folder(stream, shard)
        self._segments: list[Segment] = []
        self._listed_s = float("-inf")
        self._view: SegmentView | None = None
        self._head: Head | None = None  # the quick way through the open segment
        self._nearby = None if followed is None else followed.nearby  # … and the quickest
        # Only who reads large batches in place chooses between the files and the cache.
        self._quicker: Quicker | None = None
        if followed is not None and in_place and in_place_bytes >= LARGE_BYTES:
            self._quicker = followed.quicker
        self.was_shown = self.shown_all = False  # the last batch came from there; and it was all there is
        self._vigil: Vigil[Batch] | None = None  # who reads there now, and knows where we are
        self._created_us = 0  # the segment that is read: the open one, or a later one that …
        self._strayed = False  # … was only seen in the producer's memory
        self._entry = 0  # the next entry to hand out, in the open segment …
        self._position = 0  # … and where its message begins
        self._not_before = 0  # a seek ahead of what is there: skip what begins earlier
        self._window = memoryview(b"")  # entries from self._entry on
        self._window_proven = False
        self._judged: tuple[Segment, FileLength, int] | None = None  # the last torn tail, and how much of it is good
        self.seek(start)

    @property
    def followed(self) -> Followed | None:
        """The cache that it reads through."""
        return self._followed

    @property
    def position(self) -> int:
        """Where the next message to hand out begins, or will."""
        if (vigil := self._vigil) is not None:
            return vigil.position
        return max(self._position, self._not_before)

    @property
    def drained(self) -> bool:
        """Whether all that the cache tells of is handed out, for certain, as of the last look."""
        # What the cache knew before says nothing of a batch that was shown.
        at_end = self.shown_all if self.was_shown else self._head is not None and self._head.at_end
        return at_end and not self._window and self._position >= self._not_before

    @property
    def near(self) -> bool:
        """Whether what comes next will be told of in the producer's memory, as far as is known."""
        return self._nearby is not None and self._nearby.at_end

    def close(self) -> None:
        self._relieve()
        self._leave()
        if self._nearby is not None:
            self._nearby.close()

    # ---- where to read

    def seek(self, start: Start) -> None:
        """Go to the first message that begins at or behind a position, or that is not older than a time."""
        self._relieve()
        self._list()
        if isinstance(start, int) and start >= 0:
            self._go_to(start)
            return
        for _ in range(_TRIES - 1):  # retention may take the file that was just found
            with suppress(PositionRetired, FileMissing):
                self._go_to(self._find(start))
                return
            self._list()
        self._go_to(self._find(start))

    def _find(self, start: Start) -> int:
        if start == "earliest":
            return self._segments[0].data_base if self._segments else 0
        if start == "latest":
            return self.end()
        if not isinstance(start, datetime):
            raise ValueError(f"start={start!r}: use 'earliest', 'latest', a datetime, or a position of 0 or more")
        if start.tzinfo is None:
            raise ValueError(f"{start} has no time zone; use for example datetime.now(timezone.utc)")
        return self._position_at(round(start.timestamp() * 1_000_000))

    def end(self) -> int:
        """Where the readable messages end now."""
        return find_end(self._files, self.stream, self.shard).position

    def _go_to(self, position: int) -> None:
        self._leave()
        self._position = self._not_before = position
        if not self._segments:
            return
        self._check_incarnation()
        first = self._segments[0].data_base
        if position < first:
            raise PositionRetired(
                f"{self.stream}/{self.shard}: position {position} is before {first}, where the retained messages "
                f"begin. Seek to {first} or 'earliest' to go on; what lay before is gone",
                shard=self.shard,
                position=position,
                retained_start=first,
            )
        place = bisect_right(self._segments, position, key=lambda segment: segment.data_base) - 1
        if not self._enter(self._segments[place]):
            self._not_before = position
            return
        view = self._view
        assert view is not None
        readable = self._readable(view)
        self._entry = _first(readable, lambda number: view.entry(number)[0] > position)
        self._position = view.start_of(self._entry)
        self._not_before = position

    def _position_at(self, time_us: int) -> int:
        """No message before a segment is younger than it, so begin at the last segment that is older than the time."""
        place = bisect_left(self._segments, time_us, key=lambda segment: segment.created_us) - 1
        for segment in self._segments[max(place, 0) :]:
            with SegmentView(self._files, self._folder, segment) as view:
                readable = self._readable(view)
                number = _first(readable, lambda number, view=view: view.entry(number)[1] >= time_us)  # type: ignore[misc]
                if number < readable:
                    return view.start_of(number)
        return self.end()

    # ---- reading

    def poll(self, bytes_max: int, before: int | None = None) -> Batch | None:
        """The next messages, up to about this many bytes and at least one; None when there are none yet. If told so,
        only those that begin before a position; None when there are none of them."""
        self._relieve()
        if before is None:
            if (batch := self.glance(bytes_max)) is not None:
                return batch
            if self.drained and self._clock.monotonic_s() < self._listed_s + _RELIST_S:
                return None
        try:
            return self._read(bytes_max, before)
        except FileMissing:
            # From afar a file that retention took cannot be read to its end.
            self._list()
            if self._segments and self._position < self._segments[0].data_base:
                raise self._overtaken(self._segments[0]) from None
            raise

    def _read(self, bytes_max: int, before: int | None) -> Batch | None:
        while True:
            view = self._view
            if view is None or (not self._window and not self._fill(view)):
                if not self._advance():
                    return None
                # A segment was opened: its head may be in memory, and a window of entries would keep us from looking.
                if before is None and (batch := self.glance(bytes_max)) is not None:
                    return batch
                continue
            self._skip()
            if self._window:
                return self._batch(view, bytes_max, before)

    def glance(self, bytes_max: int) -> Batch | None:
        """What the cache shows at first sight; None: nothing, or the long way must tell."""
        self._relieve()
        if (batch := self._shown()) is not None:
            return batch
        if self._nearby is not None and self._nearby.reopened() and (batch := self._shown()) is not None:
            return batch
        if self._strayed:  # now the files are needed
            self._come_back()
        head = self._head
        if head is None or self._window or self._position < self._not_before:
            return None
        if self._is_by_file():
            head.at_end = False
            return None
        begun_s = self._now_s()
        if (found := head.look(self._entry, self._position, bytes_max)) is None:
            return None
        batch = Batch(self.stream, self.shard, self._position, *found, proven=True)
        self._note(len(found[1]), begun_s, by_file=False)
        if batch.count * ENTRY_BYTES < len(found[0]):
            head.at_end = False  # what is wrong with the next one, the long way must tell
        if batch.count == 0:
            return None
        self._position, self._entry = batch.end, self._entry + batch.count
        return batch

    def _shown(self) -> Batch | None:
        """What the producer has in memory of this host, in place; None: nothing, or other ways must tell."""
        self.was_shown = self.shown_all = False
        nearby = self._nearby
        if nearby is None or self._view is None or self._window or self._position < self._not_before:
            return None
        reader = nearby.reader
        if reader is None:
            return None
        place = self.stream, self.shard, self._created_us, self._entry, self._position
        if (batch := reader.read(Batch, *place, nearby.batch_bytes)) is None:
            return None
        if reader.created_us != self._created_us:
            # On into the next segment, without a look at its files: hundreds would open them at the same moment.
            self._created_us, self._entry, self._strayed = reader.created_us, 0, True
        self._position, self._entry = batch.end, self._entry + batch.count
        self.was_shown, self.shown_all = True, reader.at_end
        return batch

    def watch(self, waiter: Waiter, patience_s: float, *, streams: bool) -> Vigil[Batch] | None:
        """Right after a batch that was shown: somebody who reads on from there by the shortest way, until anything else
        is asked of this tail. See `Vigil`."""
        nearby = self._nearby
        if nearby is None or nearby.reader is None or not self.was_shown:
            return None
        self._vigil = SheetVigil(
            nearby.reader,
            waiter,
            Batch,
            self.stream,
            self.shard,
            self._created_us,
            self._entry,
            self._position,
            nearby.batch_bytes,
            patience_s,
            drained=self.shown_all,
            streams=streams,
        )
        return self._vigil

    def watch_from_afar(self, watcher: Watcher, reading: threading.Lock, patience_s: float) -> Vigil[Batch] | None:
        """The same, right after a batch out of a cache on another host that was all there was."""
        if self._head is None or not self.drained or (lookout := self._head.lookout()) is None:
            return None
        follower, layers = lookout
        self._vigil = HeadVigil(
            follower,
            watcher,
            reading,
            partial(self._head.renew, layers),
            Batch,
            self.stream,
            self.shard,
            self._created_us,
            self._entry,
            self._position,
            self._head.far_bytes,
            patience_s,
            layers.bytes_from,
            layers.nearest,
        )
        return self._vigil

    def _relieve(self) -> None:
        """Go on where the vigil has come to."""
        vigil, self._vigil = self._vigil, None
        if vigil is not None:
            created_us, self._entry, self._position = vigil.relieve()
            if created_us != self._created_us:
                self._created_us, self._strayed = created_us, True

    def _come_back(self) -> None:
        """Open the segment that was only seen in memory, at the same place."""
        created_us, entry, position = self._created_us, self._entry, self._position
        self._list()
        segment = next((one for one in self._segments if one.created_us == created_us), None)
        if segment is not None and self._enter(segment):
            self._entry, self._position = entry, position
        else:
            self._go_to(position)

    def _fill(self, view: SegmentView) -> bool:
        """Read the next entries of the open segment into the window."""
        readable = self._readable(view)
        if self._entry < readable:
            by_file = self._is_by_file()
            self._window = view.entries(self._entry, min(readable - self._entry, _WINDOW_ENTRIES), by_file=by_file)
            self._window_proven = view.entries_proven
            if by_file and self._followed is not None:
                self._followed.note_durable(len(self._window))
            if not self._window and self._later(view.segment) is not None:
                raise self._corrupt(view, f"an index file that ends after {self._entry} of {readable} entries")
        return len(self._window) > 0

    def _readable(self, view: SegmentView) -> int:
        """How many entries of a segment are good."""
        later, length = self._later(view.segment), view.length()
        if later is None and not length.appending:
            # Nobody appends to it, so a segment may have come that cuts it, and then its own length says nothing.
            self._list()
            later = self._later(view.segment)
        if later is not None and view.segment not in self._segments:
            return self._entry  # retention took it, and perhaps the one that says where it ends: leave it
        if later is not None:
            return view.segment.entries_before(later)
        if length.readable_bytes == length.flushed_bytes:
            return entries_in(length.readable_bytes)
        # The appender's machine went down, so the tail may be torn. Looking is dear: once for each length.
        if self._judged is None or self._judged[:2] != (view.segment, length):
            self._judged = (view.segment, length, whole_entries(view, length))
        return self._judged[2]

    def _skip(self) -> None:
        """Drop messages that begin before where a seek wanted to go. A message begins where the one before it ends."""
        if self._position < self._not_before:
            ended_before = count_to_position(self._window, self._not_before - 1)
            self._consume(min(ended_before + 1, len(self._window) // ENTRY_BYTES))

    def _batch(self, view: SegmentView, bytes_max: int, before: int | None) -> Batch | None:
        start = self._position
        if before is not None and start >= before:
            return None
        by_file = self._is_by_file()
        if by_file or (self._followed is None and view.data_in_place):
            bytes_max = max(bytes_max, self._in_place_bytes)  # nothing of it is copied
        count = max(1, count_to_position(self._window, start + bytes_max))
        if before is not None:  # each begins where the one before it ends
            count = min(count, count_to_position(self._window, before - 1) + 1)
        end = entry_at(self._window, count - 1)[0]
        if not 0 < end - start <= max(bytes_max, _MESSAGE_BYTES_MAX):
            count, end = 1, entry_at(self._window, 0)[0]  # one of them is bad: go one by one until it is the first
        if not 0 < end - start <= _MESSAGE_BYTES_MAX:
            raise self._corrupt(view, "an entry that cannot be")
        begun_s = self._now_s()
        data = view.data(start, end, by_file=by_file)
        short = len(data) < end - start
        if short and view.data_length().readable_bytes >= end - view.segment.data_base:
            return None  # the file system shows the length before the bytes: not yet
        proven = self._window_proven and view.data_proven
        batch = Batch(self.stream, self.shard, start, self._window[: count * ENTRY_BYTES], data, proven=proven)
        if batch.count == 0:  # otherwise what is good before it comes first
            what = f"a data file that ends at {start + len(data)}" if short else "a message that fails its checksum"
            raise self._corrupt(view, what)
        in_vain = not (view.data_by_file if by_file else view.data_proven)
        self._note(len(data), begun_s, by_file=by_file, in_vain=in_vain)
        self._consume(batch.count)
        return batch

    def _is_by_file(self) -> bool:
        """Whether the next messages are read from the files without asking the cache."""
        quicker, view = self._quicker, self._view
        return quicker is not None and view is not None and quicker.is_files(self._position) and view.data_in_place

    def _now_s(self) -> float:
        """To see what is quicker, where that is a question."""
        return self._clock.monotonic_s() if self._quicker is not None and self._quicker.far else 0.0

    def _note(self, size: int, begun_s: float, *, by_file: bool, in_vain: bool = False) -> None:
        """A batch of so much was asked for and checked since then."""
        if self._quicker is None or self._followed is None or not begun_s:
            return
        self._quicker.took(self._position, size, self._clock.monotonic_s() - begun_s, files=by_file, in_vain=in_vain)
        if by_file and not in_vain:
            self._followed.note_durable(size)

    def _consume(self, count: int) -> None:
        if count:
            self._position = entry_at(self._window, count - 1)[0]
            self._window = self._window[count * ENTRY_BYTES :]
            self._entry += count

    def _overtaken(self, later: Segment) -> PositionRetired:
        return PositionRetired(
            f"{self.stream}/{self.shard}: position {self._position} is before {later.data_base}, where the retained "
            "messages begin: retention overtook this consumer. Seek to it, or to 'earliest', to go on",
            shard=self.shard,
            position=self._position,
            retained_start=later.data_base,
        )

    def _corrupt(self, view: SegmentView, what: str) -> Corrupt:
        start, end = self._position, entry_at(self._window, 0)[0] if self._window else 0
        try:
            limit = later.data_base if (later := self._later(view.segment)) else self.end()
        except Corrupt:
            limit = start  # then there is no place to go on from
        resume = end if start < end <= limit else limit
        return Corrupt(
            f"{self.stream}/{self.shard}: {what}, at position {start}: {view.data_path} byte "
            f"{start - view.segment.data_base}, {view.index_path} byte {entry_offset(self._entry)}. It was not "
            f"delivered, nor was anything after it. Seek to {resume} to go on without it; `tailrace verify` shows all "
            "damage",
            shard=self.shard,
            position=start,
            resume_position=resume,
        )

    # ---- moving between segments

    def _advance(self) -> bool:
        """Open the segment where the next message is; False while there is none."""
        current = self._view.segment if self._view else None
        if current is None or self._later(current) is None:
            alive = self._view is not None and self._view.length().appending
            if alive and self._clock.monotonic_s() - self._listed_s < _RELIST_S:
                return False
            self._list()
        if current is None:
            if not self._segments:
                return False
            self._go_to(self.position)
            return self._view is not None
        later = self._later(current)
        if later is None:
            return False
        if current not in self._segments and later.data_base > self._position:
            raise self._overtaken(later)
        if self._entry < current.entries_before(later):
            return True  # there is more in this one than it seemed
        if later.data_base != self._position:
            raise self._corrupt(self._view, f"the next file begins at {later.data_base}")  # type: ignore[arg-type]
        if self._enter(later):
            return True
        # It is not begun yet, or never will be: then one that was begun later stands in its place. Or retention took
        # it, and what stands behind it begins further on.
        self._list()
        later = self._later(current)
        if later is not None and later.data_base > self._position:
            raise self._overtaken(later)
        return later is not None and self._enter(later)

    def _enter(self, segment: Segment) -> bool:
        """Open a segment at its first entry; False while it is not whole yet."""
        wrap = None if self._followed is None else self._followed.wrap
        try:
            view = SegmentView(self._files, self._folder, segment, in_place=self._in_place, wrap=wrap)
        except FileMissing:
            self._list()  # retention was faster; the next look tells what is left
            return False
        try:
            later = self._later(segment)
            unfinished = later is not None and later.index_base == segment.index_base  # then it has no messages
            whole = unfinished or view.has_header(view.length(), later)
        except BaseException:
            view.close()
            raise
        if not whole:
            view.close()
            return False
        self._leave()
        self._view, self._entry, self._position = view, 0, segment.data_base
        self._created_us = segment.created_us
        if self._followed is not None:
            self._head = self._followed.head(segment)
            self._limit_head()
        return True

    def _leave(self) -> None:
        if self._view is not None:
            self._view.close()
        if self._head is not None:
            self._head.close()
        self._head = None
        self._view, self._window, self._entry, self._strayed = None, memoryview(b""), 0, False

    def rest(self) -> None:
        """There is nothing for now: hold nothing that others may need."""
        if self._head is not None:
            self._head.rest()

    def _limit_head(self) -> None:
        """Where a segment ends is said by its successor, not by whoever wrote it."""
        if self._head is not None and self._view is not None:
            later = self._later(self._view.segment)
            # If retention took it, and perhaps the one that says where it ends, what is left says nothing of it.
            if later is not None and self._view.segment in self._segments:
                self._head.end_at(self._view.segment.entries_before(later))

    def _later(self, segment: Segment) -> Segment | None:
        place = bisect_right(self._segments, segment.created_us, key=lambda other: other.created_us)
        return self._segments[place] if place < len(self._segments) else None

    def _list(self) -> None:
        self._segments = segments_of(self._files.list(self._folder))
        self._listed_s = self._clock.monotonic_s()
        if self._view is not None and self._view.segment not in self._segments:
            self._check_incarnation()  # retention took it, or the stream is gone
        self._limit_head()

    def _check_incarnation(self) -> None:
        """A position in a stream that was deleted means nothing in one that was made anew under its name. While there
        is none at all, nothing is known: the whole file system may be away, and come back."""
        if self.incarnation is None:
            return
        try:
            here = Catalog(self._files).incarnation(self.stream)
        except StreamMissing:
            return
        if here != self.incarnation:
            raise StreamMissing(
                f"the stream {self.stream!r} was deleted and made anew while it was read; open it again to read the "
                "new one from its beginning"
            )


def _first(count: int, holds: Callable[[int], bool]) -> int:
    """The first number below count for which it holds, given that it then holds for all after; count if for none."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
