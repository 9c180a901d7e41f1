"""Which chunks of one file may be written to the cache now, and how far its cached length goes: pure (A33, A34).

Bytes come in any order. Invariants:
- A chunk is only ever written from its start, as far as its bytes are there without a gap.
- Of one chunk at most one write is under way, so that a shorter one never follows a longer one.
- The length covers a byte only when all bytes from the start on up to it were written.

The start lies on a chunk's border: below it the cache has nothing of ours, and consumers read the file (A42).
"""

from dataclasses import dataclass, field

from ..errors import WireRefused

HELD_BYTES_MAX = 64 << 20  # of bytes that wait for others


@dataclass(slots=True)
class _Chunk:
    content: bytearray | memoryview = field(default_factory=bytearray)  # without a gap, from the chunk's start
    later: dict[int, memoryview] = field(default_factory=dict)  # behind a gap, by offset in the chunk
    under_way: int = 0
    written: int = 0

    def add(self, offset: int, content: memoryview) -> None:
        if offset == 0 and not self.content:
            self.content = content  # as it is: nearly always that is all of the chunk
        else:
            self.later[offset] = max(self.later.get(offset, content), content, key=len)
        while fitting := [start for start in self.later if start <= len(self.content)]:
            for start in fitting:
                if isinstance(self.content, memoryview):
                    self.content = bytearray(self.content)
                self.content += self.later.pop(start)[len(self.content) - start :]


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Please write this."""

    number: int
    content: bytes | memoryview


class ChunkWrites:
    def __init__(self, chunk_bytes: int, start: int = 0) -> None:
        assert start % chunk_bytes == 0, (start, chunk_bytes)
        self.chunk_bytes = chunk_bytes
        self.start = start
        self._first = start // chunk_bytes  # all chunks below it are written
        self._chunks: dict[int, _Chunk] = {}
        self._whole: set[int] = set()  # written to their end, above the first

    @property
    def length(self) -> int:
        """All bytes below, from the start on, are in the cache."""
        chunk = self._chunks.get(self._first)
        return self._first * self.chunk_bytes + (chunk.written if chunk else 0)

    def jump(self, start: int) -> None:
        """Nothing below will come any more."""
        assert start % self.chunk_bytes == 0, start
        if start <= self._first * self.chunk_bytes:
            return
        self.start = start
        self._first = start // self.chunk_bytes
        self._chunks = {number: chunk for number, chunk in self._chunks.items() if number >= self._first}
        self._whole = {number for number in self._whole if number >= self._first}
        self._advance()

    def receive(self, offset: int, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            number, inside = divmod(offset, self.chunk_bytes)
            size = min(len(view), self.chunk_bytes - inside)
            if number >= self._first and number not in self._whole:
                self._chunks.setdefault(number, _Chunk()).add(inside, view[:size])
            offset, view = offset + size, view[size:]
        if len(self._chunks) * self.chunk_bytes > HELD_BYTES_MAX:
            raise WireRefused(f"bytes behind a gap, more than {HELD_BYTES_MAX} of them")

    def due(self) -> list[WriteChunk]:
        """What is to be written now. Say `written` or `failed` of each, in any order."""
        orders = []
        for number, chunk in self._chunks.items():
            if not chunk.under_way and len(chunk.content) > chunk.written:
                chunk.under_way = len(chunk.content)
                content = chunk.content if isinstance(chunk.content, memoryview) else bytes(chunk.content)
                orders.append(WriteChunk(number, content))
        return orders

    def written(self, number: int) -> None:
        chunk = self._chunks.get(number)
        if chunk is None:  # the copy has jumped over it meanwhile
            return
        assert chunk.under_way, number
        chunk.written, chunk.under_way = chunk.under_way, 0
        if chunk.written == self.chunk_bytes:
            del self._chunks[number]
            self._whole.add(number)
        self._advance()

    def failed(self, number: int) -> None:
        if (chunk := self._chunks.get(number)) is not None:
            chunk.under_way = 0

    def _advance(self) -> None:
        while self._first in self._whole:
            self._whole.remove(self._first)
            self._first += 1


class IndexNeeds:
    """How far the index may be told, given how far its data are: bytes come in any order, and an entry must not be seen
    before the message that it speaks of."""

    def __init__(self) -> None:
        self._unmet: list[tuple[int, int]] = []  # index bytes from here on speak of data up to there

    def add(self, index_start: int, data_needed: int) -> None:
        self._unmet.append((index_start, data_needed))

    def covered(self, index_length: int, data_length: int) -> int:
        """Bytes of the index that may be told."""
        self._unmet = [(start, needed) for start, needed in self._unmet if needed > data_length]
        return min([index_length, *(start for start, _ in self._unmet)])
