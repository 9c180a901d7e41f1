"""This cluster's streams for those who cannot open its folder: how far they go, and their bytes. It only looks.

How far a stream goes is looked up once for all who ask within a moment, and no more than a fifth of the time goes into
it: when a cluster falls ill, all its consumers come to its neighbour at once.
"""

import re
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from hashlib import blake2b

from ..env import Clock
from ..errors import FileMissing, FileProblem
from ..model.segment import newest_segment
from ..native import Block
from ..wire import ByteRange, FileBytes, Listing, NewestSegment, Reach, ShardSight, Sight
from .interface import FileLength, Files

KEEP_S = 0.01  # a sight at least
_KEEPS = 4.0  # … and so many times as long as it took
_LOOKS_MAX = 20  # at a shard: retention, or a new segment, may come in between
_SHARD = re.compile(r"[0-9]{5}")
_SETTINGS = "stream.json"


class ServedFiles:
    """Implements FilesService."""

    def __init__(self, files: Files, clock: Clock, *, keep_s: float = KEEP_S) -> None:
        self._files, self._clock, self._keep_s = files, clock, keep_s
        self._sights: dict[str, _Sights] = {}

    def sight(self, stream: str, seen: int) -> Sight | None:
        if stream not in self._sights and _SETTINGS not in self._files.list(f"streams/{stream}"):
            return None  # names that are none leave nothing behind
        sights = self._sights.setdefault(stream, _Sights(self._files, self._clock, stream, self._keep_s))
        if (sight := sights.newest()) is None:
            self._sights.pop(stream, None)
            return None
        return Sight(sight.number) if sight.number == seen else sight

    def list(self, folder: str) -> Listing:
        names = self._files.list(folder)
        return Listing(_number(names), tuple(names))

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        return [self._read(one) for one in ranges]

    def _read(self, one: ByteRange) -> FileBytes | None:
        try:
            with self._files.view(one.path) as view:
                length = view.length()  # first: what is not flushed is nobody's
                content = memoryview(Block(max(0, min(one.size, length.readable_bytes - one.offset))))
                count = view.read_into(one.offset, content) if content else 0
        except FileMissing:
            return None
        return FileBytes(_reach(length), content[:count])


class _Sights:
    """The newest sight of one stream, for all who ask."""

    def __init__(self, files: Files, clock: Clock, stream: str, keep_s: float) -> None:
        self._files, self._clock, self._folder, self._keep_s = files, clock, f"streams/{stream}", keep_s
        self._looking = threading.Lock()
        self._sight: Sight | None = None
        self._until_s = float("-inf")

    def newest(self) -> Sight | None:
        with self._looking:
            begun_s = self._clock.monotonic_s()
            if begun_s >= self._until_s:
                self._sight = self._look()
                now_s = self._clock.monotonic_s()
                self._until_s = now_s + (max(self._keep_s, _KEEPS * (now_s - begun_s)) if self._keep_s else 0.0)
            return self._sight

    def _look(self) -> Sight | None:
        names = self._files.list(self._folder)
        if _SETTINGS not in names:
            return None
        shards = tuple(self._shard(name) for name in names if _SHARD.fullmatch(name))
        return Sight(_number(map(str, shards)), shards)

    def _shard(self, name: str) -> ShardSight:
        folder = f"{self._folder}/{name}"
        for _ in range(_LOOKS_MAX):
            segment = newest_segment(self._files.list(folder))
            newest = None
            with suppress(FileMissing):
                if segment is not None:
                    # The index first: its data were flushed before it.
                    index = _reach(self._length(f"{folder}/{segment.index_name}"))
                    data = _reach(self._length(f"{folder}/{segment.data_name}"))
                    newest = NewestSegment(segment, data, index)
                names = self._files.list(folder)  # last: a file that nobody appends to may have a successor by now
                if newest_segment(names) == segment:
                    return ShardSight(int(name), _number(names), newest)
        raise FileProblem(f"{folder} changed {_LOOKS_MAX} times while it was looked at; try again")

    def _length(self, path: str) -> FileLength:
        with self._files.view(path) as view:
            return view.length()


def _reach(length: FileLength) -> Reach:
    return Reach(length.flushed_bytes, length.readable_bytes, length.appending)


def _number(words: Iterable[str]) -> int:
    """Another one for other words, never 0."""
    digest = blake2b("\0".join(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1
