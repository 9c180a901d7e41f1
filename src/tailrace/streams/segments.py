"""How the files of a shard hang together: pure, from their names alone.

A segment is the data file and the index file of one creation time. The next segment's bases cut this one: an entry or a
byte behind that line was never acknowledged and is never looked at. So a producer that starts again after a crash needs
to mend nothing; it begins a new segment where the good bytes end.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ..model import MessageFile
from ..native import ENTRY_BYTES, crc32c

HEADER_BYTES = 48
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


@dataclass(frozen=True, slots=True)
class Segment:
    created_us: int
    data_base: int
    index_base: int

    @property
    def data_name(self) -> str:
        return MessageFile(self.created_us, self.data_base, "data").name

    @property
    def index_name(self) -> str:
        return MessageFile(self.created_us, self.index_base, "index").name

    def entries_before(self, later: "Segment") -> int:
        """How many messages this segment has, as the next one tells; a segment that was never finished has none."""
        return max(0, later.index_base - self.index_base - HEADER_BYTES) // ENTRY_BYTES

    def index_base_after(self, entries: int) -> int:
        return self.index_base + HEADER_BYTES + entries * ENTRY_BYTES


def entries_in(index_bytes: int) -> int:
    """How many whole entries an index file of this length has."""
    return max(0, index_bytes - HEADER_BYTES) // ENTRY_BYTES


def entry_offset(number: int) -> int:
    return HEADER_BYTES + number * ENTRY_BYTES


def segments_of(names: Iterable[str]) -> list[Segment]:
    """The segments among a folder's names, in order. A file without its other half is half made or half deleted."""
    data: dict[int, MessageFile] = {}
    index: dict[int, MessageFile] = {}
    for name in names:
        if file := MessageFile.parse(name):
            (data if file.track == "data" else index)[file.created_us] = file
    return [Segment(created, data[created].base, index[created].base) for created in sorted(data.keys() & index.keys())]


def newest_creation_us(names: Iterable[str]) -> int:
    """The newest creation time among all files, half ones too: a new name must sort behind them."""
    return max((file.created_us for name in names if (file := MessageFile.parse(name))), default=0)
