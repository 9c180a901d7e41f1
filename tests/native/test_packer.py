"""The packer against its model: whatever comes in, both hold the same bytes; what is refused leaves no trace."""

import ctypes
import gc
import struct
import time
from array import array
from dataclasses import astuple, dataclass

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.native import Packer, Records, shard_of

from . import model
from .buffers import tight, whole
from .strategies import PATIENT, contents, keys, samples, times_us

REFUSALS = (ValueError, TypeError, OverflowError)
BEFORE_ALL_TIME = -(2**63)


def columns_of(items, bits=True, under_absent=b""):
    """(content, 64-bit offsets, bitmap) of an Arrow binary column. Arrow allows content under what is absent."""
    ends, content = [0], b""
    for item in items:
        content += under_absent if item is None else item
        ends.append(len(content))
    return content, struct.pack(f"<{len(ends)}q", *ends), model.bitmap(items) if bits else None


def plain(packed):
    """Packed of either kind, as {shard: tuple of its fields}."""
    return {
        shard: (one.start, one.end, one.last_time_us, one.count, bytes(one.data), bytes(one.entries))
        for shard, one in (
            whole(packed) if any(isinstance(parts, list) for parts in packed.values()) else packed
        ).items()
    }


# ---- operations, each of which can be done to either packer


@dataclass(frozen=True)
class Add:
    value: object
    key: object
    shard: int | None
    time_us: int

    def do(self, packer):
        return packer.add(self.value, self.key, self.shard, self.time_us)


@dataclass(frozen=True)
class AddList:
    values: list
    keys: list | None
    shard: int | None
    time_us: int

    def do(self, packer):
        return packer.add_list(self.values, self.keys, self.shard, self.time_us)


@dataclass(frozen=True)
class AddColumns:
    values: bytes
    value_offsets: bytes
    value_present: bytes | None
    keys: bytes | None
    key_offsets: bytes | None
    key_present: bytes | None
    first: int
    count: int
    shard: int | None
    time_us: int

    def do(self, packer):
        buffers = (self.values, self.value_offsets, self.value_present, self.keys, self.key_offsets, self.key_present)
        if isinstance(packer, Packer):
            buffers = tuple(None if buffer is None else tight(buffer) for buffer in buffers)
        return packer.add_columns(*buffers, self.first, self.count, self.shard, self.time_us)


@dataclass(frozen=True)
class Take:
    def do(self, packer):
        return plain(packer.take())


shards = st.none() | st.integers(-1, 6)
stamps = times_us | st.just(2**63)  # the last is no time at all
buffers = (
    contents | contents.map(lambda item: item and bytearray(item)) | contents.map(lambda item: item and tight(item))
)
not_buffers = st.sampled_from(["text", 7, 1.5])


@st.composite
def lists(draw):
    values = draw(st.lists(contents, max_size=6))
    some_keys = draw(st.none() | st.lists(keys, min_size=len(values), max_size=len(values)))
    if draw(st.integers(0, 9)) == 0:
        values.insert(draw(st.integers(0, len(values))), draw(st.sampled_from([bytearray(b"x"), "text", 7, b"", None])))
        if some_keys is not None and draw(st.booleans()):
            some_keys.append(draw(st.sampled_from([bytearray(b"x"), "text", 7, b"", None])))
    return AddList(values, some_keys, draw(shards), draw(stamps))


@st.composite
def columns(draw):
    rows = draw(st.lists(st.tuples(keys, contents), max_size=20))
    if draw(st.integers(0, 3)):  # most columns are fine in this respect
        rows = [row for row in rows if row != (None, None)]
    value_column = columns_of([value for _, value in rows], under_absent=draw(st.binary(max_size=3)))
    key_column = (None, None, None)
    if draw(st.booleans()):
        key_column = columns_of([key for key, _ in rows], under_absent=draw(st.binary(max_size=3)))
    first = draw(st.integers(0, len(rows)))
    count = draw(st.integers(0, len(rows) - first))
    return AddColumns(*value_column, *key_column, first, count, draw(shards), draw(stamps))


