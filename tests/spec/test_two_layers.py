"""What the two layers of a stream decide: how files lie in chunks, what lengths say, when to turn to the durable file.

The model of the protocol between them is `specs/layers.pml`; here are the rules that it takes for granted.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import Buffer

from conftest import wait_until
from tailrace.config import ConsumerConfig, StreamConfig
from tailrace.env import SystemClock
from tailrace.errors import CacheUnavailable, Corrupt, FileProblem
from tailrace.files import FileLength
from tailrace.files.chunks import CHUNK_SIZES, ChunkedFile, Part, chunk_key, chunk_size_for, file_key, short_ones
from tailrace.files.lengths import FILES_MAX, SegmentLengths, ShardLengths, late_slot, lengths_key
from tailrace.native import ENTRY_BYTES, Packer
from tailrace.native.hints import Hints, Waiter
from tailrace.streams import Consumer, ShardTail
from tailrace.streams import shadow as shadow_module
from tailrace.streams.board import Board
from tailrace.streams.delayed import DelayedReads
from tailrace.streams.layers import Layers
from tailrace.streams.segments import HEADER_BYTES, IndexHeader, Segment, entry_offset, segments_of
from tailrace.streams.shadow import BEAT_S, Appended, Shadow
from tailrace.streams.shard_files import SegmentView, shard_folder
from tailrace.streams.shard_log import ShardLog
from tailrace.streams.tracks import DELAY_S, SILENT_S, DurableTrack, LayeredTrack, Track
from tailrace.testing import ManualClock, SimulatedDisk
from worlds import STREAM, SimulatedWorld, small_config

KEY = file_key("an incarnation", 3, "a name", 10)
pieces = st.lists(st.binary(max_size=40), max_size=12)
chunk_sizes = st.integers(1, 17)

# ---- chunks


@given(pieces, chunk_sizes)
def test_chunks_are_the_file_and_grow_at_their_ends_only(parts, chunk_bytes):
    file, values, content = ChunkedFile(KEY, chunk_bytes), {}, b""
    for part in parts:
        content += part
        for key, value in file.append(memoryview(part)):
            before = values.get(key, b"")
            values[key] = bytes(value)
            assert values[key].startswith(before), "a chunk is always written from its start"
            assert len(values[key]) > len(before) or not part, "and only when there is more of it"
            number = int.from_bytes(key.removeprefix(KEY), "little")
            assert content[number * chunk_bytes :].startswith(values[key]), "with what belongs there"
        assert file.length == len(content)
        numbers = range(-(-len(content) // chunk_bytes))
        assert b"".join(values[chunk_key(KEY, number)] for number in numbers) == content
        assert len(values) == len(numbers), "nothing lies where the file does not reach"


@given(pieces, chunk_sizes)
def test_how_a_file_came_does_not_matter_for_its_chunks(parts, chunk_bytes):
    at_once, in_parts = ChunkedFile(KEY, chunk_bytes), ChunkedFile(KEY, chunk_bytes)
    last = {key: bytes(value) for part in parts for key, value in in_parts.append(memoryview(part))}
    assert last == {key: bytes(value) for key, value in at_once.append(memoryview(b"".join(parts)))}


@given(st.integers(0, 100), st.binary(min_size=1, max_size=60), chunk_sizes)
def test_an_append_writes_the_chunks_that_it_reaches_once_each(before, part, chunk_bytes):
    file = ChunkedFile(KEY, chunk_bytes)
    list(file.append(memoryview(bytes(before))))
    reached = range(before // chunk_bytes, (before + len(part) - 1) // chunk_bytes + 1)
    assert [key for key, _ in file.append(memoryview(part))] == [chunk_key(KEY, number) for number in reached]


def test_a_chunk_is_named_by_its_file_and_its_number():
    files = [
        file_key(stream, shard, name, size)
        for stream in "ab"
        for shard in (0, 1, 11)
        for name in "xy"
        for size in CHUNK_SIZES
    ]
    keys = [chunk_key(file, number) for file in files for number in (0, 1, 256)]
    assert len(set(keys)) == len(keys) == 2 * 3 * 2 * len(CHUNK_SIZES) * 3


@given(st.integers(0, 1 << 20))
def test_a_flush_fills_several_chunks_if_any_size_allows_it(flush_bytes):
    size = chunk_size_for(flush_bytes)
    assert size in CHUNK_SIZES
    assert size == CHUNK_SIZES[0] or 4 * size <= flush_bytes
    assert not [larger for larger in CHUNK_SIZES if larger > size and 4 * larger <= flush_bytes]


# ---- which chunks a run of bytes is in

runs = st.tuples(st.integers(0, 80), st.integers(1, 80), chunk_sizes)


@given(runs)
def test_a_part_is_what_counting_byte_by_byte_says(run):
    offset, size, chunk_bytes = run
    places = [divmod(position, chunk_bytes) for position in range(offset, offset + size)]
    numbers = sorted({number for number, _ in places})
    part = Part.of(offset, size, chunk_bytes)
    assert (part.first, part.count, part.skip) == (numbers[0], len(numbers), places[0][1])
    needed = [1 + max(within for number, within in places if number == each) for each in numbers]
    assert part.wanted(size, chunk_bytes) == needed


@given(st.lists(st.tuples(st.integers(-1, 5), st.integers(1, 5))))
def test_short_is_what_has_less_than_is_wanted(pairs):
    expected = [number for number in range(len(pairs)) if pairs[number][0] < pairs[number][1]]
    assert short_ones([size for size, _ in pairs], [need for _, need in pairs]) == expected


# ---- lengths

numbers = st.integers(0, 2**64 - 1)
segments = st.builds(Segment, numbers, numbers, numbers)
segment_lengths = st.builds(
    SegmentLengths, segments, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), numbers, numbers, numbers, numbers
)
shard_lengths = st.builds(
    ShardLengths,
    st.lists(segment_lengths, min_size=1, max_size=FILES_MAX).map(tuple),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**64 - 1),
)


@given(shard_lengths)
def test_lengths_come_back_as_they_were(lengths):
    assert ShardLengths.decode(lengths.encode()) == lengths


@given(st.binary(max_size=400))
def test_what_nobody_wrote_says_nothing(raw):
    assert ShardLengths.decode(raw) is None


@given(shard_lengths, st.data())
def test_damage_makes_lengths_unreadable_and_never_different(lengths, data):
    raw = bytearray(lengths.encode())
    if data.draw(st.booleans(), "cut"):
        assert ShardLengths.decode(bytes(raw[: data.draw(st.integers(0, len(raw) - 1))])) is None
        assert ShardLengths.decode(bytes(raw) + data.draw(st.binary(min_size=1, max_size=80))) is None
    else:
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        found = ShardLengths.decode(bytes(raw))
        assert found is None or found == lengths  # the two bytes that are kept free mean nothing


def test_no_lengths_at_all_and_other_versions_are_unreadable():
    one = ShardLengths((SegmentLengths(Segment(1, 2, 3), 4096, 4096),))
    assert ShardLengths.decode(ShardLengths().encode()) is None
    raw = bytearray(one.encode())
    assert raw[4] == 2
    raw[4] = 3
    assert ShardLengths.decode(bytes(raw)) is None


@given(st.lists(segment_lengths, min_size=1, max_size=3 * FILES_MAX))
def test_only_the_newest_files_are_told(begun):
    told = ShardLengths()
    for one in begun:
        told = told.begin(one)
        assert told.newest == one
    assert told.segments == tuple(begun[-FILES_MAX:])
    longer = replace(told.newest, data_cached=7)
    assert told.with_newest(longer).segments == (*begun[-FILES_MAX:-1], longer)


def test_lengths_are_found_by_segment_and_track():
    first = SegmentLengths(Segment(1, 0, 0), 4096, 65472, 1, 2, 3, 4)
    told = ShardLengths().begin(first).begin(replace(first, segment=Segment(2, 3, 4)))
    assert told.of(Segment(1, 0, 0)) is first
    assert told.of(Segment(1, 0, 1)) is None
    assert [(first.chunk_bytes(t), first.cached(t), first.durable(t)) for t in ("data", "index")] == [
        (4096, 1, 3),
        (65472, 2, 4),
    ]


# ---- when to read the durable file: Algorithm 1 of the Fast ACS paper


class Algorithm1:
    """Its lines, as they are printed. Nothing is left out and nothing is better."""

    def __init__(self, max_delay: float) -> None:
        self.max_delay = max_delay  # 1
        self.cfs_size_rec: deque[tuple[float, int]] = deque()  # 2

    def should_read_from_colossus(self, cache_size: int, cfs_size: int, time: float) -> bool:  # 4 to 6
        self.cfs_size_rec.append((time, cfs_size))  # 7
        while len(self.cfs_size_rec) != 0:  # 9
            if self.cfs_size_rec[0][1] > cache_size:  # 10
                break  # 11
            self.cfs_size_rec.popleft()  # 12
        if len(self.cfs_size_rec) == 0:  # 13
            return False  # 14
        if time > self.cfs_size_rec[0][0] + self.max_delay:  # 15
            self.cfs_size_rec.clear()  # 16
            return True  # 17
        return False  # 18


# (cached, durable, seconds, whether to read the durable file)
ALGORITHM_1 = {
    "the cache is as far as the file, lines 10 to 14": [(5, 5, 0.0, False), (5, 5, 9.0, False)],
    "the cache is ahead of the file, lines 10 to 14": [(7, 5, 0.0, False), (7, 5, 9.0, False)],
    "the cache is behind, and may come up soon, line 18": [(0, 5, 0.0, False), (0, 5, 0.9, False)],
    "not at the delay, line 15": [(0, 5, 0.5, False), (0, 5, 1.5, False)],
    "but past it, lines 15 and 17": [(0, 5, 0.5, False), (0, 5, 1.5000001, True)],
    "time counts from when the file was first that long, line 7": [
        (0, 5, 0.0, False),
        (0, 6, 0.9, False),
        (0, 7, 1.1, True),
    ],
    "what the cache came up to counts no more, line 12": [
        (0, 5, 0.0, False),
        (0, 6, 0.9, False),
        (5, 6, 1.1, False),
        (5, 6, 1.9, False),
        (5, 6, 1.91, True),
    ],
    "what it half came up to does, line 11": [(0, 5, 0.0, False), (4, 5, 1.1, True)],
    "it came up to all, and time begins anew, line 14": [(0, 5, 0.0, False), (5, 5, 0.9, False), (5, 6, 5.0, False)],
    "after a yes all is forgotten, line 16": [
        (0, 5, 0.0, False),
        (0, 9, 1.5, True),
        (0, 9, 1.6, False),
        (0, 9, 2.7, True),
    ],
    "the first look is never late": [(0, 5, 1e9, False)],
}


@pytest.mark.parametrize("case", ALGORITHM_1)
def test_algorithm_1_line_by_line(case):
    ours, printed = DelayedReads(delay_s=1.0), Algorithm1(1.0)
    for cached, durable, now_s, expected in ALGORITHM_1[case]:
        assert printed.should_read_from_colossus(cached, durable, now_s) is expected
        assert ours.is_due(cached, durable, now_s) is expected


looks = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.sampled_from([0.0, 0.25, 0.5, 1.0, 1.25])))


@given(looks)
def test_a_size_that_is_not_remembered_twice_makes_no_difference(steps):
    """Lengths that go back are among them: writers may duel."""
    ours, printed, now_s = DelayedReads(delay_s=1.0), Algorithm1(1.0), 0.0
    for cached, durable, pause_s in steps:
        now_s += pause_s
        due = ours.is_due(cached, durable, now_s)
        assert due is printed.should_read_from_colossus(cached, durable, now_s)
        sizes = [size for _, size in ours._seen]
        assert all(one != other for one, other in pairwise(sizes))


def test_who_looks_often_remembers_no_more():
    delayed = DelayedReads(delay_s=1.0)
    for look in range(1000):
        assert not delayed.is_due(0, 5, look / 1000)
    assert len(delayed._seen) == 1


# ---- one file in both layers


class Chunks:
    """A data cache in which every replica may be behind. `relaxed`, `agreed`: bytes of each chunk, -1 for none."""

    def __init__(self, content: bytes, relaxed: list[int], agreed: list[int]) -> None:
        self.content, self.relaxed, self.agreed = content, relaxed, agreed
        self.asked: list[tuple[bool, list[int] | None]] = []

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]:
        self.asked.append((relaxed, only))
        room, sizes = memoryview(buffer), [-1] * count
        for number in range(count) if only is None else only:
            start = (first + number) * stride
            held = self.relaxed if relaxed else self.agreed
            size = min(held[first + number], stride, len(self.content) - start) if first + number < len(held) else -1
            if size >= 0:
                room[number * stride : number * stride + size] = self.content[start : start + size]
                sizes[number] = size
        return sizes

    def set_many(self, items: object) -> None:
        raise AssertionError("consumers write nothing")


class DurableFile:
    def __init__(self, content: bytes) -> None:
        self.content = content
        self.reads: list[tuple[int, int]] = []
        self.expected: list[tuple[int, int]] = []

    def length(self) -> FileLength:
        return FileLength(len(self.content), len(self.content), appending=True)

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self.reads.append((offset, len(buffer)))
        found = self.content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    def expect(self, offset: int, size: int) -> None:
        self.expected.append((offset, size))

    def is_mappable(self) -> bool:
        return False

    def mapped(self, offset: int, size: int) -> None:
        return None

    def close(self) -> None:
        pass

    def __enter__(self) -> "DurableFile":
        return self

    def __exit__(self, *_: object) -> None:
        pass


SEGMENT = Segment(1, 0, 0)
CONTENT = bytes(range(1, 101))


class OneTrack:
    """A LayeredTrack, and all that it can see."""

    def __init__(self, chunk_bytes: int, durable: int, relaxed: list[int], agreed: list[int]) -> None:
        self.clock = ManualClock()
        self.file = DurableFile(CONTENT[:durable])
        self.chunks = Chunks(CONTENT, relaxed, agreed)
        layers = Layers(self.chunks, None)  # type: ignore[arg-type]
        self.silent_s = 0.0
        self.told = ShardLengths((SegmentLengths(SEGMENT, chunk_bytes, chunk_bytes, len(CONTENT)),))
        self.track = LayeredTrack(
            DurableTrack(self.file),
            "data",
            lambda size: KEY,
            lambda: layers,
            lambda: (self.told, self.silent_s),
            lambda told: told.of(SEGMENT),
            self.clock,
        )

    def tell(self, cached: int, durable: int) -> None:
        self.told = self.told.with_newest(replace(self.told.newest, data_cached=cached, data_durable=durable))

    def readable(self) -> int:
        return self.track.length().readable_bytes


@given(
    runs,
    st.integers(0, len(CONTENT)),
    st.lists(st.integers(-1, 17), max_size=100),
    st.lists(st.integers(-1, 17), max_size=100),
)
def test_a_read_is_right_whatever_the_cache_has_and_whole_if_the_file_is(run, durable, relaxed, agreed):
    offset, size, chunk_bytes = run
    size = min(size, len(CONTENT) - offset)
    one = OneTrack(chunk_bytes, durable, relaxed, agreed)
    for _ in range(3):  # a consumer that comes late once, does so differently the next time
        found = bytes(one.track.read(offset, size))
        assert CONTENT[offset : offset + size].startswith(found)
        assert offset + len(found) >= min(offset + size, durable)
    assert len(one.file.reads) <= 3, "one read of the file spans all that is missing"


def test_while_nobody_tells_of_a_file_its_reads_ask_only_now_and_then():
    one, looks = OneTrack(10, durable=100, relaxed=[], agreed=[]), []
    one.track._told = lambda: (looks.append(one.clock.monotonic_s()) or None, 0.0)  # type: ignore[assignment,func-returns-value]
    for offset in range(0, 50, 10):
        assert bytes(one.track.read(offset, 10)) == CONTENT[offset : offset + 10]
    assert len(looks) == 1
    one.clock.advance(0.06)
    one.track.read(50, 10)
    assert len(looks) == 2


def test_a_replica_that_is_behind_is_made_up_for_by_the_others():
    one = OneTrack(10, durable=0, relaxed=[10, 4, 10], agreed=[10, 10, 10])
    assert bytes(one.track.read(5, 20)) == CONTENT[5:25]
    assert one.chunks.asked == [(True, None), (False, [1])]
    assert one.file.reads == []


def test_a_replica_that_has_lost_everything_is_made_up_for_by_the_others():
    one = OneTrack(10, durable=0, relaxed=[], agreed=[10, 10, 10])
    assert bytes(one.track.read(5, 20)) == CONTENT[5:25]
    assert one.file.reads == []


def test_who_is_late_asks_one_replica_and_then_the_file():
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    assert bytes(one.track.read(0, 20)) == CONTENT[:20]
    assert one.chunks.asked == [(True, None), (False, [0, 1])]
    assert bytes(one.track.read(20, 20)) == CONTENT[20:40]
    assert one.chunks.asked[2:] == [(True, None)]
    assert one.file.reads == [(0, 20), (20, 20)]


def test_who_is_late_tries_the_cache_again_but_ever_less_often_and_stays_there_once_it_is_back():
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    one.tell(cached=1 << 30, durable=1 << 30)  # far ahead

    def reads_that_ask(count: int) -> list[int]:
        found = []
        for number in range(count):
            before = len(one.chunks.asked)
            assert bytes(one.track.read(0, 20)) == CONTENT[:20]
            if len(one.chunks.asked) > before:
                found.append(number)
        return found

    assert reads_that_ask(70) == [0, 1, 3, 7, 15, 31, 47, 63]
    one.chunks.relaxed = [10, 10]
    reads_that_ask(16)
    assert reads_that_ask(5) == [0, 1, 2, 3, 4]
    one.chunks.relaxed = []
    assert reads_that_ask(5) == [0, 1, 3], "and it is patient anew"


@pytest.mark.parametrize("in_place", [True, False])
def test_who_reads_in_place_says_what_comes_next(in_place):
    """Who copies is read ahead for by the kernel. Here nothing can be mapped, which is no reason not to say it."""
    content = bytes(200) * 1000
    file = DurableFile(content)
    track = DurableTrack(file, in_place=in_place)
    for offset, size in ((0, 100), (100, 90_000), (90_100, 100_000), (0, 70_000)):
        assert track.read(offset, size) == content[offset : offset + size]
    ahead = max(100_000, 1 << 20)
    said = [(100, 90_000), (90_100, ahead), (190_100, ahead), (0, 70_000), (70_000, ahead)]
    assert file.expected == (said if in_place else [])


def test_the_file_is_read_once_over_all_that_is_missing():
    one = OneTrack(10, durable=100, relaxed=[10, -1, 10, 3, 10], agreed=[10, -1, 10, 3, 10])
    assert bytes(one.track.read(5, 45)) == CONTENT[5:50]
    assert one.file.reads == [(10, 30)]


def test_what_lies_behind_a_hole_is_not_handed_out():
    one = OneTrack(10, durable=12, relaxed=[10, -1, 10], agreed=[10, -1, 10])
    assert bytes(one.track.read(0, 30)) == CONTENT[:12]


def test_the_file_is_read_to_where_it_was_when_the_cache_was_too_late():
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    one.tell(cached=10, durable=40)
    assert one.readable() == 10
    one.clock.advance(DELAY_S + 0.1)
    assert one.readable() == 40
    assert one.readable() == 40, "whoever reads it in several steps needs no new delay for each"
    one.tell(cached=10, durable=60)
    assert one.readable() == 40
    one.clock.advance(DELAY_S + 0.1)
    assert one.readable() == 60
    one.tell(cached=70, durable=70)
    assert one.readable() == 70


def test_a_file_that_the_cache_has_nothing_of_is_read_at_once():
    """A consumer could not even open it: it would look anew each time, and forget how long it has waited."""
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    one.tell(cached=0, durable=HEADER_BYTES)
    assert one.readable() == HEADER_BYTES


def test_lengths_that_go_back_take_nothing_away_that_was_due():
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    one.tell(cached=0, durable=50)
    assert one.readable() == 50
    one.tell(cached=20, durable=30)
    assert one.readable() == 50


class Lost:
    """An index of a copy, whose cache was ahead of the file and is gone: it said that there is a header. When somebody
    reads it, there is none yet; `then` happens right after."""

    proven = False

    def __init__(self, durable: DurableTrack, then: Callable[[], object]) -> None:
        self._durable, self._then, self._reads = durable, then, 0

    def length(self) -> FileLength:
        return FileLength(HEADER_BYTES, HEADER_BYTES, appending=True)

    def read(self, offset: int, size: int) -> memoryview:
        found, self._reads = self._durable.read(offset, size), self._reads + 1
        if self._reads == 1:
            self._then()
        return found

    def close(self) -> None:
        self._durable.close()


@pytest.mark.parametrize("comes", ["", "header", "rubbish"])
def test_a_header_that_comes_between_two_looks_is_no_damage(comes):
    files, segment = SimulatedWorld(SimulatedDisk(), ManualClock(), small_config()).files, Segment(1, 0, 0)
    folder = shard_folder(STREAM, 0)
    claim = files.claim(folder)
    claim.create(segment.data_name)
    index = claim.create(segment.index_name)

    def flush() -> None:
        if comes:
            content = IndexHeader(1, 0, 0).encode()
            index.append(0, [content if comes == "header" else bytes(len(content))])
            index.sync()

    def wrap(durable: DurableTrack, segment: Segment, name: str) -> Track:
        return Lost(durable, flush) if name == "index" else durable

    with SegmentView(files, folder, segment, wrap=wrap) as view:
        if comes == "rubbish":
            with pytest.raises(Corrupt, match="does not begin like an index"):
                view.has_header(view.length(), None)
        else:
            assert view.has_header(view.length(), None) == (comes == "header")


class Ahead:
    """A copy's cache, which is ahead of its file."""

    proven = True

    def __init__(self, durable: DurableTrack, content: bytes) -> None:
        self._durable, self._content = durable, content

    def length(self) -> FileLength:
        return FileLength(len(self._content), len(self._content), appending=True)

    def read(self, offset: int, size: int) -> memoryview:
        return memoryview(self._content)[offset : offset + size]

    def close(self) -> None:
        self._durable.close()


