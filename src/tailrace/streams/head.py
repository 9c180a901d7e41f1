"""The quick way to what is new at the head of a shard, where most consumers stand most of the time.

It knows one case only: the segment is being written, its producer was heard of lately, and the cache has what is new.
Whatever else may be the case is left to the long way, which asks more and decides the same in this one.
"""

from collections.abc import Callable

from ..env import Clock
from ..files.chunks import Part
from ..files.lengths import SegmentLengths, newest_in
from ..native import ENTRY_BYTES, Block, count_to_position, entry_at
from .layers import Layers
from .segments import Segment, entries_in, entry_offset
from .tracks import SILENT_S

_ENTRIES_MAX = 16384  # at a time


class Head:
    """Of one segment. `told`: what the lengths cache says of its shard, raw, and when it began to say so; the same
    object as long as it says the same. `key`: what the chunks of one of its files have as theirs, by name and size."""

    def __init__(
        self,
        segment: Segment,
        told: Callable[[], tuple[bytes | None, float]],
        layers: Callable[[], Layers | None],
        key: Callable[[str, int], bytes],
        clock: Clock,
    ) -> None:
        self._segment, self._told, self._layers, self._key, self._clock = segment, told, layers, key, clock
        self._raw: bytes | None = None
        self._lengths: SegmentLengths | None = None
        self._index_key = self._data_key = b""
        self.at_end = False  # whether the last look was certain that there is nothing

    def look(self, entry: int, start: int, bytes_max: int) -> tuple[memoryview, int, memoryview] | None:
        """Entries from this one on, of how many of them the data is here, and that data; None: the long way must tell,
        unless `at_end`."""
        self.at_end = False
        raw, said_s = self._told()
        if raw is not self._raw:
            self._learn(raw)
        lengths = self._lengths
        if lengths is None or self._clock.monotonic_s() > said_s + SILENT_S:
            return None
        fresh = entries_in(lengths.index_cached) - entry
        if fresh <= 0:
            self.at_end = fresh == 0 and lengths.index_cached == lengths.index_durable
            return None
        layers = self._layers()
        if layers is None:
            return None
        size = min(fresh, _ENTRIES_MAX) * ENTRY_BYTES
        entries = _gather(layers, self._index_key, lengths.index_chunk_bytes, entry_offset(entry), size)
        if entries is None:
            return None
        count = max(1, count_to_position(entries, start + bytes_max))
        length = entry_at(entries, count - 1)[0] - start
        if not 0 < length <= bytes_max:
            return None  # one large message, or something that cannot be
        data = _gather(layers, self._data_key, lengths.data_chunk_bytes, start - self._segment.data_base, length)
        if data is None:
            return None
        layers.bytes_from[layers.nearest] += size + length
        return entries, count, data

    def _learn(self, raw: bytes | None) -> None:
        before, newest = self._lengths, None if raw is None else newest_in(raw)
        self._raw, self._lengths = raw, newest if newest is not None and newest.segment == self._segment else None
        if self._lengths is not None and before is None:  # chunk sizes are a file's for its whole life
            self._index_key = self._key(self._segment.index_name, self._lengths.index_chunk_bytes)
            self._data_key = self._key(self._segment.data_name, self._lengths.data_chunk_bytes)


def _gather(layers: Layers, key: bytes, stride: int, offset: int, size: int) -> memoryview | None:
    """These bytes of a file, if a relaxed look at the cache finds all of them."""
    part = Part.of(offset, size, stride)
    block = memoryview(Block(part.count * stride))
    got = layers.data.get_parts(key, part.first, part.count, block, stride, relaxed=True)
    return block[part.skip : part.skip + size] if part.complete(got, size, stride) else None
