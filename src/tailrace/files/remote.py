"""The streams of another cluster, read through its processes: for consumers that cannot open its folder. Read-only.

Always holds: only flushed bytes are kept, since they never change; and however many tails of a process wait for news of
a stream, its cluster is asked no more often than the pace allows, once for all shards.

Who is behind reads far ahead in one call. Who is at the head gets what came for all shards in one call, right after the
one that told of it.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self, TypeVar

from ..env import Clock
from ..env.disk import Buffer
from ..errors import Closed, FileMissing, FileProblem, WireProblem
from ..model.message_file import MessageFile
from ..wire import READ_BYTES_MAX, ByteRange, FileBytes, FilesService, Listing, Reach, ShardSight, Sight
from .interface import Appender, Claim, FileLength
from .paths import check_path

A = TypeVar("A")
_AHEAD_BYTES = 64 << 10  # at first; twice as much with every read that goes on where the last one ended, …
_SLOW_S = 0.5  # … unless that took so long
_MEMORY_BYTES = 64 << 20  # for what is read ahead, over all files
_HEAD_BYTES = 1 << 20  # who lacks more of a file is not at its head
_SETTLED_S = 1.0  # how long the length of a file that has a successor is kept
_WHOLE_BYTES_MAX = 64 << 20  # `read` is for small files


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long to wait before a stream is looked at again. Slower where nothing happens, and where answers are slow:
    then so many ask that each must ask less."""

    least_s: float = 0.02
    quiet_s: float = 0.25
    most_s: float = 2.0
    pauses: float = 4.0  # so many times as long as the last answer took

    def next_s(self, before_s: float, took_s: float, changed: bool) -> float:
        """
        >>> [round(Pace().next_s(0.02, took_s, changed), 3) for took_s, changed in ((0, True), (0, False), (0.1, True))]
        [0.02, 0.04, 0.4]
        """
        pause_s = max(self.least_s, self.pauses * took_s)
        return min(pause_s if changed else max(pause_s, min(2 * before_s, self.quiet_s)), self.most_s)


