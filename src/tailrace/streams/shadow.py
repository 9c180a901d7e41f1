"""The producing end of the cache: what was flushed is written to the data cache in bulk, then the lengths are told.

A thread of its own does it, so that a cache that is away costs the producer nothing, and one that is slow next to
nothing: for one that takes what it gets, a flush waits a moment. Nothing is lost by it: consumers find in the files
what they miss. After an outage the cache goes on where the file stands (A42).
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from typing_extensions import Buffer

from ..env import Clock, give_way
from ..errors import TailraceError
from ..files.chunks import ChunkedFile, chunk_size_for, file_key
from ..files.lengths import SegmentLengths, ShardLengths, hint_slot, late_slot, lengths_key
from ..native import Packed
from ..native.hints import Hints
from ..native.sheets import Notice
from .layers import Layers
from .segments import Segment

BEAT_S = 0.25  # how often the lengths are told even though nothing changed: whoever produces is alive
_RETRY_S = 1.0  # before a cache that could not be opened is tried again
_PIECE_BYTES = 1 << 20  # of what is set at once: packed, sent and summed while it is in the processor's cache
_STEP_BYTES = 8 << 20  # after so much the lengths are told: what lies in the cache untold only pushes out what was told
_AHEAD_BYTES = 16 << 20  # more than this waits for the cache: then flushes wait for it, too …
_PATIENCE_S = 0.1  # … for so long; if that was not enough, they go on, until less waits
_FEW_BYTES = 64 << 10  # while no more than this waits, those who were woken on this host go first: …
_WAKE_S = 20e-6 / (os.cpu_count() or 1)  # … each of them takes about so long, by itself, …
_COURTESY_S, _COURTESY_S_MAX = 0.5e-3, 10e-3  # … and less than this is not worth a nap
_GATHER_S = 25e-3  # where nobody can be waiting for the cache, small flushes gather for so long, …
_RECENTLY_S = 1.0  # … unless somebody did within this time
_BEHIND_BYTES_MAX = 64 << 20  # of what waits, only the newest; the rest is old news by the time it would be written


@dataclass(frozen=True, slots=True)
class Appended:
    """Messages that have just become durable, and how long their segment's files are with them."""

    shard: int
    segment: Segment
    header: bytes  # of the segment's index
    packed: Packed
    data_length: int
    index_length: int
    notice: Notice | None = None  # of it, to the consumers of this host, as far as it was made ready
    shown: bool = False  # they were told where they can read it in place …
    woken: int = 0  # … and so many of them were asleep


class _Files:
    """The two files of a shard's newest segment."""

    def __init__(self, incarnation: str, first: Appended, chunk_bytes: int | None) -> None:
        shard, segment, packed = first.shard, first.segment, first.packed
        data_chunk = chunk_bytes or chunk_size_for(len(packed.data))
        index_chunk = chunk_bytes or chunk_size_for(len(packed.entries))
        self.data = ChunkedFile(file_key(incarnation, shard, segment.data_name, data_chunk), data_chunk)
        self.index = ChunkedFile(file_key(incarnation, shard, segment.index_name, index_chunk), index_chunk)
        self.header = first.header
        self.lengths = SegmentLengths(segment, data_chunk, index_chunk)
        self.torn = False

    def append(self, one: Appended) -> Iterable[tuple[bytes, Buffer]]:
        """The chunks it makes. None any more once a part was missed: whatever follows would lie at a wrong place."""
        data, entries = memoryview(one.packed.data).cast("B"), memoryview(one.packed.entries).cast("B")
        first = not self.index.length
        index_before = one.index_length - len(entries) - (len(self.header) if first else 0)
        self.torn |= self.data.length != one.data_length - len(data) or self.index.length != index_before
        self.lengths = replace(self.lengths, data_durable=one.data_length, index_durable=one.index_length)
        if self.torn:
            return
        if first:
            yield from self.index.append(memoryview(self.header))
        yield from self.data.append(data)
        yield from self.index.append(entries)

    def written(self) -> None:
        """All chunks so far are in the cache, or were skipped for good: then consumers find the gap in the files."""
        if not self.torn:
            self.lengths = replace(self.lengths, data_cached=self.data.length, index_cached=self.index.length)


