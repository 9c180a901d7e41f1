"""The snapshots of a stream in the durable layer: written, published at once, chosen, and collected.

Invariants:
- A snapshot is visible only when it is whole and durable.
- Whoever loads gets the newest that can be read and from which on all messages are kept; else the messages alone if
  all of them are kept; else SnapshotMissing. Never a state with a gap.
- The newest good snapshot is never collected.
"""

import logging
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..env import Clock
from ..errors import Corrupt, FileMissing, FileProblem, PositionRetired, SnapshotMissing, StreamMissing
from ..files import Files
from ..native import Block, crc32c
from .catalog import Catalog
from .segments import segments_of
from .shard_files import find_end, shard_folder
from .snapshot import SnapshotFile, SnapshotMeta, columns, decode, encode, fold, snapshots_of
from .tail import ShardTail

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_TRIES = 20
_BATCH_BYTES = 4 << 20
_FOLD_BYTES = 128 << 20  # of messages that wait to be folded in: bounds the memory
_CHECK_BYTES = 8 << 20
_DRAFT_US = 86_400_000_000  # a publication that is not done within a day never will be


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of one shard: all messages before `position`. `fresh`: it was made now, not found."""

    shard: int
    position: int
    created_us: int
    keys: int
    size_bytes: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class SnapshotStatus:
    """A snapshot as it lies in the durable layer. Whether it can be read is not known yet."""

    shard: int
    position: int
    created_us: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Base:
    """Where to begin: a snapshot's table, or None for the messages alone; then the messages from `position` on.

    notes: the snapshots that should have been better, and why they were not.
    """

    position: int
    table: "pyarrow.Table | None"
    file: SnapshotFile | None
    notes: tuple[str, ...]


def snapshot_folder(stream: str, shard: int) -> str:
    return f"streams/{stream}/snapshots/{shard:05d}"


def list_snapshots(files: Files, stream: str, shard: int) -> list[SnapshotFile]:
    """Newest first."""
    return snapshots_of(files.list(snapshot_folder(stream, shard)))


def retained_start(files: Files, stream: str, shard: int) -> int:
    """Where the messages that are kept begin."""
    segments = segments_of(files.list(shard_folder(stream, shard)))
    return segments[0].data_base if segments else 0


def is_good(files: Files, stream: str, shard: int, file: SnapshotFile) -> bool:
    """Whether its bytes match its name. Reads all of them, a piece at a time."""
    try:
        with files.view(f"{snapshot_folder(stream, shard)}/{file.name}") as view:
            piece, offset, checksum = memoryview(bytearray(_CHECK_BYTES)), 0, 0
            while count := view.read_into(offset, piece):
                checksum, offset = crc32c(piece[:count], checksum), offset + count
            return checksum == file.checksum
    except FileProblem:
        return False


def delete_snapshot(files: Files, stream: str, shard: int, file: SnapshotFile) -> None:
    with suppress(FileMissing):  # somebody else collects too
        files.delete(f"{snapshot_folder(stream, shard)}/{file.name}")


class Snapshots:
    """Of one stream, as it is now: once it is deleted, or made anew, this is of no more use. Safe between threads."""

    def __init__(self, files: Files, clock: Clock, catalog: Catalog, stream: str) -> None:
        self.stream, self.incarnation = stream, catalog.incarnation(stream)
        self._files, self._clock, self._catalog = files, clock, catalog
        self._told: set[str] = set()  # what was logged: once is enough, however often it is tried again

    def status(self, shard: int) -> list[SnapshotStatus]:
        """Newest first."""
        found = []
        for file in list_snapshots(self._files, self.stream, shard):
            with suppress(FileMissing), self._files.view(self._path(shard, file)) as view:
                found.append(SnapshotStatus(shard, file.position, file.created_us, view.length().readable_bytes))
        return found

    # ---- reading

    def load(self, shard: int, *, at_least: int = 0, at_most: int | None = None) -> Base:
        """The newest snapshot that can be read and leads to the messages that are kept; between two positions."""
        self._check_incarnation()
        for _ in range(_TRIES):
            start = retained_start(self._files, self.stream, shard)
            files = list_snapshots(self._files, self.stream, shard)
            notes: list[str] = []
            for file in files:
                if file.position < max(start, at_least) or (at_most is not None and file.position > at_most):
                    continue
                try:
                    table = self._read(shard, file)
                except FileMissing:  # collected meanwhile, so there is a newer one
                    break
                except (Corrupt, FileProblem) as problem:
                    notes.append(str(problem))
                    if str(problem) not in self._told:
                        self._told.add(str(problem))
                        _LOG.warning("%s", problem)
                    continue
                return Base(file.position, table, file, tuple(notes))
            else:
                if start == at_least == 0:
                    return Base(0, None, None, tuple(notes))
                if list_snapshots(self._files, self.stream, shard) == files:
                    raise self._missing(shard, start, max(start, at_least), at_most, files, notes)
        raise FileProblem(
            f"{snapshot_folder(self.stream, shard)} changed {_TRIES} times while a snapshot was looked for; try again"
        )

    def ends(self, shards: Sequence[int]) -> dict[int, int]:
        """Where the durable messages end now."""
        self._check_incarnation()
        return {shard: find_end(self._files, self.stream, shard).position for shard in shards}

    def retained_start(self, shard: int) -> int:
        return retained_start(self._files, self.stream, shard)

    def _read(self, shard: int, file: SnapshotFile) -> "pyarrow.Table":
        path = self._path(shard, file)
        with self._files.view(path) as view:
            content = Block(view.length().readable_bytes)
            count = view.read_into(0, memoryview(content)) if len(content) else 0
        try:
            meta, table = decode(file, memoryview(content)[:count])
            if (meta.stream, meta.shard) != (self.stream, shard):
                raise ValueError(f"says inside that it is of {meta.stream}/{meta.shard}")
            if meta.incarnation != self.incarnation:
                raise ValueError("is of an earlier stream of this name")
        except ValueError as wrong:
            raise Corrupt(f"{path} {wrong}. An older one is used if there is one; restore or delete it") from None
        return table

    # ---- making

    def take(self, shard: int, position: int | None = None) -> Snapshot:
        """Fold the newest snapshot and the messages behind it into a new one; up to now, or up to a position."""
        for _ in range(_TRIES - 1):
            with suppress(PositionRetired):  # retention was faster; then there is a newer snapshot
                return self._take(shard, position)
        return self._take(shard, position)

    def take_all(self, shards: Sequence[int]) -> list[Snapshot]:
        """`take` for each, side by side."""
        return in_parallel(self.take, shards)

    def _take(self, shard: int, position: int | None) -> Snapshot:
        end = find_end(self._files, self.stream, shard).position
        if position is None:
            position = end
        self._check_position(shard, position, end)
        base = self.load(shard, at_most=position)
        if base.file is not None and base.table is not None and base.position == position:
            size = self._size(shard, base.file)
            return Snapshot(shard, position, base.file.created_us, base.table.num_rows, size, fresh=False)
        table, waiting, waiting_bytes = base.table, [], 0
        tail = ShardTail(self._files, self._clock, self.stream, shard, base.position)
        try:
            while tail.position < position:
                batch = tail.poll(_BATCH_BYTES)
                if batch is None:
                    raise FileProblem(
                        f"{self.stream}/{shard} ends at {tail.position}, though it went on to {end}; try again"
                    )
                waiting.append(batch.to_arrow())
                waiting_bytes += batch.end - batch.start
                if waiting_bytes >= _FOLD_BYTES:
                    table, waiting, waiting_bytes = fold(table, waiting, position), [], 0
        finally:
            tail.close()
        return self._publish(shard, position, fold(table, waiting, position))

    def write(self, shard: int, position: int, keys: Any, values: Any, times_us: Any = None) -> Snapshot:
        """Publish what somebody else knows to be the state of a shard at a position."""
        table = columns(keys, values, self._clock.time_us() if times_us is None else times_us)
        self._check_position(shard, position, find_end(self._files, self.stream, shard).position)
        return self._publish(shard, position, table)

    def _publish(self, shard: int, position: int, table: "pyarrow.Table") -> Snapshot:
        folder = snapshot_folder(self.stream, shard)
        now_us = self._clock.time_us()
        self._files.make_folder(folder)
        self._files.forget_drafts(folder, lambda name: _is_stale(name, now_us))
        while True:
            meta = SnapshotMeta(self.stream, self.incarnation, shard, position, now_us)
            file, content = encode(meta, table)
            self._check_incarnation()
            if self._files.publish(f"{folder}/{file.name}", content, replace=False):
                return Snapshot(shard, position, now_us, table.num_rows, len(content), fresh=True)
            now_us += 1  # the very same one was written in this microsecond

    # ---- inside

    def _path(self, shard: int, file: SnapshotFile) -> str:
        return f"{snapshot_folder(self.stream, shard)}/{file.name}"

    def _size(self, shard: int, file: SnapshotFile) -> int:
        with self._files.view(self._path(shard, file)) as view:
            return view.length().readable_bytes

    def _check_incarnation(self) -> None:
        if self._catalog.incarnation(self.stream) != self.incarnation:
            raise StreamMissing(f"the stream {self.stream!r} was deleted and made anew; begin again with the new one")

    def _check_position(self, shard: int, position: int, end: int) -> None:
        if not 0 <= position <= end:
            raise ValueError(
                f"position {position}: {self.stream}/{shard} goes from 0 to {end}. Nothing was written; use a position "
                "that consumers have reached"
            )

    def _missing(
        self, shard: int, start: int, least: int, most: int | None, files: Sequence[SnapshotFile], notes: Sequence[str]
    ) -> SnapshotMissing:
        seen = f"{len(files)} snapshots, the newest at {files[0].position}" if files else "no snapshot"
        where = f"at or behind position {least}" + ("" if most is None else f" and not behind {most}")
        problem = SnapshotMissing(
            f"{self.stream}/{shard}: the messages before position {start} are gone, and no snapshot {where} can be "
            f"read: there is {seen}. Restore one from a copy, or write one from the system of record with "
            f"world.write_snapshot({self.stream!r}, {shard}, …); nothing was changed"
        )
        for note in notes:
            problem.add_note(note)
        return problem


def in_parallel(act: Callable[[int], T], shards: Sequence[int]) -> list[T]:
    """Do it for each shard, some at a time: disk waits overlap, and Arrow unpacks without the interpreter's lock."""
    if len(shards) <= 1:
        return [act(shard) for shard in shards]
    with ThreadPoolExecutor(min(len(shards), 2 * (os.cpu_count() or 1), 16)) as pool:
        return list(pool.map(act, shards))


def _is_stale(name: str, now_us: int) -> bool:
    file = SnapshotFile.parse(name)
    return file is not None and file.created_us < now_us - _DRAFT_US