class RemoteFiles:
    """Files of one cluster; `where` is its name, for people. Safe to use from several threads; a view is one's."""

    def __init__(self, service: FilesService, clock: Clock, where: str, *, pace: Pace | None = None) -> None:
        self._service, self._clock, self.where = service, clock, where
        self._pace = pace or Pace()
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}
        self._views = 0  # that are open

    # ---- reading

    def list(self, folder: str) -> list[str]:
        place = _shard_at(check_path(folder))
        if place is None:
            return list(self._ask("list", folder, lambda: self._service.list(folder)).names)
        return list(self._stream(place[0]).names(place[1]))

    def view(self, path: str) -> "RemoteView":
        folder, _, name = check_path(path).rpartition("/")
        place = _shard_at(folder)
        stream = None if place is None else self._stream(place[0])
        listed = stream is not None and place is not None and name in stream.names(place[1])
        if not listed and self._read(path, 0, 0) is None:
            raise self._missing(path)
        with self._lock:
            self._views += 1
        return RemoteView(self, path, stream, 0 if place is None else place[1], MessageFile.parse(name))

    def read(self, path: str) -> bytes:
        with self.view(path) as view:
            size = view.length().readable_bytes
            if size > _WHOLE_BYTES_MAX:
                raise FileProblem(f"{path} has {size} bytes; whole files are read only up to {_WHOLE_BYTES_MAX}")
            content = bytearray(size)
            return bytes(content[: view.read_into(0, memoryview(content))])

    # ---- what cannot be done from afar

    def claim(self, folder: str) -> Claim:
        self._refuse("claim", folder)

    def append(self, path: str, *, at_most: int | None = None) -> Appender:
        self._refuse("append to", path)

    def settle(self, path: str) -> None:
        self._refuse("settle", path)

    def publish(self, path: str, content: Buffer, *, replace: bool = True) -> bool:
        self._refuse("publish", path)

    def move(self, source: str, target: str) -> None:
        self._refuse("move", source)

    def forget_drafts(self, folder: str, stale: Callable[[str], bool]) -> int:
        self._refuse("tidy up", folder)

    def delete(self, path: str) -> None:
        self._refuse("delete", path)

    def make_folder(self, path: str) -> None:
        self._refuse("make the folder", path)

    def delete_folder(self, path: str) -> None:
        self._refuse("delete", path)

    def _refuse(self, tried: str, path: str) -> NoReturn:
        raise FileProblem(
            f"could not {tried} {check_path(path)}: the files of {self.where} are only read from here. Nothing was "
            f"done; write in {self.where}"
        )

    # ---- inside

    def _stream(self, name: str) -> "_Stream":
        with self._lock:
            return self._streams.setdefault(name, _Stream(self, name))

    def _read(self, path: str, offset: int, size: int) -> FileBytes | None:
        return self._read_all([ByteRange(path, offset, size)])[0]

    def _read_all(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        return self._ask("read", ranges[0].path, lambda: self._service.read(ranges))

    def _ask(self, tried: str, path: str, ask: Callable[[], A]) -> A:
        try:
            return ask()
        except WireProblem as problem:
            raise FileProblem(f"could not {tried} {path} in {self.where}: {problem}") from problem

    def _missing(self, path: str) -> FileMissing:
        return FileMissing(f"could not read {path} in {self.where}: there is no such file")

    def _ahead_max(self) -> int:
        return min(max(_AHEAD_BYTES, _MEMORY_BYTES // max(1, self._views)), READ_BYTES_MAX)

    def _closed(self) -> None:
        with self._lock:
            self._views -= 1


class _Stream:
    """What is known of one stream. `views`: those that are open, for all shards."""

    def __init__(self, files: RemoteFiles, name: str) -> None:
        self._files, self._name = files, name
        self._lock = threading.Lock()
        self._number = 0
        self._shards: dict[int, ShardSight] = {}
        self._listings: dict[int, tuple[int, Listing]] = {}  # by shard, with the number of the sight that led to it
        self._until_s = float("-inf")
        self._pause_s = 0.0
        self._problem = ""  # why the last look came to nothing
        self.views: set[RemoteView] = set()

    def names(self, shard: int) -> tuple[str, ...]:
        with self._lock:
            self._look()
            seen, sight = self._number, self._shards.get(shard)
            since, known = self._listings.get(shard, (0, None))
        if sight is None:
            return ()
        # What was listed for this sight may be newer than it, which is as good.
        if known is None or (known.number != sight.listing and since != seen):
            folder = f"streams/{self._name}/{shard:05d}"
            known = self._files._ask("list", folder, lambda: self._files._service.list(folder))
            self._listings[shard] = seen, known
        return known.names

    def reach(self, shard: int, file: MessageFile) -> tuple[Reach | None, bool]:
        """How far a file of the newest segment goes, and whether it has a successor instead."""
        with self._lock:
            self._look()
            sight = self._shards.get(shard)
        if sight is None or sight.newest is None:
            return None, False
        newest = sight.newest
        if newest.segment.created_us == file.created_us:
            return newest.reach(file.track), False
        return None, newest.segment.created_us > file.created_us

    def forget(self) -> None:
        """What is known is not so any more."""
        with self._lock:
            self._number, self._until_s = 0, float("-inf")
            self._listings.clear()

    def _look(self) -> None:
        clock, pace = self._files._clock, self._files._pace
        begun_s = clock.monotonic_s()
        if begun_s < self._until_s:
            if self._problem:
                raise FileProblem(self._problem)
            return
        service, path = self._files._service, f"streams/{self._name}"
        try:
            found = self._files._ask("look at", path, lambda: service.sight(self._name, self._number))
        except FileProblem as problem:
            # Others who wait for the same answer must not each wait for it to fail.
            self._problem, self._until_s = str(problem), clock.monotonic_s() + pace.quiet_s
            raise
        now_s = clock.monotonic_s()
        changed = found is None or found.number != self._number
        self._pause_s = pace.next_s(self._pause_s, now_s - begun_s, changed)
        self._problem, self._until_s = "", now_s + self._pause_s
        if changed:
            self._learn(found)

    def _learn(self, found: Sight | None) -> None:
        self._number = 0 if found is None else found.number
        self._shards = {} if found is None else {one.shard: one for one in found.shards}
        self._listings = {shard: known for shard, known in self._listings.items() if shard in self._shards}
        wanted = [(view, size) for view in list(self.views) if (size := view.lacks(self._shards.get(view.shard)))]
        fitting, left = [], READ_BYTES_MAX
        for view, size in wanted:
            if size <= left:
                left -= size
                fitting.append(view.next_range(size))
        if fitting:
            with suppress(FileProblem):  # who reads next hears of it
                parts = self._files._read_all([one for _, one in fitting])
                for (view, asked), part in zip(fitting, parts, strict=True):
                    view.take(asked, part)


class RemoteView:
    """See `View`. A file that is deleted cannot be read on from here: FileMissing."""

    def __init__(
        self, files: RemoteFiles, path: str, stream: _Stream | None, shard: int, file: MessageFile | None
    ) -> None:
        self._files, self._path, self._stream, self.shard, self._file = files, path, stream, shard, file
        self._window = (0, memoryview(b""))  # flushed bytes, and where they begin. Replaced as a whole
        self._ahead, self._slow = _AHEAD_BYTES, False
        self._read_to = 0  # where the last read ended
        self._told: tuple[float, FileLength] | None = None  # the last length, and until when it is kept
        self._closed = False
        if stream is not None:
            stream.views.add(self)

    def length(self) -> FileLength:
        self._check_open()
        settled = False
        if self._stream is not None and self._file is not None:
            reach, settled = self._stream.reach(self.shard, self._file)
            if reach is not None:
                return _length(reach)
        now_s = self._files._clock.monotonic_s()
        if self._told is None or now_s >= self._told[0]:
            part = self._files._read(self._path, 0, 0)
            if part is None:
                raise self._gone()
            keep_s = _SETTLED_S if settled else self._files._pace.least_s
            self._told = now_s + keep_s, _length(part.reach)
        return self._told[1]

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self._check_open()
        done = 0
        while done < len(buffer):
            content, more = self._get(offset + done, len(buffer) - done)
            buffer[done : done + len(content)] = content
            done += len(content)
            if not more:
                break
        self._read_to = offset + done
        return done

    def expect(self, offset: int, size: int) -> None:
        pass  # what is read comes with some of what follows

    def is_mappable(self) -> bool:
        return False

    def mapped(self, offset: int, size: int) -> memoryview | None:
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._stream is not None:
                self._stream.views.discard(self)
            self._files._closed()
            self._window = (0, memoryview(b""))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what has come since, for those at the head

    def lacks(self, sight: ShardSight | None) -> int:
        """How many flushed bytes there are behind all that was read, if that is little."""
        if self._file is None or sight is None or sight.newest is None or not self._read_to:
            return 0
        if sight.newest.segment.created_us != self._file.created_us:
            return 0
        start, kept = self._window
        size = sight.newest.reach(self._file.track).flushed - self._read_to
        return size if start + len(kept) <= self._read_to and size <= _HEAD_BYTES else 0

    def next_range(self, size: int) -> "tuple[RemoteView, ByteRange]":
        return self, ByteRange(self._path, self._read_to, size)

    def take(self, asked: ByteRange, part: FileBytes | None) -> None:
        if part is not None and asked.offset == self._read_to:
            self._keep(asked.offset, part)

    # ---- inside

    def _get(self, offset: int, size: int) -> tuple[memoryview, bool]:
        """Bytes from there on, no more than asked for, and whether there may be more."""
        start, kept = self._window
        if start <= offset < start + len(kept):
            return kept[offset - start : offset - start + size], True
        if not kept or offset != start + len(kept):
            self._ahead = _AHEAD_BYTES
        elif not self._slow:
            self._ahead *= 2
        self._ahead = min(self._ahead, self._files._ahead_max())
        wanted = min(max(size, self._ahead), READ_BYTES_MAX)
        begun_s = self._files._clock.monotonic_s()
        part = self._files._read(self._path, offset, wanted)
        self._slow = self._files._clock.monotonic_s() >= begun_s + _SLOW_S
        if part is None:
            raise self._gone()
        content = self._keep(offset, part)
        return content[:size], len(content) == wanted

    def _keep(self, offset: int, part: FileBytes) -> memoryview:
        """What is not flushed may still change, and is asked for again."""
        content = memoryview(part.content)
        self._window = (offset, content[: max(0, part.reach.flushed - offset)])
        return content

    def _gone(self) -> FileMissing:
        if self._stream is not None:
            self._stream.forget()
        return self._files._missing(self._path)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the view of {self._path} was closed; open it again")


def _shard_at(folder: str) -> tuple[str, int] | None:
    """(stream, shard) of a folder, if it is a shard's.

    >>> _shard_at("streams/prices/00003")
    ('prices', 3)
    """
    match folder.split("/"):
        case ["streams", stream, shard] if len(shard) == 5 and shard.isascii() and shard.isdigit():
            return stream, int(shard)
    return None


def _length(reach: Reach) -> FileLength:
    return FileLength(reach.flushed, reach.readable, reach.appending)
