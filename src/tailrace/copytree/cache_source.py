"""The reading half of a cache operation: sends what is new in this cluster's cache, in whatever order it is read.

It reads at most up to the length that is recorded for the cache, though missing chunks come from the file: so the
copies of cache and file, which read from each other, never wait for each other (A31). A slow read from the file does
not hold up what comes after it (A30). What is too old for a cache is skipped: only those at the head read from there.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace

from ..env import Clock, SystemClock
from ..errors import FileMissing, TailraceError
from ..files import Files
from ..files.lengths import SegmentLengths, ShardLengths
from ..model.message_file import TRACKS, Track
from ..model.segment import Segment
from ..wire import Batch, Operation, Piece, Standing
from .hot_bytes import Layers, cached_bytes, told_lengths

PIECE_BYTES = 512 << 10  # what a producer flushes at a time fits, so that its index comes along
BEHIND_BYTES_MAX = 64 << 20  # who is further behind goes on near the head, …
LATE_BYTES, LATE_S = 1 << 20, 0.2  # … and so does who has been so far behind for so long: the file is ahead by then
_READING_MAX = 8  # slow reads at a time


@dataclass(slots=True)
class _Sent:
    """Of the segment that is sent now."""

    segment: Segment
    start: dict[Track, int]  # below this nothing is sent
    sent: dict[Track, int]


class CacheSource:
    """`layers`: the cache now, or None. `pool`: for slow reads; without one they are done at once."""

    def __init__(
        self,
        files: Files,
        operation: Operation,
        incarnation: str,
        layers: Callable[[], Layers | None],
        *,
        pool: Executor | None = None,
        wake: Callable[[], object] = lambda: None,
        piece_bytes: int = PIECE_BYTES,
        behind_bytes_max: int = BEHIND_BYTES_MAX,
        clock: Clock | None = None,
    ) -> None:
        self._files, self._operation, self._incarnation, self._layers = files, operation, incarnation, layers
        self._pool, self._wake = pool, wake
        self._piece_bytes, self._behind_bytes_max = piece_bytes, behind_bytes_max
        self._clock = clock or SystemClock()
        self._caught_up_s = self._clock.monotonic_s()  # when it was close to the head last
        self._folder = f"streams/{operation.stream}/{operation.shard:05d}"
        self._standing = Standing()
        self._at: _Sent | None = None
        self._look: SegmentLengths | None = None
        self._told: ShardLengths | None = None
        self._reading: deque[Future[Batch | _Gap]] = deque()

    @property
    def gather_s(self) -> float:
        return 0.0  # consumers wait for it

    def begin(self, standing: Standing) -> None:
        """Where the target's own file stands: the copy begins at that chunk (A42)."""
        self._standing, self._at, self._look = standing, None, None

    @property
    def behind_bytes(self) -> int:
        if self._told is None or self._at is None:
            return 0
        mine = self._told.of(self._at.segment)
        return 0 if mine is None else sum(max(0, mine.cached(track) - self._at.sent[track]) for track in TRACKS)

    def next_batch(self, room_bytes: int) -> Batch | None:
        for number, future in enumerate(self._reading):
            if future.done():
                del self._reading[number]
                return self._mended(future.result())
        if len(self._reading) >= _READING_MAX:
            return None
        layers = self._layers()
        if layers is None:
            return None
        # What one look has shown is sent to its end, data and index, before the next look: a stream that never rests
        # would else have new data each time, and its index would never come.
        if self._look is None or not self._has_more(self._look):
            self._look = self._found(layers)
        if (mine := self._look) is None:
            return None
        return self._batch(layers, mine, min(max(room_bytes, 1), self._piece_bytes))

    def beat(self) -> Batch:
        return Batch(beat_us=self._told.beat_us if self._told is not None else 0)

    def close(self) -> None:
        for future in self._reading:
            future.cancel()

    # ---- inside

    def _found(self, layers: Layers) -> SegmentLengths | None:
        try:
            self._told = told_lengths(layers, self._incarnation, self._operation.shard)
        except TailraceError:  # without the cache there is nothing to copy; the files go their own way
            return None
        return None if self._told is None else self._choose(self._told)

    def _sent(self, track: Track) -> int:
        assert self._at is not None
        return self._at.sent[track]

    def _choose(self, told: ShardLengths) -> SegmentLengths:
        """The segment to send from: the one that is sent now, until all of it is and there is a newer one."""
        if self._at is not None:
            mine = told.of(self._at.segment)
            if mine is not None and (mine is told.newest or self._has_more(mine)):
                self._skip_if_behind(mine)
                return mine
            later = [one for one in told.segments if one.segment.created_us > self._at.segment.created_us]
            return self._enter(later[0] if later else told.newest)
        standing = self._standing
        mine = None if standing.segment is None else told.of(standing.segment)
        return self._enter(told.newest if mine is None else mine)

    def _has_more(self, mine: SegmentLengths) -> bool:
        return (
            self._at is not None
            and self._at.segment == mine.segment
            and any(mine.cached(track) > self._sent(track) for track in TRACKS)
        )

    def _enter(self, lengths: SegmentLengths) -> SegmentLengths:
        there = self._standing if self._standing.segment == lengths.segment else Standing()
        start = {
            track: _chunk_start(min(there.length(track), lengths.cached(track)), lengths, track) for track in TRACKS
        }
        self._at = _Sent(lengths.segment, start, dict(start))
        self._skip_if_behind(lengths)
        return lengths

    def _skip_if_behind(self, lengths: SegmentLengths) -> None:
        assert self._at is not None
        now_s = self._clock.monotonic_s()
        behind = max(lengths.cached(track) - self._at.sent[track] for track in TRACKS)
        if behind <= LATE_BYTES:
            self._caught_up_s = now_s
        if behind > self._behind_bytes_max or now_s > self._caught_up_s + LATE_S:
            self._caught_up_s = now_s
            for track in TRACKS:
                start = _chunk_start(lengths.cached(track), lengths, track)
                if start > self._at.sent[track]:
                    self._at.start[track] = self._at.sent[track] = start

    def _batch(self, layers: Layers, mine: SegmentLengths, size_max: int) -> Batch | None:
        """Both files in one, the data first: who has the index has its data."""
        assert self._at is not None
        head = Batch(
            segment=mine.segment,
            beat_us=self._told.beat_us if self._told is not None else 0,
            data_chunk_bytes=mine.data_chunk_bytes,
            index_chunk_bytes=mine.index_chunk_bytes,
            data_start=self._at.start["data"],
            index_start=self._at.start["index"],
            data_needed=mine.data_cached,
        )
        pieces: tuple[Piece, ...] = ()
        for track in TRACKS:
            size = min(mine.cached(track) - self._sent(track), size_max)
            if size > 0:
                size_max -= size
                pieces += self._read(layers, head, mine, track, size)
        return replace(head, pieces=pieces) if pieces else None

    def _read(
        self, layers: Layers, head: Batch, mine: SegmentLengths, track: Track, size: int
    ) -> tuple[Piece] | tuple[()]:
        assert self._at is not None
        offset = self._at.sent[track]
        self._at.sent[track] = offset + size
        try:
            found, missing = cached_bytes(layers, self._incarnation, self._operation.shard, mine, track, offset, size)
        except TailraceError:
            found, missing = memoryview(bytearray(size)), [(offset, offset + size)]
        if not missing:
            return (Piece(track, offset, found),)
        if self._pool is None:
            mended = self._mended(self._mend(head, mine.segment, track, offset, found, missing))
            return () if mended is None else (mended.pieces[0],)
        future = self._pool.submit(self._mend, head, mine.segment, track, offset, found, missing)
        self._reading.append(future)
        future.add_done_callback(lambda _: self._wake())
        return ()

    def _mend(
        self,
        head: Batch,
        segment: Segment,
        track: Track,
        offset: int,
        found: memoryview,
        missing: list[tuple[int, int]],
    ) -> "Batch | _Gap":
        """One read of the file over all that is missing (A28)."""
        start, end = missing[0][0], missing[-1][1]
        try:
            with self._files.view(f"{self._folder}/{segment.name(track)}") as view:
                buffer = bytearray(end - start)
                count = view.read_into(start, memoryview(buffer))
        except FileMissing:
            count = 0
        if count < end - start:
            return _Gap(segment, track, end)
        found[start - offset : end - offset] = buffer
        return replace(head, pieces=(Piece(track, offset, found),))

    def _mended(self, result: "Batch | _Gap") -> Batch | None:
        """In a cluster that has a copy itself the file may be behind the cache, and the chunk gone: the copy has a gap
        from now on, and goes on behind it."""
        if isinstance(result, Batch):
            return result
        at, mine = self._at, self._told.of(result.segment) if self._told is not None else None
        if at is not None and at.segment == result.segment and mine is not None:
            size = mine.chunk_bytes(result.track)
            at.start[result.track] = at.sent[result.track] = -(-result.end // size) * size
        return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """Bytes that neither the cache nor the file has."""

    segment: Segment
    track: Track
    end: int


def _chunk_start(length: int, lengths: SegmentLengths, track: Track) -> int:
    return length - length % lengths.chunk_bytes(track)
