"""A segment whose producer is played by the test: a cell has everything of it that is flushed."""

import itertools
from pathlib import Path

from tailrace.files.chunks import chunk_key
from tailrace.files.lengths import SegmentLengths, ShardLengths
from tailrace.native import ENTRY_BYTES, Packer, Records
from tailrace.native.cell import Cell
from tailrace.native.client import CellClient, Follower
from tailrace.streams.segments import HEADER_BYTES, Segment

BASE = 5000  # of the data file: where its first message begins
SEGMENT = Segment(77, BASE, 240)
LENGTHS, INDEX, DATA = b"lengths of a shard", b"an index file...", b"a data file....."
INDEX_CHUNK, DATA_CHUNK = 1024, 4096
versions = itertools.count(1)


class Shard:
    """A segment of which a cell has everything that is flushed."""

    def __init__(self, folder: Path, index_chunk: int = INDEX_CHUNK) -> None:
        self.index_chunk = index_chunk
        self.cell = Cell(str(folder), 1 << 24, 1 << 24, 64, "lrm", 7)
        self.client = CellClient(1, 1, 1)
        self.client.attach_view(0, str(folder), 7)
        self.follower = Follower(
            LENGTHS, (77, BASE, 240), INDEX, index_chunk, DATA, DATA_CHUNK, HEADER_BYTES, bytearray
        )
        self.data, self.index, self.messages = b"", b"\0" * HEADER_BYTES, 0
        self.ends = [BASE]

    def append(self, sizes: list[int]) -> None:
        packer = Packer([self.ends[-1]], [0], 1 << 20)
        for size in sizes:
            packer.add(bytes([self.messages % 251]) * size, time_us=1_000 + self.messages)
            self.messages += 1
        packed = packer.take()[0][0]
        entries = memoryview(packed.entries).cast("B")
        self.ends += [int.from_bytes(entries[at : at + 8], "little") for at in range(0, len(entries), ENTRY_BYTES)]
        self.data += bytes(packed.data)
        self.index += bytes(entries)
        self.put(INDEX, self.index, self.index_chunk)
        self.put(DATA, self.data, DATA_CHUNK)
        self.tell(self.lengths())

    def put(self, key: bytes, content: bytes, size: int) -> None:
        for number in range(-(-len(content) // size)):
            self.set(chunk_key(key, number), content[number * size : (number + 1) * size])

    def set(self, key: bytes, value: bytes) -> None:
        self.cell.set(key, value, (next(versions), 1, 0))

    def lengths(self) -> SegmentLengths:
        data, index = len(self.data), len(self.index)
        return SegmentLengths(SEGMENT, DATA_CHUNK, self.index_chunk, data, index, data, index)

    def tell(self, *lengths: SegmentLengths) -> None:
        self.set(LENGTHS, ShardLengths(lengths, next(versions)).encode())

    def overhear(self) -> None:
        lengths = self.client.get(LENGTHS)
        assert lengths is not None
        self.follower.overhear(lengths)

    def look(self, entry: int, bytes_max: int = 1 << 20, silent_s: float = 60.0) -> Records | None:
        found = self.follower.look(self.client, self.client, entry, self.ends[entry], bytes_max, silent_s)
        if found is None:
            return None
        entries, data = found
        records = Records("s", 0, self.ends[entry], entries, data)
        assert records.count * ENTRY_BYTES == len(entries)
        return records