def test_who_reads_files_asks_the_cache_of_a_copy_for_what_they_do_not_have_yet():
    files, segment = SimulatedWorld(SimulatedDisk(), ManualClock(), small_config()).files, Segment(1, 0, 0)
    header, data = IndexHeader(1, 0, 0).encode(), bytes(range(200))
    index = header + bytes(range(4 * ENTRY_BYTES))
    claim = files.claim(shard_folder(STREAM, 0))
    for name, content in (
        (segment.data_name, data[:150]),
        (segment.index_name, index[: len(header) + ENTRY_BYTES + 9]),
    ):
        appender = claim.create(name)
        appender.append(0, [content])
        appender.sync()

    def wrap(durable: DurableTrack, segment: Segment, name: str) -> Track:
        return Ahead(durable, data if name == "data" else index)

    with SegmentView(files, shard_folder(STREAM, 0), segment, wrap=wrap) as view:
        ranges = ((0, 150), (140, 160), (160, 170))
        found = [(view.data(start, end, by_file=True), view.data_by_file, view.data_proven) for start, end in ranges]
        assert found == [(data[:150], True, False), (data[140:160], False, True), (data[160:170], False, True)]
        assert (view.data(0, 10), view.data_by_file, view.data_proven) == (data[:10], False, True)
        entries = [(view.entries(first, 2, by_file=True), view.entries_proven) for first in (0, 1)]
        behind = index[len(header) :]
        assert entries == [(behind[:ENTRY_BYTES], False), (behind[ENTRY_BYTES : 3 * ENTRY_BYTES], True)]