HUGE = [2**60 - 1, 2**60, 2**61 - 1, 2**61, 2**61 + 1, 2**62, 2**63 - 2, 2**63 - 1]
ends = st.integers(-1, 12) | st.sampled_from([-(2**63), 2**31, 2**32, 2**62, 2**63 - 1])
row_numbers = st.integers(-1, 6) | st.sampled_from([-(2**63), *HUGE])


@st.composite
def hostile_columns(draw):
    def column():
        offsets = draw(st.lists(ends, max_size=6) | st.lists(st.integers(0, 10), max_size=6).map(sorted))
        ragged = draw(st.just(b"") | st.binary(max_size=7))
        bits = draw(st.none() | st.binary(max_size=2))
        return draw(st.binary(max_size=10)), struct.pack(f"<{len(offsets)}q", *offsets) + ragged, bits

    key_column = column() if draw(st.booleans()) else (None, None, None)
    return AddColumns(*column(), *key_column, draw(row_numbers), draw(row_numbers), draw(shards), draw(stamps))


adds = st.builds(Add, buffers | not_buffers, buffers | not_buffers, shards, stamps)
good_adds = st.builds(Add, contents, keys, st.none(), times_us)
operations = st.lists(
    good_adds | adds | lists() | columns() | hostile_columns() | st.builds(Take), min_size=1, max_size=15
)
starts = st.none() | st.integers(0, 1000) | st.sampled_from([2**32 - 3, 2**62])
positions = st.lists(starts, min_size=1, max_size=5).filter(lambda all: any(one is not None for one in all))


def do_both(operation, packer, other):
    before = packer.pending_bytes
    try:
        expected = operation.do(other)
    except ValueError:
        with pytest.raises(REFUSALS):
            operation.do(packer)
        assert packer.pending_bytes == before
    else:
        assert operation.do(packer) == expected
    assert packer.pending_bytes == other.pending_bytes


@given(positions, st.lists(times_us, min_size=5, max_size=5), st.sampled_from([0, 5, 30, 200]), operations)
@example([0], [0] * 5, 30, [AddColumns(b"abc", struct.pack("<2q", 0, 3), None, None, None, None, 2**61, 1, 0, 1)])
@example([0, 0], [0] * 5, 30, [Add(b"refused", None, None, 2**63), Add(b"first", None, None, 1)])
@settings(PATIENT, max_examples=300)
def test_random_operations_leave_both_alike(positions, times, message_bytes_max, operations):
    packer = Packer(positions, times[: len(positions)], message_bytes_max)
    other = model.Packer(positions, times[: len(positions)], message_bytes_max)
    for operation in operations:
        do_both(operation, packer, other)
    do_both(Take(), packer, other)
    do_both(Take(), packer, other)  # nothing is left


@given(hostile_columns())
@settings(PATIENT, max_examples=300)
def test_hostile_columns_are_refused_or_mean_what_they_say(operation):
    packer, other = Packer([0, 0], [0, 0], 100), model.Packer([0, 0], [0, 0], 100)
    do_both(operation, packer, other)
    do_both(Take(), packer, other)


@given(st.lists(good_adds, max_size=40), st.integers(1, 4))
@PATIENT
def test_what_was_packed_reads_back(adds, shards):
    packer, sent = Packer([7] * shards, [0] * shards, 1000), []
    for add in adds:
        if (add.value, add.key) != (None, None):
            add.do(packer)
            sent.append((add.key, add.value))
    delivered = []
    for shard, packed in whole(packer.take()).items():
        records = Records("s", shard, packed.start, packed.entries, packed.data)
        assert (records.count, records.end, records.last_time_us) == (packed.count, packed.end, packed.last_time_us)
        delivered += [(message.key, message.value) for message in records.messages()]
    assert sorted(map(repr, delivered)) == sorted(map(repr, sent))


# ---- where messages go


def shard_values(packer):
    return {
        shard: [m.value for m in Records("s", shard, one.start, one.entries, one.data).messages()]
        for shard, one in whole(packer.take()).items()
    }