class Shadow:
    """Of one producer, for all its shards. `layers` opens the cache, in the shadow's own thread. `hints` wake those who
    wait on this `host`, whether there is a cache or not. `alone`: there is no other host, and no copy elsewhere."""

    def __init__(
        self,
        layers: Callable[[], Layers | None],
        hints: Hints | None,
        incarnation: str,
        stream: str,
        clock: Clock,
        chunk_bytes: int | None = None,
        host: int = 0,
        *,
        alone: bool = False,
    ) -> None:
        self._open, self._hints, self._host = layers, hints, host if hints is not None else 0
        self._incarnation, self._clock, self._chunk_bytes, self._alone = incarnation, clock, chunk_bytes, alone
        self._layers: Layers | None = None
        self._opened_s = -_RETRY_S
        self._slot, self._late_slot = hint_slot(incarnation), late_slot(incarnation)
        self._waiting: deque[Appended] = deque()
        self._waiting_bytes = 0
        self._taking = True  # the cache takes what it gets, as far as is known …
        self._patient = True  # … and soon enough
        lock = threading.Lock()
        self._changing, self._shrinking = threading.Condition(lock), threading.Condition(lock)
        self._closing = self._napping = False
        self._late_s = -_RECENTLY_S  # when somebody of this host was last seen to wait for the cache
        self._files: dict[int, _Files] = {}
        self._told: dict[int, ShardLengths] = {}
        self._beat_s = 0.0  # when all of them were told
        self.skipped_bytes = 0  # that never came to the cache
        self._thread = threading.Thread(target=self._run, name=f"tailrace shadow {stream}", daemon=True)
        self._thread.start()

    def appended(self, one: Appended) -> None:
        """Called by whoever flushes, of each shard in order. Who outruns the cache waits: else what is flushed would be
        skipped there, and all consumers would be late at once."""
        with self._changing:
            self._waiting.append(one)
            self._waiting_bytes += _size(one)
            if not (self._napping and one.shown) or self._waiting_bytes > _FEW_BYTES:
                self._changing.notify()
            if not self._is_welcome() and not self._shrinking.wait_for(self._is_welcome, _PATIENCE_S):
                self._patient = False

    def _is_welcome(self) -> bool:
        """Whether a flush may go on: there is room, or nothing to wait for."""
        return self._waiting_bytes <= _AHEAD_BYTES or not (self._taking and self._patient)

    @property
    def taking(self) -> bool:
        """Whether what is flushed comes to the cache, as far as is known."""
        return self._taking

    def close(self) -> None:
        """Write what still waits, and end."""
        with self._changing:
            self._closing = True
            self._changing.notify()
        self._thread.join()

    def _run(self) -> None:
        give_way()
        self._taking = self._reach() is not None  # before there is anything to write: it takes a while to open
        while True:
            with self._changing:
                if not self._waiting and not self._closing:
                    self._changing.wait(BEAT_S)
                if nap_s := self._courtesy_s():
                    self._napping = True  # a flush more is no reason to wake: it has woken others, who go first, too
                    self._changing.wait(nap_s)
                    self._napping = False
                    self._is_awaited()  # by who has begun to meanwhile
                taken = self._take()
                behind_bytes, closing = self._waiting_bytes, self._closing
            if closing and not taken:
                return
            layers = self._layers if closing else self._reach()
            if taken:
                self._taking = self._write(layers, taken, behind_bytes)
            now_s = self._clock.monotonic_s()
            if not taken or now_s >= self._beat_s + BEAT_S:  # a busy shard must not make the others look dead
                self._beat_s = now_s
                self._tell(layers, self._told)

    def _courtesy_s(self) -> float:
        """How long to let those run who were woken on this host and need nothing of the cache: a hundred of them, on a
        few cores, would wait for us. Not if somebody of this host waits for the cache. On others they wait with us; if
        there are none, nobody does, and small flushes gather for as long as may be: each takes as long as many."""
        if self._closing or not self._waiting or self._waiting_bytes > _FEW_BYTES or self._hints is None:
            return 0.0
        if self._is_awaited():
            return 0.0
        awaited_lately = self._clock.monotonic_s() < self._late_s + _RECENTLY_S
        if self._alone and not awaited_lately and all(one.shown for one in self._waiting):
            return _GATHER_S
        nap_s = _WAKE_S * max(one.woken for one in self._waiting)
        return min(nap_s, _COURTESY_S_MAX) if nap_s >= _COURTESY_S else 0.0

    def _is_awaited(self) -> bool:
        """Whether somebody of this host waits for the cache now."""
        if self._hints is None or not self._hints.waiters(self._late_slot):
            return False
        self._late_s = self._clock.monotonic_s()
        return True

    def _take(self) -> list[Appended]:
        """The oldest of what waits, about a step of it."""
        taken: list[Appended] = []
        size = 0
        while self._waiting and (not taken or size + _size(self._waiting[0]) <= _STEP_BYTES):
            taken.append(self._waiting.popleft())
            size += _size(taken[-1])
        self._waiting_bytes -= size
        self._patient |= self._waiting_bytes <= _AHEAD_BYTES
        self._shrinking.notify_all()
        return taken

    def _reach(self) -> Layers | None:
        if self._layers is None and self._clock.monotonic_s() >= self._opened_s + _RETRY_S:
            self._opened_s = self._clock.monotonic_s()
            with suppress(TailraceError):  # without a cache consumers read the files
                self._layers = self._open()
        return self._layers

    def _write(self, layers: Layers | None, taken: Sequence[Appended], behind_bytes: int) -> bool:
        """Whether the cache took it. `behind_bytes`: how much waits behind it."""
        chunks: dict[bytes, Buffer] = {}
        touched: set[int] = set()
        behind_bytes += sum(map(_size, taken))
        for one in taken:
            files = self._files.get(one.shard)
            if files is None or files.lengths.segment != one.segment:
                if files is not None:
                    files.written()
                    self._told[one.shard] = self._told[one.shard].with_newest(files.lengths)
                files = self._files[one.shard] = _Files(self._incarnation, one, self._chunk_bytes)
                self._told[one.shard] = self._told.get(one.shard, ShardLengths()).begin(files.lengths)
            made = dict(files.append(one))
            touched.add(one.shard)
            if layers is not None and behind_bytes <= max(_BEHIND_BYTES_MAX, _size(one)):
                chunks.update(made)
            else:
                self.skipped_bytes += _size(one)
            behind_bytes -= _size(one)
        cached = layers is not None and self._set(layers, chunks)
        if not cached:
            self.skipped_bytes += sum(len(memoryview(chunk)) for chunk in chunks.values())
        for shard in touched:
            if cached:
                self._files[shard].written()
            self._told[shard] = self._told[shard].with_newest(self._files[shard].lengths)
        self._tell(layers, {shard: self._told[shard] for shard in touched})
        if self._hints is not None:
            for slot in {self._late_slot if one.shown else self._slot for one in taken}:
                self._hints.raise_(slot)
        return cached

    def _set(self, layers: Layers, chunks: dict[bytes, Buffer]) -> bool:
        try:
            for piece in _pieces(chunks):
                layers.data.set_many(piece)
        except TailraceError:  # some may be there, and all of them are right; but the length must not go over them
            return False
        return True

    def _tell(self, layers: Layers | None, told: dict[int, ShardLengths]) -> None:
        beat_us = self._clock.time_us()
        entries = {
            lengths_key(self._incarnation, shard): replace(lengths, beat_us=beat_us, host=self._host).encode()
            for shard, lengths in told.items()
        }
        if entries and layers is not None:
            with suppress(TailraceError):  # consumers ask the files when they hear nothing
                layers.lengths.set_many(entries)


def _pieces(chunks: dict[bytes, Buffer]) -> Iterable[dict[bytes, Buffer]]:
    piece: dict[bytes, Buffer] = {}
    size = 0
    for key, chunk in chunks.items():
        piece[key] = chunk
        size += len(memoryview(chunk))
        if size >= _PIECE_BYTES:
            yield piece
            piece, size = {}, 0
    if piece:
        yield piece


def _size(one: Appended) -> int:
    return len(one.packed.data) + len(one.packed.entries)
