"""Whether clusters have the same bytes: hashes are compared, block by block, with those of the cluster that produces.

Works while streams grow: what a copy has is asked before what the source has, so a copy that is right never has more.
Only what both have is compared; what a copy lacks at its end it is behind by, which is no difference. When a block
differs, hashes of smaller blocks lead to its first byte that does. What retention takes away meanwhile does not count.
"""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from ..errors import FileMissing, TailraceError
from ..files import Files
from ..model.message_file import TRACKS, Track
from ..model.segment import Segment, segments_of
from ..wire import BLOCK_HASH_BYTES, Blocks, CheckService, Held, Holding, block_hash
from .extents import extents_of
from .settings import read_settings

BLOCK_BYTES = 1 << 20
_AT_ONCE_BYTES = 16 << 20  # of one question
_QUESTIONS_MAX = 32  # on their way: clusters may be far
_FINER = 64  # a block that differs is looked at in so many smaller ones
_LOOKS_MAX = 3  # at what is there: retention may take what was just listed


_Questions = dict[str, Future[bytes]]


class FilesCheck:
    """Implements CheckService for the files of this machine."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def holding(self, stream: str, shard: int) -> Holding | None:
        settings = read_settings(self._files, stream)
        if settings is None:
            return None
        held: tuple[Held, ...] = ()
        for _ in range(_LOOKS_MAX):
            with suppress(FileMissing):
                held = self._held(f"streams/{stream}/{shard:05d}")
                break
        return Holding(incarnation=settings.incarnation, shards=settings.config.shards, held=held)

    def hashes(self, blocks: Blocks) -> bytes:
        path = f"streams/{blocks.stream}/{blocks.shard:05d}/{blocks.segment.name(blocks.track)}"
        found = []
        try:
            with self._files.view(path) as view:
                end = blocks.offset + blocks.size
                for start in range(blocks.offset, end, blocks.block_bytes):
                    buffer = memoryview(bytearray(min(blocks.block_bytes, end - start)))
                    if view.read_into(start, buffer) < len(buffer):
                        break
                    found.append(block_hash(buffer))
        except FileMissing:
            return b""
        return b"".join(found)

    def _held(self, folder: str) -> tuple[Held, ...]:
        try:
            segments = segments_of(self._files.list(folder))
        except FileMissing:
            return ()
        if not segments:
            return ()
        flushed = {}
        for track in reversed(TRACKS):  # the index first: its data were flushed before it
            with self._files.view(f"{folder}/{segments[-1].name(track)}") as view:
                flushed[track] = view.length().flushed_bytes
        extents = extents_of(segments, flushed["data"], flushed["index"])
        return tuple(Held(one.segment, one.data_length, one.index_length) for one in extents)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first one of a shard. `offset`: in the file; `position`: of the shard, for data. None: it is no matter of a
    byte."""

    cluster: str
    stream: str
    shard: int
    what: str
    file: str | None = None
    offset: int | None = None
    position: int | None = None


@dataclass(slots=True)
class Compared:
    """What came of comparing a shard, or several: bytes compared of each copy, and what each is behind by."""

    compared_bytes: dict[str, int] = field(default_factory=dict)
    behind_bytes: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    problems: dict[str, TailraceError] = field(default_factory=dict)  # of clusters that could not be asked

    def add(self, other: "Compared") -> None:
        for mine, theirs in ((self.compared_bytes, other.compared_bytes), (self.behind_bytes, other.behind_bytes)):
            for cluster, count in theirs.items():
                mine[cluster] = mine.get(cluster, 0) + count
        self.differences += other.differences
        self.problems |= other.problems


