"""Which chunks of one file may be written to the cache now, and how far its cached length goes: pure (A33, A34).

Bytes come in any order. Invariants:
- A chunk is only ever written from its start, as far as its bytes are there without a gap.
- Of one chunk at most one write is under way, so that a shorter one never follows a longer one.
- The length covers a byte only when all bytes from the start on up to it were written.

The start lies on a chunk's border: below it the cache has nothing of ours, and consumers read the file (A42).

Nearly always whole chunks come one behind the other, and for the first time: such a run is kept as one thing, since
what is done for each chunk here is done five thousand times a second for 20 MB/s.
"""

from collections.abc import Iterator
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


@dataclass(frozen=True, slots=True, eq=False)
class WriteChunks:
    """Please write these, one behind the other: all of them are whole, or it is but one."""

    first: int
    content: bytes | memoryview

    def chunks(self, size: int) -> Iterator[tuple[int, bytes | memoryview]]:
        """(number, content) of each."""
        if len(self.content) <= size:
            yield self.first, self.content
            return
        for number, at in enumerate(range(0, len(self.content), size), start=self.first):
            yield number, self.content[at : at + size]


@dataclass(slots=True)
class _Run:
    """Whole chunks that are not written yet, of which nothing was known before."""

    end: int
    order: WriteChunks
    under_way: bool = False


class ChunkWrites:
    def __init__(self, chunk_bytes: int, start: int = 0) -> None:
        assert start % chunk_bytes == 0, (start, chunk_bytes)
        self.chunk_bytes = chunk_bytes
        self.start = start
        self._first = start // chunk_bytes  # all chunks below it are written
        self._chunks: dict[int, _Chunk] = {}
        self._runs: dict[int, _Run] = {}  # by their first chunk; never one that is among the chunks, too
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
        self._runs = {number: run for number, run in self._runs.items() if run.end > self._first}
        self._whole = {number for number in self._whole if number >= self._first}
        self._advance()

    def receive(self, offset: int, content: bytes | memoryview) -> None:
        view = memoryview(content)
        while view:
            number, inside = divmod(offset, self.chunk_bytes)
            count = 0 if inside else len(view) // self.chunk_bytes
            if count and self._is_new(number, number + count):
                size = count * self.chunk_bytes
                self._runs[number] = _Run(number + count, WriteChunks(number, view[:size]))
            else:
                size = min(len(view), self.chunk_bytes - inside)
                if number >= self._first and number not in self._whole and not self._in_run(number, number + 1):
                    self._chunks.setdefault(number, _Chunk()).add(inside, view[:size])
            offset, view = offset + size, view[size:]
        held = len(self._chunks) + sum(run.end - number for number, run in self._runs.items())
        if held * self.chunk_bytes > HELD_BYTES_MAX:
            raise WireRefused(f"bytes behind a gap, more than {HELD_BYTES_MAX} of them")

    def due(self) -> list[WriteChunks]:
        """What is to be written now. Say `written` or `failed` of each, in any order."""
        orders = []
        for run in self._runs.values():
            if not run.under_way:
                run.under_way = True
                orders.append(run.order)
        for number, chunk in self._chunks.items():
            if not chunk.under_way and len(chunk.content) > chunk.written:
                chunk.under_way = len(chunk.content)
                content = chunk.content if isinstance(chunk.content, memoryview) else bytes(chunk.content)
                orders.append(WriteChunks(number, content))
        return orders

    def written(self, order: WriteChunks) -> None:
        number = order.first
        if (run := self._runs.get(number)) is not None and run.order is order:
            del self._runs[number]
            if number <= self._first:
                self._first = run.end
            else:
                self._whole.update(range(number, run.end))
            self._advance()
            return
        chunk = self._chunks.get(number)
        if chunk is None:  # the copy has jumped over it meanwhile
            return
        assert chunk.under_way, number
        chunk.written, chunk.under_way = chunk.under_way, 0
        if chunk.written == self.chunk_bytes:
            del self._chunks[number]
            self._whole.add(number)
        self._advance()

    def failed(self, order: WriteChunks) -> None:
        if (run := self._runs.get(order.first)) is not None and run.order is order:
            run.under_way = False
        elif (chunk := self._chunks.get(order.first)) is not None:
            chunk.under_way = 0

    def _is_new(self, first: int, end: int) -> bool:
        """Whether nothing of these chunks has come yet."""
        numbers = range(first, end)
        return (
            first >= self._first
            and self._whole.isdisjoint(numbers)
            and self._chunks.keys().isdisjoint(numbers)
            and not self._in_run(first, end)
        )

    def _in_run(self, first: int, end: int) -> bool:
        return any(number < end and first < run.end for number, run in self._runs.items())

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
