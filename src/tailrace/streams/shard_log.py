"""The appending end of one shard: claims it, finds where it ends, and makes packed messages durable.

Invariants:
- `append` returns only when data and index are flushed, data first; then consumers see the messages, all at once.
- A failed append can be tried again with the same messages: they become visible once, at the same positions.
- A newer log of the same shard shuts this one out; nothing of what it then tries becomes visible.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import cast

from ..config import StreamConfig
from ..env import Clock
from ..errors import Corrupt, FileMissing, FileProblem, TailraceError
from ..files import WARM_BYTES, Appender, Claim, Files
from ..files.chunks import chunk_size_for
from ..native import Packed
from ..native.sheets import Notice
from .segments import IndexHeader, Segment, entries_in, entry_offset, newest_creation_us
from .shadow import Appended
from .shard_files import find_end, shard_folder
from .transaction import Adopted, Run, ShardPart, pending_parts

_INDEX_WARM_BYTES = 1 << 20  # as WARM_BYTES, of an index: entries of many more messages
_NOTHING = cast(Packed, Run(0, 0, 0, 0, memoryview(b""), memoryview(b"")))


@dataclass(frozen=True, slots=True)
class Outline:
    """Where a shard's next segment would begin, and the least it may be named by."""

    position: int
    number: int
    time_us: int
    index_base: int
    created_us: int