def test_the_file_itself_is_asked_when_nobody_says_anything():
    one = OneTrack(10, durable=100, relaxed=[], agreed=[])
    one.tell(cached=10, durable=10)
    assert one.readable() == 10
    one.silent_s = SILENT_S + 0.1
    assert one.readable() == 100


# ---- a consumer that hears little


def consumer_of_three(clock: ManualClock, cached: int, durable: int, *, follow: bool) -> Consumer:
    """Three messages are in the file; the lengths tell of fewer, for ever, and the chunks are all gone."""
    world = SimulatedWorld(SimulatedDisk(), clock, small_config(file_bytes=1 << 20))
    with world.producer() as producer:
        for value in (b"0", b"1", b"2"):
            producer.send(value, shard=0)
            producer.flush()
    (segment,) = segments_of(world.files.list(shard_folder(STREAM, 0)))
    ends = [0, *(entry_offset(number) for number in (1, 2, 3))]
    told = ShardLengths((SegmentLengths(segment, 16, 16, 0, ends[cached], 0, ends[durable]),))

    class Lengths:
        def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
            # As long as all is told, its producer says so again and again.
            return [replace(told, beat_us=clock.time_us() if durable == 3 else 0).encode() for _ in keys]

        def set_many(self, items: object) -> None:
            raise AssertionError("consumers write nothing")

    layers, board = Layers(Chunks(b"", [], []), Lengths()), Board(lambda: None, clock)
    followed = board.follow(STREAM, 0, "incarnation", lambda: layers)
    tail = ShardTail(world.files, clock, STREAM, 0, "earliest", followed=followed)
    return Consumer([tail], ConsumerConfig(batch_bytes=1), clock, follow=follow, board=board)


