"""What one task of a larger job brings to a transaction: its messages, by shard, laid aside until they are committed.

Nothing that is staged can be seen by anybody. Each attempt of a task has a folder of its own, so attempts do not meet;
the one whose output is handed to `Transactions.commit` counts, and the others are garbage. Messages of a shard stay in
the order in which they were added. Little is kept in memory and travels with the output; more goes to files, which
later become segments by being moved.
"""

import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import TailraceError
from ..files import Appender, Claim, Files
from ..native import ENTRY_BYTES, Packed, Packer
from .columns import Columns
from .transaction import TransactionName

if TYPE_CHECKING:
    import pyarrow

ADOPT_BYTES = 4 << 20  # of one shard: from here on it is worth a file of its own
_BUFFER_BYTES = 32 << 20  # packed in memory before it is looked at what goes to a file
_WAITING_BYTES = 64 << 20  # of small parts in memory, before all of them go to files
_INLINE_BYTES = 1 << 20  # of a whole output, which travels through the driver


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of one shard in the order of their adding. Positions count from the first that the task added; `start`
    is where the piece begins. Either its bytes, or two paths: of the data, and of entries without a header."""

    start: int
    size_bytes: int
    count: int
    last_time_us: int
    content: tuple[bytes, bytes] | None
    paths: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class Output:
    """What a task brings; small enough to be sent."""

    name: TransactionName
    pieces: dict[int, list[Piece]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(piece.count for pieces in self.pieces.values() for piece in pieces)


def staging_folder(stream: str, name: TransactionName | None = None) -> str:
    folder = f"streams/{stream}/transactions/staged"
    return folder if name is None else f"{folder}/{name}"


class Stage:
    def __init__(
        self,
        files: Files,
        stream: str,
        name: TransactionName,
        *,
        shards: int,
        message_bytes_max: int,
        file_bytes: int,
        turn: int = 0,
    ) -> None:
        """`turn`: the shard that the first messages without keys go to; tasks with different ones share the load."""
        self._files, self._name, self._shards = files, name, shards
        self._folder = f"{staging_folder(stream, name)}/{secrets.token_hex(8)}"
        self._packer = Packer([0] * shards, [0] * shards, message_bytes_max)
        self._file_bytes, self._turn = file_bytes, turn
        self._claim: Claim | None = None
        self._waiting: dict[int, list[Packed]] = {}
        self._waiting_bytes = 0
        self._open: dict[int, _PieceFile] = {}
        self._pieces: dict[int, list[Piece]] = {}

    def add(self, values: "pyarrow.Array", keys: "pyarrow.Array | None" = None, *, shard: int | None = None) -> None:
        """Arrow columns of binary or text. Rows go to the given shard, or to their keys'; those without a key, or all
        if there is no column of them, to each shard in turn."""
        columns = Columns.from_arrow(values, keys)
        assert columns is not None, "Arrow columns only"
        if keys is None and shard is None:
            shard, self._turn = self._turn % self._shards, self._turn + 1
        if self._packer.add_columns(*columns.buffers(), 0, columns.count, shard) >= _BUFFER_BYTES:
            self._take()

    def finish(self) -> Output:
        """Durable from here on."""
        self._take()
        if self._waiting_bytes > _INLINE_BYTES:
            self._spill(least_bytes=0)
        for shard in list(self._open):
            self._close(shard)
        for shard, waiting in self._waiting.items():
            self._pieces.setdefault(shard, []).append(_inline(waiting))
        if self._claim is not None:
            self._claim.close()
        return Output(self._name, self._pieces)

    def discard(self) -> None:
        """Give up."""
        for piece in self._open.values():
            piece.close()
        if self._claim is not None:
            self._claim.close()
            with suppress(TailraceError):  # whoever commits tidies up
                self._files.delete_folder(self._folder)

    def _take(self) -> None:
        for shard, parts in self._packer.take().items():
            if shard in self._open:
                self._write(shard, parts)
            else:
                self._waiting.setdefault(shard, []).extend(parts)
                self._waiting_bytes += sum(len(packed.data) for packed in parts)
        self._spill(least_bytes=ADOPT_BYTES)
        if self._waiting_bytes > _WAITING_BYTES:
            self._spill(least_bytes=0)

    def _spill(self, least_bytes: int) -> None:
        for shard, waiting in list(self._waiting.items()):
            size = sum(len(packed.data) for packed in waiting)
            if size >= least_bytes:
                del self._waiting[shard]
                self._waiting_bytes -= size
                self._write(shard, waiting)

    def _write(self, shard: int, packed: Sequence[Packed]) -> None:
        if shard not in self._open:
            if self._claim is None:
                self._claim = self._files.claim(self._folder)
            number = len(self._pieces.get(shard, ()))
            self._open[shard] = _PieceFile(self._claim, self._folder, f"{shard:05d}-{number}", packed[0].start)
        piece = self._open[shard]
        piece.append(packed)
        if piece.size_bytes >= self._file_bytes:
            self._close(shard)

    def _close(self, shard: int) -> None:
        self._pieces.setdefault(shard, []).append(self._open.pop(shard).seal())


class _PieceFile:
    def __init__(self, claim: Claim, folder: str, name: str, start: int) -> None:
        self.start, self.size_bytes, self._last_time_us = start, 0, 0
        self._paths = f"{folder}/{name}.data", f"{folder}/{name}.entries"
        self._data: Appender = claim.create(f"{name}.data")
        self._entries: Appender = claim.create(f"{name}.entries")

    def append(self, packed: Sequence[Packed]) -> None:
        self.size_bytes = self._data.append(self._data.length, [memoryview(one.data) for one in packed])
        self._entries.append(self._entries.length, [memoryview(one.entries) for one in packed])
        self._last_time_us = packed[-1].last_time_us

    def seal(self) -> Piece:
        count = self._entries.length // ENTRY_BYTES
        self._data.seal()
        self._entries.seal()
        return Piece(self.start, self.size_bytes, count, self._last_time_us, None, self._paths)

    def close(self) -> None:
        self._data.close()
        self._entries.close()


def _inline(waiting: Sequence[Packed]) -> Piece:
    data = b"".join(memoryview(packed.data) for packed in waiting)
    entries = b"".join(memoryview(packed.entries) for packed in waiting)
    count = sum(packed.count for packed in waiting)
    return Piece(waiting[0].start, len(data), count, waiting[-1].last_time_us, (data, entries), None)