def test_without_a_key_messages_take_turns_among_the_shards_written_here():
    packer = Packer([0, None, 0, 0], [0] * 4, 100)
    for number in range(7):
        packer.add(b"%d" % number)
    assert shard_values(packer) == {0: [b"0", b"3", b"6"], 2: [b"1", b"4"], 3: [b"2", b"5"]}


def test_a_refused_message_takes_no_turn():
    packer = Packer([0, 0], [0, 0], 5)
    for refused in (b"too long", None, "text"):
        with pytest.raises(REFUSALS):
            packer.add(refused)
    for time_us in (2**63, "now"):
        with pytest.raises(REFUSALS):
            packer.add(b"1", time_us=time_us)
    packer.add(b"first")
    assert shard_values(packer) == {0: [b"first"]}


def test_a_list_without_keys_stays_together():
    packer = Packer([0, 0], [0, 0], 100)
    packer.add_list([b"1", b"2"], None)
    packer.add_list([b"3", b"4"], None)
    packer.add_list([], None)  # takes no turn
    packer.add_list([b"5"], None)
    assert shard_values(packer) == {0: [b"1", b"2", b"5"], 1: [b"3", b"4"]}


def test_a_key_finds_its_shard():
    packer = Packer([0] * 8, [0] * 8, 100)
    for number in range(50):
        packer.add(b"by add", b"%d" % number)
    packer.add_list([b"by list"] * 50, [b"%d" % number for number in range(50)])
    for shard, packed in whole(packer.take()).items():
        for message in Records("s", shard, packed.start, packed.entries, packed.data).messages():
            assert shard_of(message.key, 8) == shard


def test_a_shard_written_elsewhere_is_refused():
    packer = Packer([0, None], [0, 0], 100)
    key = next(key for key in (b"%d" % number for number in range(100)) if shard_of(key, 2) == 1)
    column = columns_of([b"v"])
    for attempt in (
        lambda: packer.add(b"v", key),
        lambda: packer.add(b"v", None, 1),
        lambda: packer.add(b"v", key, 1),
        lambda: packer.add_list([b"v", b"v"], [None, key]),
        lambda: packer.add_list([b"v"], None, 1),
        lambda: packer.add_columns(*column, *columns_of([key]), 0, 1),
        lambda: packer.add_columns(*column, None, None, None, 0, 1, 1),
    ):
        with pytest.raises(ValueError, match="shard 1 is not among those"):
            attempt()
    assert (packer.pending_bytes, whole(packer.take())) == (0, {})
    packer.add(b"v", key, 0)  # a shard given beats the key's own
    assert shard_values(packer) == {0: [b"v"]}


@pytest.mark.parametrize("shard", [-1, 2, 2**32, 2**64, "0"])
def test_a_shard_that_is_none_of_the_stream_is_refused(shard):
    packer = Packer([0, 0], [0, 0], 100)
    for attempt in (
        lambda: packer.add(b"v", None, shard),
        lambda: packer.add_list([b"v"], None, shard),
        lambda: packer.add_columns(*columns_of([b"v"]), None, None, None, 0, 1, shard),
    ):
        with pytest.raises((ValueError, TypeError)):
            attempt()
    assert (packer.pending_bytes, whole(packer.take())) == (0, {})


# ---- what is refused, and what the refusal says


def test_a_refusal_says_what_happened():
    packer = Packer([0], [0], 5)
    with pytest.raises(ValueError, match=r"6 bytes; the stream takes at most message_bytes_max=5. It was not sent"):
        packer.add(b"val", b"key")
    with pytest.raises(ValueError, match=r"so it needs one. It was not sent"):
        packer.add(None)
    with pytest.raises(TypeError, match=r"the value is a str; send bytes.* It was not sent"):
        packer.add("text")
    with pytest.raises(TypeError, match=r"the key is int; send bytes.* It was not sent"):
        packer.add(b"v", 7)
    with pytest.raises(BufferError):
        packer.add(memoryview(b"abcd")[::2])
    with pytest.raises(ValueError, match=r"2 values with 1 keys. Nothing was sent"):
        packer.add_list([b"1", b"2"], [b"k"])
    with pytest.raises(TypeError, match="value 1 is NoneType"):
        packer.add_list([b"1", None], None)
    with pytest.raises(TypeError, match="key 1 is str"):
        packer.add_list([b"1", b"2"], [None, "k"])
    with pytest.raises(TypeError):
        packer.add_list((b"1",), None)
    with pytest.raises(ValueError, match="row 0 has no value and no key"):
        packer.add_columns(*columns_of([None]), None, None, None, 0, 1)
    assert (packer.pending_bytes, whole(packer.take())) == (0, {})