class ShardLog:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        stream: str,
        shard: int,
        config: StreamConfig,
        on_roll: Callable[[int], object] = lambda shard: None,
        on_append: Callable[[Appended], object] = lambda appended: None,
        passing: Callable[[], bool] = lambda: False,
        notice: Callable[[int, Packed, int, int], Notice | None] = lambda shard, packed, created_us, first: None,
    ) -> None:
        """`on_roll` is called with the shard when a new segment has begun: the moment to collect old ones. `on_append`
        is told what has become durable. `passing`: whether it is read from elsewhere, so that it need not stay in
        memory. `notice` of a shard, what is to be appended, when its segment was begun and its first entry's number
        there: what to say the moment it is durable; `on_append` gets it, too, and says what was not said yet."""
        self.stream, self.shard = stream, shard
        self._files, self._clock, self._config = files, clock, config
        self._on_roll, self._on_append, self._passing, self._notice = on_roll, on_append, passing, notice
        self._folder = shard_folder(stream, shard)
        self._claim: Claim = files.claim(self._folder)
        self._unsettled = list(self._claim.revoked)  # files that nobody appends to any more, but whose fences stand
        self.position = self.time_us = 0
        self._number = self._index_base = self._created_us = 0
        self._open: _OpenSegment | None = None
        self._abandoned: _OpenSegment | None = None  # whose last append failed, and may have gone through all the same
        self._lost = True  # whether the true end must be looked up in the files
        try:
            self._find_end()
            for part in pending_parts(files, stream, shard):
                self.roll_forward(part)
        except BaseException:
            self._claim.close()
            raise

    def append(self, packed: Packed | Run) -> None:
        """Make the messages durable and visible. Those that are already stay as they are."""
        self._know_end()
        abandoned, self._abandoned = self._abandoned, None
        if packed.end <= self.position:  # a try that seemed to fail, or was interrupted, went through after all
            if abandoned is not None:
                first = entries_in(self._index_base - abandoned.segment.index_base) - packed.count
                self._tell(abandoned, packed, self._notice_of(abandoned, packed, first))
            return
        assert packed.start == self.position, (packed.start, self.position)
        if self._open is None or self._is_full(self._open, len(packed.data)):
            self._roll()
        assert self._open is not None
        notice = self._notice_of(self._open, packed, self._open.entries)
        try:
            self._open.append(packed, self._passing(), notice)
        except BaseException as problem:  # an interrupt may come between any two steps
            if self._open.broken or not isinstance(problem, FileProblem):
                self._abandon(self._open)
            raise
        self.position = packed.end
        self._number += packed.count
        self.time_us = packed.last_time_us
        self._index_base = self._open.segment.index_base_after(self._open.entries)
        self._tell(self._open, packed, notice)

    @property
    def file_base(self) -> int:
        """Where the file begins that is being written to, or the next one will."""
        return self._open.segment.data_base if self._open is not None else self.position

    def outline(self) -> Outline:
        """Where the next segment would begin."""
        self._know_end()
        return Outline(self.position, self._number, self.time_us, self._index_base, self._next_creation_us())

    def hold(self) -> AbstractContextManager[None]:
        """See `Claim.hold`."""
        return self._claim.hold()

    def roll_forward(self, part: ShardPart) -> None:
        """Make visible what is not yet of a committed transaction. Whoever opens a shard does it before anything else,
        so a part begins where the shard ends, or it is there already."""
        self._know_end()
        for one in part.adopted:
            self._adopt(one)
        if part.run is not None and part.run.end > self.position:
            self.append(part.run.behind(self.position))

    def _adopt(self, one: Adopted) -> None:
        """Take a whole segment that lies elsewhere. Names and order are fixed by the transaction, so it does not matter
        who does it, how often, or how far somebody else came."""
        segment = one.segment
        if one.end <= self.position:
            return
        if (segment.data_base, segment.index_base) != (self.position, self._index_base):
            raise Corrupt(
                f"{self._folder} ends at {self.position}, but a committed transaction goes on at {segment.data_base}. "
                "Somebody else has changed the files; restore them from a copy"
            )
        for source, name in ((one.data, segment.data_name), (one.index, segment.index_name)):
            try:
                self._files.move(source, f"{self._folder}/{name}")
            except FileMissing:  # it was moved before
                if name not in self._files.list(self._folder):
                    raise
        self.position, self._number, self.time_us = one.end, self._number + one.count, one.last_time_us
        self._index_base = segment.index_base_after(one.count)
        self._created_us = max(self._created_us, segment.created_us)
        before, self._open = self._open, None
        self._leave(before)
        # Its bytes are only in the files; but that they are there is to be known at once.
        lengths = one.end - segment.data_base, self._index_base - segment.index_base
        self._on_append(Appended(self.shard, segment, b"", _NOTHING, *lengths))

    def _notice_of(self, open_: "_OpenSegment", packed: Packed | Run, first: int) -> Notice | None:
        return self._notice(self.shard, cast(Packed, packed), open_.segment.created_us, first)

    def _tell(self, open_: "_OpenSegment", packed: Packed | Run, notice: Notice | None) -> None:
        segment = open_.segment
        data_length, index_length = packed.end - segment.data_base, self._index_base - segment.index_base
        told = cast(Packed, packed)  # a run has all that a packed one has
        self._on_append(Appended(self.shard, segment, open_.header, told, data_length, index_length, notice))

    def close(self) -> None:
        """Seal what is open and let the shard go."""
        try:
            if self._open is not None:
                self._open.seal()
        finally:
            self._open = None
            self._claim.close()

    def _know_end(self) -> None:
        if self._lost:
            self._claim.check()
            self._find_end()

    def _find_end(self) -> None:
        end = find_end(self._files, self.stream, self.shard)
        names = self._files.list(self._folder)
        self.position, self._number, self.time_us = end.position, end.number, end.time_us
        self._index_base = end.index_base
        # A crash may have left a fence whose file was never made; its name is taken all the same.
        self._created_us = max(self._created_us, newest_creation_us([*names, *self._unsettled]))
        self._lost = False

    def _is_full(self, open_: "_OpenSegment", flush_bytes: int) -> bool:
        if not open_.entries:
            return False
        if self._config.cached and self._config.chunk_bytes is None and open_.is_outgrown(flush_bytes):
            return True
        age_s = (self._clock.time_us() - open_.segment.created_us) / 1e6
        return self.position - open_.segment.data_base >= self._config.file_bytes or age_s >= self._config.file_s

    def _roll(self) -> None:
        """Begin a new segment, and only then let go of the old one: until the new name stands, the old one's fence is
        what tells good bytes from torn ones."""
        created_us = self._created_us = self._next_creation_us()
        segment = Segment(created_us, self.position, self._index_base)
        header = IndexHeader(created_us, self.position, self._number)
        begun = _OpenSegment.begin(self._files, self._folder, self._claim, segment, header, self._config.cached)
        before, self._open = self._open, begun
        self._leave(before)

    def _next_creation_us(self) -> int:
        return max(self._clock.time_us(), self.time_us, self._created_us + 1)

    def _leave(self, before: "_OpenSegment | None") -> None:
        """A new segment stands: nothing more comes in those before it."""
        if before is not None:
            try:
                before.seal()
            except FileProblem:  # its bytes are flushed and its end is fixed by the new name
                self._unsettled += before.segment.data_name, before.segment.index_name
        for name in self._unsettled:
            with suppress(TailraceError):
                self._files.settle(f"{self._folder}/{name}")
        self._unsettled = []
        with suppress(TailraceError):  # what cannot be collected now can be later; the messages must go on
            self._on_roll(self.shard)

    def _abandon(self, open_: "_OpenSegment") -> None:
        """A flush failed, so what the disk has of the last bytes is unknown: let go of the segment. The next append
        looks up what consumers can see of it, and goes on from there in a new one, whose name cuts off the rest."""
        open_.close()
        self._unsettled += open_.segment.data_name, open_.segment.index_name
        self._open, self._abandoned, self._lost = None, open_, True


