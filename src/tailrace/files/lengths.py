"""How far the newest files of a shard go, in the cache and on disk: what one small read tells a consumer. Pure.

All of a shard lies in one entry of the lengths cache (A80). Lengths only grow; the cached one is over bytes that were
all written to the cache, the durable one over bytes that were flushed (A13, A34).
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Protocol

from typing_extensions import Buffer

from ..model.message_file import Track
from ..model.segment import Segment
from ..native import crc32c
from ..native.hints import SLOTS

VERSION = 2
FILES_MAX = 4  # newest segments that are told; who is further behind reads the files
_HEAD = struct.Struct("<4sBBHIqQ")
_SUMMED = 12  # what lies behind the sum
BEAT_AT = (8, 20)  # bytes that change with every beat, and say nothing of how far a shard goes: the sum, and the time
_FILE = struct.Struct("<QQQIIQQQQ")
_MAGIC = b"TRLN"


class LengthCache(Protocol):
    """The metadata cache: how far each shard goes."""

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]: ...

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object: ...


@dataclass(frozen=True, slots=True)
class SegmentLengths:
    """Of one segment. Chunk sizes are a file's for its whole life."""

    segment: Segment
    data_chunk_bytes: int
    index_chunk_bytes: int
    data_cached: int = 0
    index_cached: int = 0
    data_durable: int = 0
    index_durable: int = 0

    def chunk_bytes(self, track: Track) -> int:
        return self.data_chunk_bytes if track == "data" else self.index_chunk_bytes

    def cached(self, track: Track) -> int:
        return self.data_cached if track == "data" else self.index_cached

    def durable(self, track: Track) -> int:
        return self.data_durable if track == "data" else self.index_durable


@dataclass(frozen=True, slots=True)
class ShardLengths:
    """`beat_us`: when whoever produces said this, by its clock; it says so now and then even if nothing changed.
    `host`: where hints are raised when there is more, as a tag; 0: nowhere."""

    segments: tuple[SegmentLengths, ...] = ()
    beat_us: int = 0
    host: int = 0

    @property
    def newest(self) -> SegmentLengths:
        return self.segments[-1]

    def begin(self, lengths: SegmentLengths) -> "ShardLengths":
        return replace(self, segments=(*self.segments, lengths)[-FILES_MAX:])

    def with_newest(self, lengths: SegmentLengths) -> "ShardLengths":
        return replace(self, segments=(*self.segments[:-1], lengths))

    def of(self, segment: Segment) -> SegmentLengths | None:
        for found in reversed(self.segments):
            if found.segment == segment:
                return found
        return None

    def encode(self) -> bytes:
        body = b"".join(
            _FILE.pack(
                lengths.segment.created_us,
                lengths.segment.data_base,
                lengths.segment.index_base,
                lengths.data_chunk_bytes,
                lengths.index_chunk_bytes,
                lengths.data_cached,
                lengths.index_cached,
                lengths.data_durable,
                lengths.index_durable,
            )
            for lengths in self.segments
        )
        count, told = len(self.segments), struct.pack("<qQ", self.beat_us, self.host) + body
        return _HEAD.pack(_MAGIC, VERSION, count, 0, crc32c(told), self.beat_us, self.host) + body

    @classmethod
    def decode(cls, raw: bytes) -> "ShardLengths | None":
        """None: nothing that this version can read. The files tell the same, only later."""
        if not _count(raw):
            return None
        *_, beat_us, host = _HEAD.unpack_from(raw)
        segments = []
        for created_us, data_base, index_base, *rest in _FILE.iter_unpack(raw[_HEAD.size :]):
            segments.append(SegmentLengths(Segment(created_us, data_base, index_base), *rest))
        return cls(tuple(segments), beat_us, host)


def _count(raw: bytes) -> int:
    """How many segments it tells of; 0: it is nothing that this version can read."""
    if len(raw) < _HEAD.size:
        return 0
    magic, version, count, _, checksum, _, _ = _HEAD.unpack_from(raw)
    whole = magic == _MAGIC and version == VERSION and len(raw) == _HEAD.size + count * _FILE.size
    return count if whole and crc32c(memoryview(raw)[_SUMMED:]) == checksum else 0


def lengths_key(incarnation: str, shard: int) -> bytes:
    return b"lengths " + blake2b(f"{incarnation}/{shard}".encode(), digest_size=16).digest()


def hint_slot(incarnation: str) -> int:
    """Which word in shared memory is raised when a stream has news. Streams may share one: then some wake up for
    nothing."""
    return int.from_bytes(blake2b(incarnation.encode(), digest_size=8).digest(), "little") % SLOTS


def late_slot(incarnation: str) -> int:
    """The same, of what consumers of the producer's host could read before the cache had it: for those who cannot."""
    return hint_slot(f"{incarnation}/late")