def test_a_refused_batch_leaves_what_was_pending():
    packer = Packer([0, 0], [0, 0], 5)
    pending = packer.add(b"early", None, 0)
    for attempt in (
        lambda: packer.add_list([b"1", b"2", b"too long"], [b"a", b"b", None]),
        lambda: packer.add_list([b"1", b"2", "text"], None),
        lambda: packer.add_columns(*columns_of([b"1", b"2", b"too long"]), None, None, None, 0, 3),
        lambda: packer.add_columns(*columns_of([b"1", None]), *columns_of([b"k", None]), 0, 2),
    ):
        with pytest.raises((ValueError, TypeError)):
            attempt()
        assert packer.pending_bytes == pending
    assert shard_values(packer) == {0: [b"early"]}


@pytest.mark.parametrize("first", [-1, 0, 1, 2, *HUGE])
@pytest.mark.parametrize("count", [-1, 0, 2, 3, *HUGE])
def test_rows_that_are_not_there_are_refused(first, count):
    """Among them numbers whose sum, or eightfold, is small again in 64 bits."""
    packer = Packer([0], [0], 100)
    content, offsets, _ = columns_of([b"a", b"b"])
    columns = (tight(content), tight(offsets), None)
    if first >= 0 and count >= 0 and first + count <= 2:
        assert packer.add_columns(*columns, None, None, None, first, count) == count * 25
        return
    for arguments in ((*columns, None, None, None), (*columns, *columns)):
        with pytest.raises(ValueError, match="Nothing was sent"):
            packer.add_columns(*arguments, first, count)
    assert packer.pending_bytes == 0


@pytest.mark.parametrize("ends", [(-1, 2, 4), (0, 3, 2), (0, 2, 5), (-(2**63), 0, 4), (0, 2**63 - 1, 4), (5, 5, 5)])
def test_rows_outside_the_content_are_refused(ends):
    packer = Packer([0], [0], 100)
    good, wrong = struct.pack("<3q", 0, 2, 4), struct.pack("<3q", *ends)
    for offsets in ((wrong, good), (good, wrong)):
        with pytest.raises(ValueError, match="column lies outside its data"):
            packer.add_columns(tight(b"abcd"), offsets[0], None, tight(b"abcd"), offsets[1], None, 0, 2)
    assert packer.pending_bytes == 0


@pytest.mark.parametrize(
    ("first", "count", "fits"), [(0, 8, True), (0, 9, False), (8, 1, False), (8, 0, True), (7, 1, True)]
)
def test_a_bitmap_that_is_too_short_is_refused(first, count, fits):
    packer = Packer([0], [0], 100)
    content, offsets, _ = columns_of([b"v"] * 9)
    eight = tight(b"\xff")
    for bits in ((eight, None), (None, eight)):
        columns = (content, offsets, bits[0], content, offsets, bits[1], first, count)
        if fits:
            packer.add_columns(*columns)
        else:
            with pytest.raises(ValueError, match="bitmap is too short"):
                packer.add_columns(*columns)
    assert packer.pending_bytes == (2 * count * 26 if fits else 0)


def test_offsets_that_are_not_aligned_are_refused():
    packer = Packer([0], [0], 100)
    content, offsets, _ = columns_of([b"a"])
    shifted = memoryview(bytearray(b"\0\0\0\0" + offsets))[4:]
    with pytest.raises(ValueError, match="multiple of 8 bytes in memory"):
        packer.add_columns(content, shifted, None, None, None, None, 0, 1)
    with pytest.raises(ValueError, match="multiple of 8 bytes in memory"):
        packer.add_columns(content, offsets, None, content, shifted, None, 0, 1)
    assert packer.pending_bytes == 0


