"""The writing half of a cache operation: puts chunks into this cluster's cache as they come, then tells the lengths.

It alone tells the lengths of its shard here, those of the file, too: it looks at them when it speaks. While it is away
consumers ask the files. Two of them at a time do each other no harm but work; the lock sees to it that the older stops.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..env import Clock
from ..errors import DeadlineExceeded, FileMissing, Superseded, TailraceError, WireRefused
from ..files import FileLength, Files, View
from ..files.chunks import chunk_key, file_key
from ..files.lengths import FILES_MAX, SegmentLengths, ShardLengths, lengths_key
from ..model.message_file import TRACKS, Track
from ..model.segment import Segment, segments_of
from ..wire import Batch, Opening, Standing
from .cache_lock import Act, CacheLock, Go, Stop, Wait, Write, lock_key
from .chunk_writes import ChunkWrites, IndexNeeds, WriteChunks
from .hot_bytes import Layers
from .settings import StreamSettings

TELL_S = 0.9  # how often lengths are told at least
CHECK_S = 0.25  # how often the lock is looked at
_LOOK_S = 0.001
_LIST_S = 0.5  # how often the folder is looked at for new files, …
_DURABLE_S = 0.02  # … and at most how often the files for their lengths: they grow more rarely than chunks come
_LOCK_S_MAX = 3.0


class CacheTarget:
    """`holder`: 16 bytes that nobody else has. `pause` sleeps for so long. `host`: the tag of where `on_written` wakes
    consumers."""

    def __init__(
        self,
        files: Files,
        opening: Opening,
        settings: StreamSettings,
        layers: Layers,
        clock: Clock,
        holder: bytes,
        *,
        pause: Callable[[float], object],
        host: int = 0,
        on_written: Callable[[], object] = lambda: None,
    ) -> None:
        self._files, self._operation, self._layers, self._clock = files, opening.operation, layers, clock
        self._incarnation, self._pause, self._on_written = settings.incarnation, pause, on_written
        self._shard, self._host = opening.operation.shard, host
        self._folder = f"streams/{opening.operation.stream}/{self._shard:05d}"
        self._lock, self._lock_key = CacheLock(holder), lock_key(settings.incarnation, self._shard)
        self._lengths_key = lengths_key(settings.incarnation, self._shard)
        self._writes: dict[Segment, dict[Track, ChunkWrites]] = {}
        self._needs: dict[Segment, IndexNeeds] = {}
        self._told = ShardLengths()
        self._told_s = self._checked_s = float("-inf")
        self._views: dict[tuple[Segment, Track], View] = {}
        self._local: list[Segment] = []
        self._looked_s = self._durable_s = float("-inf")
        self._taken_bytes = self._beat_us = 0

    @property
    def waits(self) -> bool:
        return False

    def begin(self) -> Standing:
        end_s = self._clock.monotonic_s() + _LOCK_S_MAX
        while not isinstance(act := self._try_lock(), Go):
            if self._clock.monotonic_s() > end_s:
                raise DeadlineExceeded(f"{self._operation}: the lock of its cache changed hands for {_LOCK_S_MAX:g} s")
            if isinstance(act, Wait):
                self._pause(_LOOK_S)
        self._checked_s = self._clock.monotonic_s()
        (raw,) = self._layers.lengths.get_many([self._lengths_key])
        self._told = (raw is not None and ShardLengths.decode(raw)) or ShardLengths()
        self._look()
        if not self._local:
            return Standing()
        newest = self._local[-1]
        return Standing(
            segment=newest, data_length=self._durable(newest, "data"), index_length=self._durable(newest, "index")
        )

    def take(self, batch: Batch) -> None:
        self._check_lock()
        self._beat_us = max(self._beat_us, batch.beat_us)
        self._taken_bytes += batch.size
        if batch.segment is not None:
            self._receive(batch.segment, batch)

    def settle(self) -> Standing:
        moved = self._write()
        now_s = self._clock.monotonic_s()
        if moved or now_s >= self._told_s + TELL_S:
            self._tell(max(self._beat_us, self._told.beat_us))
            self._told_s = now_s
        return Standing(taken_bytes=self._taken_bytes)

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self._views = {}
        with suppress(TailraceError):
            (raw,) = self._layers.lengths.get_many([self._lock_key])
            if (left := self._lock.release(raw)) is not None:
                self._layers.lengths.set_many({self._lock_key: left.value})

    # ---- the lock

    def _try_lock(self) -> Act:
        (raw,) = self._layers.lengths.get_many([self._lock_key])
        act = self._lock.seen(raw, self._clock.monotonic_s())
        match act:
            case Stop():
                raise Superseded(f"{self._operation}: a newer operation writes its cache now")
            case Write(value):
                self._layers.lengths.set_many({self._lock_key: value})
        return act

    def _check_lock(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._checked_s + CHECK_S:
            self._checked_s = now_s
            self._try_lock()

    # ---- bytes

    def _receive(self, segment: Segment, batch: Batch) -> None:
        sizes: dict[Track, int] = {"data": batch.data_chunk_bytes, "index": batch.index_chunk_bytes}
        starts: dict[Track, int] = {"data": batch.data_start, "index": batch.index_start}
        if min(sizes.values()) <= 0 or any(starts[track] % sizes[track] for track in TRACKS):
            raise WireRefused(f"{self._operation}: chunks of {sizes}, beginning at {starts}")
        known = self._writes.get(segment)
        if known is None:
            if self._writes and segment.created_us < max(one.created_us for one in self._writes):
                return  # old news
            known = {track: ChunkWrites(sizes[track], starts[track]) for track in TRACKS}
            self._writes[segment] = known
            for old in sorted(self._writes, key=lambda one: one.created_us)[:-FILES_MAX]:
                del self._writes[old]
                self._needs.pop(old, None)
        for track in TRACKS:
            if known[track].chunk_bytes != sizes[track]:
                raise WireRefused(f"{self._operation}: the chunks of {segment.name(track)} changed their size")
            known[track].jump(starts[track])
        for piece in batch.pieces:
            known[piece.track].receive(piece.offset, piece.content)
            if piece.track == "index":
                self._needs.setdefault(segment, IndexNeeds()).add(piece.offset, batch.data_needed)

    def _write(self) -> bool:
        """Write what may be written; whether a length has grown."""
        before = {(segment, track): writes.length for segment, track, writes in self._all()}
        orders: list[tuple[ChunkWrites, WriteChunks]] = []
        chunks: list[tuple[bytes, bytes | memoryview]] = []
        for segment, track, writes in self._all():
            if due := writes.due():
                size = writes.chunk_bytes
                file = file_key(self._incarnation, self._shard, segment.name(track), size)
                for order in due:
                    orders.append((writes, order))
                    chunks += [(chunk_key(file, number), content) for number, content in order.chunks(size)]
        if orders:
            # A failure ends the operation: the next one begins where the file stands then (A42).
            self._layers.data.set_many(chunks)
            for writes, order in orders:
                writes.written(order)
        return any(before[segment, track] != writes.length for segment, track, writes in self._all())

    def _all(self) -> list[tuple[Segment, Track, ChunkWrites]]:
        return [(segment, track, writes) for segment, both in self._writes.items() for track, writes in both.items()]

    # ---- lengths

    def _tell(self, beat_us: int) -> None:
        now_s = self._clock.monotonic_s()
        if now_s >= self._looked_s + _LIST_S or any(segment not in self._local for segment in self._writes):
            self._looked_s = now_s
            self._look()
        for segment in sorted(self._writes, key=lambda one: one.created_us):
            both = self._writes[segment]
            index = self._needs.get(segment, IndexNeeds()).covered(both["index"].length, both["data"].length)
            found = self._told.of(segment) or SegmentLengths(
                segment, both["data"].chunk_bytes, both["index"].chunk_bytes
            )
            fresh = replace(
                found,
                data_cached=max(found.data_cached, both["data"].length),
                index_cached=max(found.index_cached, index),
            )
            self._told = _with_segment(self._told, fresh)
        told = self._told.segments
        if now_s >= self._durable_s + _DURABLE_S:
            self._durable_s = now_s
            told = tuple(map(self._with_durable, told))
        self._told = ShardLengths(told, beat_us, self._host)
        if told:
            self._layers.lengths.set_many({self._lengths_key: self._told.encode()})
            self._on_written()

    def _with_durable(self, one: SegmentLengths) -> SegmentLengths:
        return replace(
            one,
            data_durable=max(one.data_durable, self._durable(one.segment, "data")),
            index_durable=max(one.index_durable, self._durable(one.segment, "index")),
        )

    def _look(self) -> None:
        self._local = segments_of(self._files.list(self._folder))[-FILES_MAX:]
        for key in [key for key in self._views if key[0] not in self._local]:
            self._views.pop(key).close()

    def _durable(self, segment: Segment, track: Track) -> int:
        if segment not in self._local:
            return 0
        place = self._local.index(segment)
        if place + 1 < len(self._local):
            return self._local[place + 1].base(track) - segment.base(track)
        try:
            if track == "index" and (data := self._length(segment, "data")).flushed_bytes < data.readable_bytes:
                return 0  # the machine went down: which entries have their data is not settled yet
            return self._length(segment, track).flushed_bytes
        except FileMissing:
            return 0

    def _length(self, segment: Segment, track: Track) -> FileLength:
        if (segment, track) not in self._views:
            self._views[segment, track] = self._files.view(f"{self._folder}/{segment.name(track)}")
        return self._views[segment, track].length()


def _with_segment(told: ShardLengths, fresh: SegmentLengths) -> ShardLengths:
    others = [one for one in told.segments if one.segment != fresh.segment]
    together = sorted([*others, fresh], key=lambda one: one.segment.created_us)
    return replace(told, segments=tuple(together[-FILES_MAX:]))