little = pytest.mark.parametrize(
    ("cached", "durable"), [(0, 1), (0, 3), (1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
)


@little
def test_an_iteration_ends_with_what_was_flushed_however_far_behind_the_lengths_are(cached, durable):
    with consumer_of_three(ManualClock(), cached, durable, follow=False) as consumer:
        assert [message.value for batch in consumer for message in batch] == [b"0", b"1", b"2"]


class NoHint:
    """What a consumer sleeps on when no hint comes any more."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock, self.looks = clock, 0

    def look(self) -> None:
        self.looks += 1

    def wait_for(self, timeout_s: float, *, further: bool = True) -> bool:
        self.clock.advance(timeout_s)
        return False

    def stop(self) -> None:
        pass


@little
def test_who_sleeps_until_a_hint_does_not_sleep_over_what_it_announced(cached, durable):
    clock = ManualClock()
    with consumer_of_three(clock, cached, durable, follow=True) as consumer:
        consumer._waiter = NoHint(clock)  # type: ignore[assignment]
        got = [message.value for _ in range(3) for message in consumer.poll(100.0)]
        assert got == [b"0", b"1", b"2"]
        assert clock.monotonic_s() <= (DELAY_S if durable == 3 else SILENT_S) + DELAY_S
        asleep_s = clock.monotonic_s()
        assert consumer.poll(1000.0) is None
        assert clock.monotonic_s() == asleep_s + 1000.0


def test_who_waits_in_vain_looks_seldom():
    clock, looks = ManualClock(), []
    with consumer_of_three(clock, 3, 3, follow=True) as consumer:
        consumer._waiter = NoHint(clock)  # type: ignore[assignment]
        assert all(consumer.poll() for _ in range(3))
        tail = consumer._tails[STREAM, 0]
        poll = tail.poll
        tail.poll = lambda bytes_max: looks.append(clock.monotonic_s()) or poll(bytes_max)  # type: ignore[method-assign]
        assert consumer.poll(3600.0) is None
    assert len(looks) < 3600 / 60 + 20


# ---- what the cache is told of


class FailsLate:
    """An appender whose flush does its work, and then says that it failed."""

    def __init__(self, appender: Any) -> None:
        self._appender = appender

    def sync(self) -> None:
        self._appender.sync()
        raise FileProblem("the disk went away, and came back")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._appender, name)


class OneShard:
    """The log of a shard on a simulated disk; `told` is what it said to have become durable."""

    def __init__(self, config: StreamConfig) -> None:
        clock = ManualClock()
        self.world, self.told = SimulatedWorld(SimulatedDisk(), clock, config), list[Appended]()
        self.log = ShardLog(self.world.files, clock, STREAM, 0, config, on_append=self.told.append)
        self._packer = Packer([0], [0], 4 << 20)

    def packed(self, value: bytes) -> Any:
        self._packer.add(value, shard=0, time_us=1)
        return self._packer.take()[0][0]


@pytest.mark.parametrize("before", [0, 1, 2])
def test_messages_whose_flush_only_seemed_to_fail_come_to_the_cache_too(before):
    """Otherwise the lengths would stay behind the file until the next message, and so would every consumer."""
    shard = OneShard(small_config(file_bytes=1 << 20))
    log, told = shard.log, shard.told
    for number in range(before):
        log.append(shard.packed(b"%d" % number))
    last = shard.packed(b"the one")
    if log._open is None:
        log._roll()
    assert log._open is not None
    log._open._index = FailsLate(log._open._index)  # type: ignore[assignment]
    with pytest.raises(FileProblem):
        log.append(last)
    assert len(told) == before
    log.append(last)
    log.append(last)
    assert len(told) == before + 1, "once"
    assert (told[-1].packed, told[-1].data_length) == (last, last.end)
    assert told[-1].index_length == HEADER_BYTES + sum(len(memoryview(one.packed.entries)) for one in told)
    assert {one.segment for one in told} == {told[-1].segment}


LARGE = 4 * CHUNK_SIZES[-1]  # a flush for which the largest chunks are right


@pytest.mark.parametrize(
    ("flushes", "files", "config"),
    [
        ([1, LARGE, LARGE, LARGE], [2, 2], {}),
        ([1, LARGE, 1, LARGE, 1], [5], {}),
        ([LARGE, 1, 1, LARGE], [4], {}),
        ([1, 4 * CHUNK_SIZES[1], 4 * CHUNK_SIZES[1], LARGE, LARGE], [2, 2, 1], {}),
        ([1, LARGE, LARGE, LARGE], [4], {"chunk_bytes": 4096}),
        ([1, LARGE, LARGE, LARGE], [4], {"cached": False}),
    ],
)
def test_a_stream_that_becomes_a_flood_gets_a_file_with_larger_chunks(flushes, files, config):
    shard = OneShard(replace(small_config(file_bytes=1 << 30), **config))
    for size in flushes:
        shard.log.append(shard.packed(bytes(size)))
    shard.log.close()
    assert list(Counter(one.segment for one in shard.told).values()) == files
    assert [len(message.value) for message in shard.world.read()] == flushes


def test_a_large_flush_that_is_tried_again_is_still_one():
    shard = OneShard(small_config(file_bytes=1 << 30))
    log = shard.log
    log.append(shard.packed(b"x"))
    large = shard.packed(bytes(LARGE))
    assert log._open is not None
    append, log._open._data.append = log._open._data.append, full_disk  # type: ignore[method-assign]
    for _ in range(3):
        with pytest.raises(FileProblem, match="full"):
            log.append(large)
    log._open._data.append = append  # type: ignore[method-assign]
    log.append(large)
    log.append(shard.packed(b"x"))
    assert len({one.segment for one in shard.told}) == 1


def full_disk(*_: object, **__: object) -> int:
    raise FileProblem("the disk is full")


class Heard:
    """A cache that takes everything and remembers whose lengths were told."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []

    def set_many(self, items: Any) -> None:
        self.keys += dict(items)


def test_a_busy_shard_does_not_make_the_others_look_dead():
    told: list[Appended] = []
    world = SimulatedWorld(SimulatedDisk(), ManualClock(), small_config(file_bytes=1 << 20))
    packer = Packer([0, 0], [0, 0], 1 << 20)
    for shard in (0, 1):
        packer.add(b"a message", shard=shard, time_us=1)
    for shard, (packed,) in packer.take().items():
        log = ShardLog(world.files, world.clock, STREAM, shard, world.config, on_append=told.append)
        log.append(packed)
    busy, idle = told
    heard, clock = Heard(), ManualClock()
    shadow = Shadow(lambda: Layers(Chunks(b"", [], []), heard), None, "incarnation", STREAM, clock)  # type: ignore[arg-type]
    shadow.close()
    shadow._layers = Layers(Heard(), heard)  # type: ignore[arg-type]
    shadow._closing = False
    rounds = iter([[busy, idle], *([[busy]] * 100)])

    class Feed:  # the shadow finds something of the busy shard whenever it looks
        def __enter__(self) -> None:
            clock.advance(BEAT_S / 10)
            shadow._waiting.extend(next(rounds, []))
            shadow._closing = not shadow._waiting

        def __exit__(self, *_: object) -> None:
            pass

        def notify_all(self) -> None:
            pass

    shadow._changing = shadow._shrinking = Feed()  # type: ignore[assignment]
    shadow._run()
    assert heard.keys.count(lengths_key("incarnation", 0)) > 100
    assert 8 <= heard.keys.count(lengths_key("incarnation", 1)) <= 13


def flushed(count: int, size: int = 3 << 20) -> list[Appended]:
    """What a producer flushes, so much at a time."""
    shard = OneShard(small_config(file_bytes=1 << 30))
    for _ in range(count):
        shard.log.append(shard.packed(bytes(size)))
    return shard.told


def test_what_waits_is_told_step_by_step_and_nothing_is_skipped_while_the_cache_opens():
    told = flushed(6)
    opened, steps = threading.Event(), [0]

    class Data:
        def set_many(self, items: Any) -> None:
            steps[-1] += sum(len(memoryview(value)) for value in dict(items).values())

    class Steps:
        def set_many(self, items: Any) -> None:
            if steps[-1]:
                steps.append(0)

    def opening() -> Layers:
        assert opened.wait(10)
        return Layers(Data(), Steps())  # type: ignore[arg-type]

    shadow = Shadow(opening, None, "incarnation", STREAM, SystemClock())
    for one in told:
        shadow.appended(one)
    opened.set()
    shadow.close()
    assert shadow.skipped_bytes == 0
    assert sum(steps) >= 6 * (3 << 20)
    assert len([size for size in steps if size]) >= 3
    assert max(steps) < 8 << 20


def is_waited_for(shadow: Shadow) -> bool:
    return bool(shadow._shrinking._waiters)  # type: ignore[attr-defined]


def test_who_outruns_a_cache_that_takes_all_waits_for_it_and_nothing_is_skipped():
    """40 times 3 MiB are twice what may wait before the oldest is skipped."""
    over, made = threading.Event(), []

    class TakesWhenWaitedFor:
        def set_many(self, items: Any) -> None:
            wait_until(lambda: over.is_set() or is_waited_for(made[0]), "somebody waits for the cache")

    layers = Layers(TakesWhenWaitedFor(), Heard())  # type: ignore[arg-type]
    made.append(shadow := Shadow(lambda: layers, None, "incarnation", STREAM, SystemClock()))
    for one in flushed(40):
        shadow.appended(one)
    over.set()
    shadow.close()
    assert shadow.skipped_bytes == 0


@pytest.mark.parametrize(
    ("woken", "size", "late", "alone", "nap_ms"),
    [
        (0, 1000, False, False, None),
        (1, 1000, False, False, None),
        (40, 1000, False, False, 2),
        (100_000, 1000, False, False, 10),
        (40, 1000, True, False, None),
        (40, 1 << 20, False, False, None),
        (0, 1000, False, True, 25),
        (40, 1000, False, True, 25),
        (40, 1000, True, True, None),
        (40, 1 << 20, False, True, None),
    ],
)
def test_those_who_were_woken_here_run_before_the_cache_is_fed(tmp_path, monkeypatch, woken, size, late, alone, nap_ms):
    """A nap by how many they are, or a long one where nobody is elsewhere; unless there is much to do, or somebody of
    this host waits for the cache."""
    monkeypatch.setattr(shadow_module, "_WAKE_S", 50e-6)
    hints, done = Hints(tmp_path / "hints", make=True), []
    waiter = Waiter(hints, [late_slot("an incarnation")])

    class Telling(Heard):
        def set_many(self, items: Any) -> None:
            done.append("fed")
            super().set_many(items)

    heard = Telling()
    layers = Layers(heard, heard)  # type: ignore[arg-type]
    shadow = Shadow(lambda: layers, hints, "an incarnation", STREAM, SystemClock(), alone=alone)
    wait = shadow._changing.wait

    def nap(timeout_s: float) -> bool:
        if timeout_s < BEAT_S:
            done.append(f"{timeout_s * 1e3:g} ms")
        return wait(timeout_s)

    shadow._changing.wait = nap  # type: ignore[method-assign, assignment]
    with ThreadPoolExecutor(1) as pool:
        if late:
            waiting = pool.submit(waiter.wait, 30.0)
            wait_until(lambda: hints.waiters(late_slot("an incarnation")), "somebody to wait for the cache")
        shadow.appended(replace(flushed(1, size)[0], shown=True, woken=woken))
        wait_until(lambda: "fed" in done, "the cache to be fed")
        waiter.stop()
    shadow.close()
    assert done[: done.index("fed")] == ([] if nap_ms is None else [f"{nap_ms} ms"])
    if late:
        waiting.result()


@pytest.mark.parametrize(("recently_s", "gathers"), [(1e6, False), (0.0, True)])
def test_nothing_gathers_for_a_while_after_somebody_has_waited_for_the_cache(
    tmp_path, monkeypatch, recently_s, gathers
):
    """Who works on the last message does not wait just now, but will."""
    monkeypatch.setattr(shadow_module, "_RECENTLY_S", recently_s)
    hints, heard, slot = Hints(tmp_path / "hints", make=True), Heard(), late_slot("an incarnation")
    waiter, naps = Waiter(hints, [slot]), []
    layers = Layers(heard, heard)  # type: ignore[arg-type]
    shadow = Shadow(lambda: layers, hints, "an incarnation", STREAM, SystemClock(), alone=True)
    wait = shadow._changing.wait

    def nap(timeout_s: float) -> bool:
        if timeout_s < BEAT_S:
            naps.append(timeout_s)
        return wait(timeout_s)

    shadow._changing.wait = nap  # type: ignore[method-assign, assignment]
    first, second = flushed(2, 1000)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(waiter.wait, 30.0)
        wait_until(lambda: hints.waiters(slot), "somebody to wait for the cache")
        shadow.appended(replace(first, shown=True))
        waiting.result()  # the cache has it
    assert not naps
    shadow.appended(replace(second, shown=True))
    wait_until(lambda: not shadow._waiting, "the cache to be fed")
    shadow.close()
    assert bool(naps) is gathers


@pytest.mark.parametrize(("size", "nap_s", "woken_up"), [(1000, 0.3, False), (1 << 20, 30.0, True)])
def test_a_small_flush_more_is_no_reason_to_end_a_nap(tmp_path, monkeypatch, size, nap_s, woken_up):
    """It would end when the next ones have just been woken."""
    monkeypatch.setattr(shadow_module, "_WAKE_S", nap_s)
    monkeypatch.setattr(shadow_module, "_COURTESY_S_MAX", nap_s)
    hints, heard = Hints(tmp_path / "hints", make=True), Heard()
    shadow = Shadow(lambda: Layers(heard, heard), hints, "an incarnation", STREAM, SystemClock())  # type: ignore[arg-type]
    wait, napping, ended = shadow._changing.wait, threading.Event(), []

    def nap(timeout_s: float) -> bool:
        if timeout_s == nap_s:
            napping.set()
            ended.append(wait(timeout_s))
            return ended[-1]
        return wait(timeout_s)

    shadow._changing.wait = nap  # type: ignore[method-assign, assignment]
    shadow.appended(replace(flushed(1, 1000)[0], shown=True, woken=1))
    assert napping.wait(30.0)
    shadow.appended(replace(flushed(1, size)[0], shown=True, woken=1))
    wait_until(lambda: ended, "the nap to end")
    shadow.close()
    assert ended[0] is woken_up


def test_nobody_waits_for_a_cache_that_takes_nothing():
    class Away:
        def set_many(self, items: Any) -> None:
            raise CacheUnavailable("away")

    shadow = Shadow(lambda: Layers(Away(), Heard()), None, "incarnation", STREAM, SystemClock())  # type: ignore[arg-type]
    first, *others = flushed(40)
    shadow.appended(first)
    wait_until(lambda: not shadow._taking, "the cache is known to be away")
    shadow._shrinking.wait_for = None  # type: ignore[method-assign, assignment]  # whoever waited would fail
    for one in others:
        shadow.appended(one)
    shadow.close()
    assert shadow.skipped_bytes >= 40 * (3 << 20)


def test_a_cache_that_is_too_slow_is_waited_for_once_and_then_only_when_it_has_caught_up():
    going, waits = threading.Event(), []

    class Hangs:
        def set_many(self, items: Any) -> None:
            assert going.wait(60)

    shadow = Shadow(lambda: Layers(Hangs(), Heard()), None, "incarnation", STREAM, SystemClock())  # type: ignore[arg-type]
    wait_for = shadow._shrinking.wait_for

    def counted(*of: Any) -> bool:
        waits.append(of)
        return wait_for(*of)

    shadow._shrinking.wait_for = counted  # type: ignore[method-assign]
    told = flushed(22)
    shadow.appended(told[0])
    wait_until(lambda: not shadow._waiting, "the cache hangs with the first of them")
    for one in told[1:20]:  # 60 MiB in all: none of it is skipped
        shadow.appended(one)
    assert len(waits) == 1
    going.set()
    wait_until(lambda: not shadow._waiting, "all is in the cache")
    for one in told[20:]:
        shadow.appended(one)
    assert shadow._is_welcome()
    assert shadow._patient
    shadow.close()
    assert shadow.skipped_bytes == 0