class Comparison:
    """Of one stream: `source` is the cluster that produces it, `copies` the others. Clusters are asked side by side."""

    def __init__(
        self,
        stream: str,
        source: CheckService,
        copies: Mapping[str, CheckService],
        *,
        on_progress: Callable[[int], object] = lambda count: None,
    ) -> None:
        self._stream, self._source, self._copies = stream, source, dict(copies)
        self._on_progress = on_progress
        self._pool = ThreadPoolExecutor(_QUESTIONS_MAX, thread_name_prefix="tailrace compare")

    def run(self) -> Compared:
        with self._pool:
            together = Compared()
            first = self._source.holding(self._stream, 0)
            for shard in range(0 if first is None else first.shards):
                found = _Shard(self, shard).run()
                together.add(found)
                for cluster in found.problems:  # it is not asked again
                    self._copies.pop(cluster, None)
            return together


class _Shard:
    def __init__(self, comparison: Comparison, shard: int) -> None:
        self._stream, self._shard = comparison._stream, shard
        self._source, self._copies, self._pool = comparison._source, comparison._copies, comparison._pool
        self._on_progress = comparison._on_progress
        self._found = Compared()
        self._open: dict[str, Holding] = {}  # copies without a difference so far

    def run(self) -> Compared:
        asked = {
            cluster: self._pool.submit(copy.holding, self._stream, self._shard)
            for cluster, copy in self._copies.items()
        }
        holdings: dict[str, Holding | None] = {}
        for cluster, future in asked.items():
            try:
                holdings[cluster] = future.result()
            except TailraceError as problem:
                self._found.problems[cluster] = problem
        mine = self._source.holding(self._stream, self._shard)
        if mine is None:  # it was deleted meanwhile
            return self._found
        for cluster, holding in holdings.items():
            self._found.compared_bytes[cluster] = 0
            self._judge(cluster, mine, holding)
        runs = [run for held in mine.held for track in TRACKS for run in self._runs(held, track)]
        ahead = max(1, _QUESTIONS_MAX // (len(self._open) + 1))
        for first in range(0, len(runs), ahead):
            asked_now = [(blocks, self._asked(blocks, clusters)) for blocks, clusters in runs[first : first + ahead]]
            for blocks, questions in asked_now:
                self._compare(blocks, questions)
        return self._found

    # ---- what is there

    def _judge(self, cluster: str, mine: Holding, copy: Holding | None) -> None:
        total = sum(one.data_length + one.index_length for one in mine.held)
        if copy is None or not copy.held:
            self._found.behind_bytes[cluster] = total
            return
        if copy.incarnation != mine.incarnation:
            self._differs(cluster, "it is the copy of an earlier stream of this name")
            return
        known, there = ({one.segment: one for one in side.held} for side in (mine, copy))
        oldest, newest = (end.segment.created_us for end in (copy.held[0], copy.held[-1]))
        for one in copy.held:
            if one.segment not in known and mine.held and one.segment.created_us > mine.held[0].segment.created_us:
                self._differs(cluster, "the source has no such file", one.segment)
                return
        for one in mine.held:
            if one.segment not in there and oldest < one.segment.created_us < newest:
                self._differs(cluster, "a file is missing between others", one.segment)
                return
        behind = 0
        for one in mine.held:
            if one.segment.created_us < oldest:
                continue  # retired there
            copied = there.get(one.segment, Held(one.segment, 0, 0))
            for track in TRACKS:
                behind += max(0, one.length(track) - copied.length(track))
                # Of its newest file a source whose machine went down may not know yet how far it goes.
                if copied.length(track) > one.length(track) and one is not mine.held[-1]:
                    self._differs(cluster, "it has more than the source", one.segment, track, one.length(track))
                    return
        self._found.behind_bytes[cluster] = behind
        self._open[cluster] = copy

    # ---- bytes

    def _runs(self, held: Held, track: Track) -> list[tuple[Blocks, list[str]]]:
        """What is to be asked about a file, and whom. Copies that go less far are asked for less."""
        sizes = {
            cluster: next((one.length(track) for one in holding.held if one.segment == held.segment), 0)
            for cluster, holding in self._open.items()
        }
        runs = []
        for start in range(0, max(sizes.values(), default=0), _AT_ONCE_BYTES):
            cuts: dict[int, list[str]] = {}
            for cluster, size in sizes.items():
                if size > start:
                    cuts.setdefault(min(size, start + _AT_ONCE_BYTES), []).append(cluster)
            for end, clusters in cuts.items():
                blocks = Blocks(
                    stream=self._stream,
                    shard=self._shard,
                    segment=held.segment,
                    track=track,
                    offset=start,
                    size=end - start,
                    block_bytes=BLOCK_BYTES,
                )
                runs.append((blocks, clusters))
        return runs

    def _asked(self, blocks: Blocks, clusters: Iterable[str]) -> _Questions:
        sides = {"": self._source} | {cluster: self._copies[cluster] for cluster in clusters if cluster in self._open}
        return {cluster: self._pool.submit(side.hashes, blocks) for cluster, side in sides.items()}

    def _answers(self, questions: _Questions) -> dict[str, bytes]:
        """Of those who answered; the source is "", and must."""
        answers = {"": questions[""].result()}
        for cluster, future in questions.items():
            try:
                answers[cluster] = future.result()
            except TailraceError as problem:
                self._found.problems[cluster] = problem
                self._open.pop(cluster, None)
        return answers

    def _compare(self, blocks: Blocks, questions: _Questions) -> None:
        answers = self._answers(questions)
        mine = answers.pop("")
        self._on_progress(blocks.size)
        for cluster, hashes in answers.items():
            if cluster not in self._open:
                continue  # it differs before this already
            if hashes == mine and len(mine) == blocks.count * BLOCK_HASH_BYTES:
                self._found.compared_bytes[cluster] += blocks.size
            else:
                self._narrow(cluster, blocks, mine, hashes)

    def _narrow(self, cluster: str, blocks: Blocks, mine: bytes, theirs: bytes) -> None:
        """The first byte that differs, by hashes of smaller and smaller blocks."""
        if not (mine and theirs) and self._is_retired(cluster, blocks.segment):
            return
        while True:
            number = _first_unequal(mine, theirs)
            offset = blocks.offset + number * blocks.block_bytes
            if number >= min(len(mine), len(theirs)) // BLOCK_HASH_BYTES and blocks.block_bytes == 1:
                short = "the source" if len(mine) < len(theirs) else "the copy"
                self._differs(cluster, f"{short} ends before its length", blocks.segment, blocks.track, offset)
                return
            if blocks.block_bytes == 1:
                self._differs(cluster, "the bytes differ", blocks.segment, blocks.track, offset)
                return
            size = min(blocks.block_bytes, blocks.offset + blocks.size - offset)
            if size <= 0:  # equal now: it was being made good, or the disk had a bad moment
                return
            blocks = replace(blocks, offset=offset, size=size, block_bytes=max(1, blocks.block_bytes // _FINER))
            answers = self._answers(self._asked(blocks, [cluster]))
            if cluster not in answers:
                return
            mine, theirs = answers[""], answers[cluster]

    def _is_retired(self, cluster: str, segment: Segment) -> bool:
        """Whether one side has let go of it meanwhile, as old as it is."""
        for side in (self._source, self._copies[cluster]):
            holding = side.holding(self._stream, self._shard)
            if holding is None or not holding.held or holding.held[0].segment.created_us > segment.created_us:
                return True
        return False

    def _differs(
        self,
        cluster: str,
        what: str,
        segment: Segment | None = None,
        track: Track = "data",
        offset: int | None = None,
    ) -> None:
        self._open.pop(cluster, None)
        self._found.differences.append(
            Difference(
                cluster=cluster,
                stream=self._stream,
                shard=self._shard,
                what=what,
                file=None if segment is None else segment.name(track),
                offset=offset,
                position=segment.data_base + offset
                if segment is not None and offset is not None and track == "data"
                else None,
            )
        )


def _first_unequal(mine: bytes, theirs: bytes) -> int:
    """Number of the first hash that differs, or that one of them lacks."""
    count = min(len(mine), len(theirs)) // BLOCK_HASH_BYTES
    for number in range(count):
        at = number * BLOCK_HASH_BYTES
        if mine[at : at + BLOCK_HASH_BYTES] != theirs[at : at + BLOCK_HASH_BYTES]:
            return number
    return count