class _OpenSegment:
    def __init__(self, segment: Segment, header: bytes, data: Appender, index: Appender, cached: bool) -> None:
        self.segment, self.header, self._data, self._index, self._cached = segment, header, data, index, cached
        self.entries = 0
        self.broken = False
        self._chunk_bytes = 0  # what suits its first flush, and is its own for its whole life
        self._outgrowing = False  # the last flush was too large for that

    @classmethod
    def begin(
        cls, files: Files, folder: str, claim: Claim, segment: Segment, header: IndexHeader, cached: bool
    ) -> "_OpenSegment":
        """Make both files, or none: a full disk must not breed empty ones. Only what was made here is taken back."""
        with ExitStack() as undo:
            appenders = []
            for name in (segment.data_name, segment.index_name):
                appenders.append(claim.create(name))
                undo.callback(_discard, files, f"{folder}/{name}", appenders[-1])
            data, index = appenders
            index.append(0, [header.encode()])
            index.sync()
            undo.pop_all()
        return cls(segment, header.encode(), data, index, cached)

    def is_outgrown(self, flush_bytes: int) -> bool:
        """Whether its chunks in the cache have become too small: a stream that began with a few messages may be a flood
        by now. One large flush tells nothing."""
        return self._outgrowing and chunk_size_for(flush_bytes) > self._chunk_bytes

    def append(self, packed: Packed | Run, passing: bool, notice: Notice | None) -> None:
        # Side by side, but the index is told of behind the data. What a power loss leaves of either is judged by sums.
        start, offset = packed.start - self.segment.data_base, entry_offset(self.entries)
        data, entries = memoryview(packed.data), memoryview(packed.entries)
        capsule = None if notice is None else notice.capsule
        where = start, data, self._index, offset, entries
        self._attempt(lambda: self._data.flush_with(*where, passing=passing, notice=capsule))
        if self._data.length == start:  # otherwise this, or an earlier try, came further
            self._data.append(start, [data])
        assert self._data.length == packed.end - self.segment.data_base
        if self._index.length == offset:
            self._index.append(offset, [entries])
        self._attempt(self._data.sync)
        self._attempt(self._index.sync)
        self.entries += packed.count
        fitting = chunk_size_for(len(packed.data))
        self._chunk_bytes = self._chunk_bytes or fitting
        self._outgrowing = fitting > self._chunk_bytes
        if self._cached:
            self._data.forget(self._data.length - WARM_BYTES)
            self._index.forget(self._index.length - _INDEX_WARM_BYTES)

    def _attempt(self, flush: Callable[[], object]) -> None:
        try:
            flush()
        except BaseException:
            self.broken = True
            raise

    def seal(self) -> None:
        try:
            self._data.seal()
            self._index.seal()
        finally:
            self.close()

    def close(self) -> None:
        self._data.close()
        self._index.close()


def _discard(files: Files, path: str, appender: Appender) -> None:
    appender.close()
    with suppress(TailraceError):
        files.delete(path)