def test_a_key_column_needs_its_content():
    packer = Packer([0], [0], 100)
    content, offsets, _ = columns_of([b"a"])
    with pytest.raises(TypeError):
        packer.add_columns(content, offsets, None, None, offsets, None, 0, 1)
    assert packer.pending_bytes == 0


def test_other_buffers_are_taken_as_they_lie():
    packer = Packer([0], [0], 100)
    packer.add(bytearray(b"value"), memoryview(b"key")[1:])
    packer.add(array("H", [1, 2]))
    (packed,) = whole(packer.take()).values()
    assert [(m.key, m.value) for m in Records("s", 0, 0, packed.entries, packed.data).messages()] == [
        (b"ey", b"value"),
        (None, struct.pack("<2H", 1, 2)),
    ]


# ---- positions, times, sizes


def test_positions_go_on_where_the_last_take_ended():
    packer = Packer([100], [0], 100)
    packer.add(b"12345", time_us=1)
    first = whole(packer.take())[0]
    packer.add(b"67", time_us=2)
    second = whole(packer.take())[0]
    assert [(one.start, one.end) for one in (first, second)] == [(100, 105), (105, 107)]
    assert whole(packer.take()) == {}


def test_times_never_go_back_whatever_the_clock_does():
    packer = Packer([0], [50], 100)
    for time_us in (10, 60, 55, -5, 61):
        packer.add(b"v", time_us=time_us)
    first = whole(packer.take())[0]
    packer.add(b"v", time_us=7)
    second = whole(packer.take())[0]
    times = [
        m.timestamp_us for one in (first, second) for m in Records("s", 0, one.start, one.entries, one.data).messages()
    ]
    assert times == [50, 60, 60, 60, 61, 61]


def test_without_a_time_it_is_now():
    packer = Packer([0], [BEFORE_ALL_TIME], 100)
    before = time.time_ns() // 1000
    packer.add(b"v")
    packer.add_list([b"v"], None)
    packer.add_columns(*columns_of([b"v"]), None, None, None, 0, 1)
    after = time.time_ns() // 1000
    packed = whole(packer.take())[0]
    messages = Records("s", 0, 0, packed.entries, packed.data).messages()
    assert all(before <= message.timestamp_us <= after for message in messages)


def test_the_largest_message_fits_and_one_byte_more_does_not():
    packer = Packer([0], [0], 100_000)
    assert packer.add(b"v" * 99_000, b"k" * 1000) == 100_024
    with pytest.raises(ValueError, match="100001 bytes"):
        packer.add(b"v" * 99_001, b"k" * 1000)
    assert packer.add(b"v", None) == 100_024 + 25


def test_buffers_grow_and_shrink_with_what_comes():
    packer, position = Packer([0], [0], 1 << 20), 0
    for sizes in ([1] * 3000, [300_000], [], [5], [4096, 4095, 4097] * 9):
        values = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
        for value in values:
            packer.add(value)
        for packed in whole(packer.take()).values():
            records = Records("s", 0, position, packed.entries, packed.data)
            assert [message.value for message in records.messages()] == values
            position = packed.end
    assert position == 3000 + 300_000 + 5 + 9 * 3 * 4096


def test_messages_lie_in_memory_as_they_will_in_the_blocks_of_their_file():
    packer, base = Packer([1000], [0], 1 << 20), 1000
    for number, sizes in enumerate(([10], [511], [700], [9000] * 30, [1])):
        for size in sizes:
            packer.add(bytes(size))
        packed = whole(packer.take())[0]
        address = ctypes.addressof(ctypes.c_char.from_buffer(packed.data))
        assert (address - (packed.start - base)) % 512 == 0
        if number == 2:  # another file was begun with what comes next
            base = packed.end
            packer.note_file(0, base)
            packer.add(b"still as in the file before")
            packer.take()
    packer.note_file(0, 1 << 60)  # none that could be: ignored
    packer.add(b"x")
    assert whole(packer.take())[0].start == packed.end


