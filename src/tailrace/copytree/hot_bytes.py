"""The cache of a cluster, as readers and writers of the copy tree use it: chunks of files, and how far files go."""

from typing import Protocol

from ..errors import TailraceError
from ..files.chunks import ChunkCache, Part, file_key, short_ones
from ..files.lengths import LengthCache, SegmentLengths, ShardLengths, lengths_key
from ..model.message_file import Track
from ..model.segment import Segment
from ..native import Block


class Layers(Protocol):
    @property
    def data(self) -> ChunkCache: ...

    @property
    def lengths(self) -> LengthCache: ...


def told_lengths(layers: Layers, incarnation: str, shard: int) -> ShardLengths | None:
    """What the cache says of a shard; None: nothing, or nothing that can be read."""
    (raw,) = layers.lengths.get_many([lengths_key(incarnation, shard)])
    return None if raw is None else ShardLengths.decode(raw)


def cached_bytes(
    layers: Layers, incarnation: str, shard: int, lengths: SegmentLengths, track: Track, offset: int, size: int
) -> tuple[memoryview, list[tuple[int, int]]]:
    """Bytes of a file, and which runs of them are missing: one replica is asked first, then a quorum (A27)."""
    stride = lengths.chunk_bytes(track)
    key = file_key(incarnation, shard, lengths.segment.name(track), stride)
    part = Part.of(offset, size, stride)
    block = memoryview(Block(part.count * stride))
    wanted = part.wanted(size, stride)
    missing = short_ones(layers.data.get_parts(key, part.first, part.count, block, stride, relaxed=True), wanted)
    if missing:
        again = layers.data.get_parts(key, part.first, part.count, block, stride, only=missing)
        missing = [number for number in missing if again[number] < wanted[number]]
    base, end = part.first * stride, offset + size
    runs = [
        (max(base + number * stride, offset), min(base + number * stride + wanted[number], end)) for number in missing
    ]
    return block[part.skip : part.skip + size], runs


def all_cached(
    layers: Layers | None, incarnation: str, shard: int, segment: Segment, track: Track, offset: int, size: int
) -> memoryview | None:
    """The bytes if the cache has all of them: it is not worth a try otherwise."""
    try:
        told = None if layers is None else told_lengths(layers, incarnation, shard)
        mine = None if told is None else told.of(segment)
        if layers is None or mine is None or mine.cached(track) < offset + size:
            return None
        found, missing = cached_bytes(layers, incarnation, shard, mine, track, offset, size)
    except TailraceError:
        return None
    return None if missing else found
