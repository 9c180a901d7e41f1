"""The index file of a segment: its header, and where its entries lie. Pure."""

import struct
from dataclasses import dataclass

from ..model.segment import ENTRY_BYTES, HEADER_BYTES, Segment, newest_creation_us, segments_of
from ..native import crc32c

__all__ = [
    "HEADER_BYTES",
    "IndexHeader",
    "Segment",
    "entries_in",
    "entry_offset",
    "newest_creation_us",
    "segments_of",
]

VERSION = 1
_MAGIC = b"TAILRACE"
_HEADER = struct.Struct("<8sHHHHQQqI")


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """The head of an index file: what it is, and where in the shard it begins."""

    created_us: int
    base_position: int
    base_number: int  # messages in the shard before this file

    def encode(self) -> bytes:
        body = _HEADER.pack(
            _MAGIC, VERSION, HEADER_BYTES, ENTRY_BYTES, 0, self.base_position, self.base_number, self.created_us, 0
        )
        return body + struct.pack("<I", crc32c(body))

    @classmethod
    def decode(cls, raw: bytes) -> "IndexHeader":
        """ValueError says what is wrong with it."""
        if len(raw) != HEADER_BYTES:
            raise ValueError(f"has {len(raw)} bytes of a {HEADER_BYTES}-byte header")
        if raw[:8] != _MAGIC:
            raise ValueError("does not begin like an index file")
        _, version, header_bytes, entry_bytes, _, position, number, created_us, _ = _HEADER.unpack_from(raw)
        if version != VERSION:
            raise ValueError(f"has format version {version}; this Tailrace reads version {VERSION}")
        if crc32c(raw[: _HEADER.size]) != struct.unpack_from("<I", raw, _HEADER.size)[0]:
            raise ValueError("has a header that fails its checksum")
        if (header_bytes, entry_bytes) != (HEADER_BYTES, ENTRY_BYTES):
            raise ValueError(f"has entries of {entry_bytes} bytes behind a header of {header_bytes}")
        return cls(created_us, position, number)


def entries_in(index_bytes: int) -> int:
    """How many whole entries an index file of this length has."""
    return max(0, index_bytes - HEADER_BYTES) // ENTRY_BYTES


def entry_offset(number: int) -> int:
    return HEADER_BYTES + number * ENTRY_BYTES