def test_what_was_taken_stays_as_it_was():
    packer = Packer([0], [0], 100)
    packer.add(b"first")
    first = whole(packer.take())[0]
    data, entries = bytes(first.data), bytes(first.entries)
    for _ in range(50):
        packer.add(b"other")
        packer.take()
    assert (bytes(first.data), bytes(first.entries)) == (data, entries)


@given(samples(max_size=6), st.integers(0, 9))
@PATIENT
def test_offsets_of_a_slice_in_the_middle(sample, first):
    """Rows before `first` are not looked at, so they may be anything."""
    rows = [(message.key, message.value) for message in sample.messages]
    junk = [b"junk"] * first
    values, keys = columns_of([*junk, *(value for _, value in rows)]), columns_of([*junk, *(key for key, _ in rows)])
    by_columns, by_list = Packer([0] * 3, [0] * 3, 1000), Packer([0] * 3, [0] * 3, 1000)
    by_columns.add_columns(*values, *keys, first, len(rows), None, 5)
    by_list.add_list([value for _, value in rows], [key for key, _ in rows], None, 5)
    assert plain(by_columns.take()) == plain(by_list.take())


# ---- packers that are none


def test_a_packer_needs_a_shard_of_its_own():
    for positions in ([], [None, None]):
        with pytest.raises(ValueError, match="at least one shard"):
            Packer(positions, [0] * len(positions), 100)
    with pytest.raises(ValueError, match="zip"):
        Packer([0, 0], [0], 100)
    for position in ("0", -1, 2**62 + 1, 2**63, 2**64):
        with pytest.raises((TypeError, ValueError)):
            Packer([position], [0], 100)


def test_a_packer_that_was_never_made_takes_nothing():
    packer = Packer.__new__(Packer)
    with pytest.raises(ValueError, match="at least one shard"):
        packer.__init__([None], [0], 100)
    assert whole(packer.take()) == {}
    with pytest.raises(TypeError):
        packer.add(b"")


def test_a_failed_second_making_changes_nothing():
    packer = Packer([0, 0], [0, 0], 100)
    packer.add(b"1")
    with pytest.raises(ValueError, match="at least one shard"):
        packer.__init__([None], [0], 100)
    packer.add(b"2")
    assert shard_values(packer) == {0: [b"1"], 1: [b"2"]}


def test_what_comes_in_while_taking_stays_counted():
    """Before Python 3.12 the collector may run while `take` makes its objects, and with it any other thread."""
    packer, shards = Packer([0] * 40, [0] * 40, 100), range(40)
    late = []

    def another_thread(phase, info):
        if phase == "start":
            packer.add(b"late", None, 0, 1)
            late.append(b"late")

    def take():
        gc.set_threshold(1)
        gc.callbacks.append(another_thread)
        try:
            return whole(packer.take())
        finally:
            gc.callbacks.remove(another_thread)
            gc.set_threshold(*thresholds)

    thresholds = gc.get_threshold()
    for shard in shards:
        packer.add(b"v", None, shard, 1)
    taken = take()
    assert sum(packed.count for packed in taken.values()) <= 40 + len(late)
    pending = packer.pending_bytes
    left = whole(packer.take())
    assert (not left) or pending >= sum(len(one.data) + len(one.entries) for one in left.values())
    position, values = 0, []
    for packed in (taken[0], *left.values()):
        assert packed.start == position
        records = Records("s", 0, packed.start, packed.entries, packed.data)
        values += [message.value for message in records.messages()]
        position = packed.end
    assert values == [b"v", *late]


def test_fields_of_the_model_and_of_what_is_packed_are_the_same():
    packer, other = Packer([5], [0], 100), model.Packer([5], [0], 100)
    for one in (packer, other):
        one.add(b"v", b"k", None, 9)
    assert plain(packer.take())[0] == astuple(other.take()[0])
