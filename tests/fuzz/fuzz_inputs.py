"""What is fed to the readers: inputs as small files, and the handful of them that every run begins with.

    .records   start i64 | bytes of entries u32 | entries | data
    .columns   first i64 | count i64 | six times (length i32, -1 for none | bytes)
    .header    the head of an index file
    .fence     a fence file
    .names     names of files, one on each line

The seeds are written by `fuzz_records.py --write-corpus`, so each of them can be made again when a format changes.
"""

import struct
from dataclasses import dataclass
from pathlib import Path

from native import model
from native.buffers import whole
from tailrace.env import Identity
from tailrace.files.fence import FenceRecord, State
from tailrace.native import Packer
from tailrace.streams.segments import IndexHeader

_RECORDS = struct.Struct("<qI")
_COLUMNS = struct.Struct("<qq")
_LENGTH = struct.Struct("<i")
U64_MAX = 2**64 - 1

HEADER = IndexHeader(created_us=1_700_000_000_000_000, base_position=4096, base_number=77)
FENCE = FenceRecord(
    nonce=5,
    flushed_bytes=4096,
    state=State.SEALED,
    identity=Identity(host=b"h" * 16, boot=b"b" * 16),
    owner="producer-é",
)
NAMES = [
    "00000000000000000007-00000000000000004096.data",
    "00000000000000000007-00000000000000000048.index",
    "99999999999999999999-99999999999999999999.data",
    "7-4096.data",
    "00000000000000000007-00000000000000004096.data.tmp",
    "-0000000000000000007-00000000000000004096.data",
    "00000000000000000007-00000000000000004096.data ",
    "stream.json",
]


@dataclass(frozen=True)
class Records:
    start: int
    entries: bytes
    data: bytes

    def encode(self) -> bytes:
        return _RECORDS.pack(self.start, len(self.entries)) + self.entries + self.data

    @classmethod
    def decode(cls, raw: bytes) -> "Records":
        start, count = _RECORDS.unpack_from(raw)
        body = raw[_RECORDS.size :]
        return cls(start, body[:count], body[count:])


@dataclass(frozen=True)
class Columns:
    buffers: tuple[bytes | None, ...]  # in the order of Packer.add_columns
    first: int
    count: int

    def encode(self) -> bytes:
        parts = [_COLUMNS.pack(self.first, self.count)]
        for buffer in self.buffers:
            parts += [_LENGTH.pack(-1 if buffer is None else len(buffer)), buffer or b""]
        return b"".join(parts)

    @classmethod
    def decode(cls, raw: bytes) -> "Columns":
        first, count = _COLUMNS.unpack_from(raw)
        buffers: list[bytes | None] = []
        at = _COLUMNS.size
        while at < len(raw):
            (length,) = _LENGTH.unpack_from(raw, at)
            at += _LENGTH.size
            buffers.append(None if length < 0 else raw[at : at + length])
            at += max(0, length)
        return cls(tuple(buffers), first, count)


Row = tuple[bytes | None, bytes | None]


def pack(rows: list[Row], start: int, time_us: int = 1000) -> Records:
    """Rows are (key, value)."""
    packer = Packer([start], [0], 1 << 20)
    for number, (key, value) in enumerate(rows):
        packer.add(value, key, 0, time_us + number)
    packed = whole(packer.take()).get(0)
    return Records(start, bytes(packed.entries), bytes(packed.data)) if packed else Records(start, b"", b"")


def forge(start: int, described: list[tuple[int, int, int]], data: bytes, sum_of=model.crc32c) -> Records:
    """Entries of the given (end, time, shape) with true sums, wherever their bytes are to be found."""
    entries, before = [], start
    for end, time_us, shape in described:
        message = data[max(0, before - start) : max(0, end - start)]
        body = model.ENTRY.pack(end, time_us, shape, 0)[:-4]
        entries.append(body + struct.pack("<I", sum_of(message + body)))
        before = end
    return Records(start, b"".join(entries), data)


def column(items: list[bytes | None]) -> tuple[bytes, bytes, bytes | None]:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item or b""))
    return b"".join(item or b"" for item in items), struct.pack(f"<{len(ends)}q", *ends), model.bitmap(items)


def seeds() -> dict[str, bytes]:
    """Every file of the corpus, by name."""
    plain = pack([(None, b"value %d" % number) for number in range(9)], 0)
    keyed = pack([(b"key", b"value"), (b"", b"value"), (b"key", b""), (None, b"x" * 300)], 2**40)
    empty = pack([(None, b""), (b"", b""), (b"", None), (b"key", None), (None, b"")], 2**32 - 2)
    none = (None, None, None)
    values, keys = column([b"a", None, b"", b"long value"]), column([b"k", b"tombstone", None, b""])
    records = {
        "plain": plain,
        "keyed": keyed,
        "empty-messages": empty,
        "torn-data": Records(0, plain.entries, plain.data[:-5]),
        "last-positions": forge(2**63 - 4, [(2**63 - 2, 0, 0), (2**63 - 1, 0, 0), (2**63, 0, 0)], b"abcd"),
        "far-ends": forge(0, [(2, 0, 0), (U64_MAX, 0, 0), (3, 0, 0)], b"abc"),
        "overlapping": forge(5, [(9, 0, 0), (7, 0, 0), (9, 0, 0)], b"abcd"),
        "time-goes-back": forge(0, [(1, 5, 0), (2, 4, 0)], b"ab"),
        "unknown-flag": forge(0, [(1, 0, 0), (2, 0, 1 << 31)], b"ab"),
        "key-too-long": forge(0, [(4, 0, model.HAS_KEY | 4), (8, 0, model.HAS_KEY | 5)], b"abcdefgh"),
    }
    columns = {
        "plain": Columns((*values, *keys), 0, 4),
        "sum-overflows": Columns((*column([b"abc"]), *none), 2**61, 1),
        "rows-overflow": Columns((*column([b"abc"]), *none), 0, 2**61 + 1),
        "offsets-go-back": Columns((b"abcd", struct.pack("<3q", 4, 0, 4), None, *none), 0, 2),
    }
    return {
        **{f"{name}.records": one.encode() for name, one in records.items()},
        **{f"{name}.columns": one.encode() for name, one in columns.items()},
        "plain.header": HEADER.encode(),
        "sealed.fence": FENCE.encode(),
        "all.names": "\n".join(NAMES).encode(),
    }


def load(corpus: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(corpus.iterdir())}
