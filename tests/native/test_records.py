"""Reading records: messages, columns and counts as the model sees them, and what is refused before it is looked at."""

import gc
import mmap
import pickle
import struct
from array import array
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.native import (
    ENTRY_BYTES,
    Block,
    Message,
    Packer,
    Records,
    count_to_position,
    count_to_time,
    crc32c,
    entry_at,
    moved_entries,
    verify,
)
from tailrace.streams import Batch, arrow_schema

from . import model
from .buffers import tight, whole
from .strategies import PATIENT, STREAM, sample_of, samples

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIELDS = ("stream", "shard", "position", "timestamp_us", "key", "value")


def fields(message):
    return tuple(getattr(message, name) for name in FIELDS)


def records_of(sample, kind=Records):
    return kind(STREAM, 3, sample.start, tight(sample.entries), tight(sample.data))


def model_of(sample):
    return model.Records(STREAM, 3, sample.start, sample.entries, sample.data)


ROWS = [(b"k", b"value"), (None, b"plain"), (b"", b""), (b"key", None), (b"", None), (None, b""), (None, b"x")]
SAMPLE = sample_of(ROWS, [10, 20, 20, 30, 25, 40, 50], 1000)
POSITIONS = [1000, 1006, 1011, 1012, 1015, 1016, 1017, 1018]  # the last is the end


def seal(message, start, shape, time_us=0):
    """An entry with a true sum, whatever its shape says."""
    return model.describe(message, start, 0, shape, time_us)


# ---- what was packed is what is read


@given(samples())
@settings(PATIENT, max_examples=150)
def test_messages_are_those_that_were_packed(sample):
    records = records_of(sample)
    assert records.messages() == list(sample.messages)
    assert [fields(message) for message in records.messages()] == [fields(one) for one in model_of(sample).messages()]


@given(samples())
@settings(PATIENT, max_examples=150)
def test_the_run_as_a_whole_is_as_the_model_sees_it(sample):
    records, other = records_of(sample), model_of(sample)
    for name in ("stream", "shard", "start", "end", "count", "first_time_us", "last_time_us"):
        assert getattr(records, name) == getattr(other, name), name
    assert bytes(records.data) == other.data == sample.data
    assert verify(tight(sample.entries), sample.start, tight(sample.data)) == len(sample.messages)


@given(samples(max_size=20))
@settings(PATIENT, max_examples=150)
def test_columns_are_as_the_model_sees_them(sample):
    columns, expected = records_of(sample).columns(), model_of(sample).columns()
    for number, (column, other) in enumerate(zip(columns, expected, strict=True)):
        if isinstance(other, bytes):
            assert bytes(column)[: len(other)] == other, number
            assert number == 4 or len(column) == len(other), number  # values that were not copied may go on
        else:
            assert column == other, number


@given(samples(max_size=20))
@settings(PATIENT, max_examples=150)
def test_arrow_sees_the_same_messages(sample):
    in_range = [message for message in sample.messages if abs(message.timestamp_us) < 2**55]
    if len(in_range) < len(sample.messages):
        return  # Python's datetime, not Arrow, ends before such times
    table = records_of(sample, Batch).to_arrow()
    table.validate(full=True)
    assert table.schema.equals(arrow_schema())
    assert table.to_pylist() == [
        {
            "key": message.key,
            "value": message.value,
            "timestamp": EPOCH + timedelta(microseconds=message.timestamp_us),
            "shard": message.shard,
            "position": message.position,
        }
        for message in sample.messages
    ]


def test_each_kind_of_message():
    messages = records_of(SAMPLE).messages()
    assert [(message.key, message.value) for message in messages] == ROWS
    assert [message.position for message in messages] == POSITIONS[:-1]
    assert [message.timestamp_us for message in messages] == [10, 20, 20, 30, 30, 40, 50]
    assert records_of(SAMPLE, Batch).to_arrow().column("key").to_pylist() == [key for key, _ in ROWS]
    assert records_of(SAMPLE, Batch).to_arrow().column("value").to_pylist() == [value for _, value in ROWS]


def test_values_that_lie_side_by_side_are_not_copied():
    sample = sample_of([(None, b"one"), (None, b"two")], [1, 2], 0)
    source = bytearray(sample.data)
    columns = Records(STREAM, 3, 0, sample.entries, source).columns()
    assert columns[4] is source
    assert struct.unpack("<3i", columns[5]) == (0, 3, 6)


def test_an_empty_run():
    for records in (Records(STREAM, 3, 5, b"", b""), Records(STREAM, 3, 5, Block(0), Block(0))):
        assert (records.count, records.start, records.end) == (0, 5, 5)
        assert (records.first_time_us, records.last_time_us, bytes(records.data)) == (None, None, b"")
        assert records.messages() == []
    assert Batch(STREAM, 3, 5, b"", b"").to_arrow().to_pylist() == []


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 15, 16, 17, 63, 64, 65])
def test_bitmaps_of_every_width(rows):
    every_third = [(None if n % 3 else b"k", b"v" if n % 3 or n % 2 else None) for n in range(rows)]
    sample = sample_of(every_third, list(range(rows)), 0)
    columns, expected = records_of(sample).columns(), model_of(sample).columns()
    for number in (2, 6):
        assert (columns[number] and bytes(columns[number])) == expected[number]
    assert (columns[3], columns[7]) == (expected[3], expected[7])


# ---- only a prefix counts


@given(samples(), st.integers(0, 500))
@settings(PATIENT, max_examples=150)
def test_less_data_means_fewer_messages_never_other_ones(sample, cut):
    data = sample.data[:cut]
    records = Records(STREAM, 3, sample.start, tight(sample.entries), tight(data))
    ends = [end for end, *_ in model.ENTRY.iter_unpack(sample.entries)]
    assert records.count == sum(end - sample.start <= len(data) for end in ends)
    assert records.messages() == list(sample.messages[: records.count])
    assert records.end == sample.start + len(records.data)


@given(samples(), st.integers(0, 12))
@PATIENT
def test_fewer_entries_leave_the_rest_of_the_data_alone(sample, count):
    records = Records(STREAM, 3, sample.start, tight(sample.entries[: count * ENTRY_BYTES]), tight(sample.data))
    assert records.messages() == list(sample.messages[:count])


def test_behind_the_first_bad_entry_nothing_counts():
    for number in range(len(ROWS)):
        entries = bytearray(SAMPLE.entries)
        entries[number * ENTRY_BYTES + 20] ^= 1  # its sum
        records = Records(STREAM, 3, 1000, entries, SAMPLE.data)
        assert (records.count, records.end) == (number, POSITIONS[number])
        assert bytes(records.data) == SAMPLE.data[: POSITIONS[number] - 1000]
        assert records.messages() == list(SAMPLE.messages[:number])
        assert len(struct.unpack(f"<{number}q", records.columns()[9])) == number
        assert verify(entries, 1000, SAMPLE.data) == number


def test_every_byte_of_data_and_entries_matters():
    for at in range(len(SAMPLE.data)):
        data = bytearray(SAMPLE.data)
        data[at] ^= 0x40
        hit = sum(position <= 1000 + at for position in POSITIONS) - 1
        assert verify(SAMPLE.entries, 1000, data) == hit, at
    for at in range(len(SAMPLE.entries)):
        entries = bytearray(SAMPLE.entries)
        entries[at] ^= 0x40
        assert verify(entries, 1000, SAMPLE.data) == at // ENTRY_BYTES, at


def test_another_start_is_another_place():
    for start in (0, 999, 1001, 2**40):
        assert verify(SAMPLE.entries, start, SAMPLE.data) == 0


# ---- shapes, with true sums


@pytest.mark.parametrize(
    ("message", "shape", "content"),
    [
        (b"ab", 0, (None, b"ab")),
        (b"ab", model.HAS_KEY | 1, (b"a", b"b")),
        (b"ab", model.HAS_KEY | 2, (b"ab", b"")),
        (b"ab", model.HAS_KEY, (b"", b"ab")),
        (b"ab", model.HAS_KEY | model.NO_VALUE | 2, (b"ab", None)),
        (b"\0", model.FILLER, (None, b"")),
        (b"\0", model.FILLER | model.HAS_KEY, (b"", b"")),
        (b"\0", model.FILLER | model.HAS_KEY | model.NO_VALUE, (b"", None)),
    ],
)
def test_shapes_that_fit(message, shape, content):
    (read,) = Records(STREAM, 3, 50, seal(message, 50, shape), tight(message)).messages()
    assert (read.key, read.value) == content == model.split_message(message, shape)


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        (b"ab", 1),  # a key's length without a key
        (b"ab", model.HAS_KEY | 3),  # a key longer than the message
        (b"ab", model.HAS_KEY | model.KEY_BYTES_MAX),
        (b"ab", model.NO_VALUE),  # a tombstone with value bytes
        (b"ab", model.HAS_KEY | model.NO_VALUE | 1),
        (b"ab", model.FILLER),  # a filler behind something
        (b"ab", model.FILLER | model.HAS_KEY | 1),
        (b"\0", model.FILLER | model.HAS_KEY | 1),
        (b"ab", 1 << 31),  # a flag of a later version
        (b"ab", 2**32 - 1),
    ],
)
def test_shapes_that_do_not_fit(message, shape):
    assert verify(seal(message, 50, shape), 50, tight(message)) == 0
    assert model.split_message(message, shape) is None


def test_times_that_go_back_end_the_run():
    entries = seal(b"a", 0, 0, 5) + seal(b"b", 1, 0, 4)
    assert verify(entries, 0, b"ab") == 1
    entries = seal(b"a", 0, 0, -(2**63)) + seal(b"b", 1, 0, -(2**63)) + seal(b"c", 2, 0, 2**63 - 1)
    assert verify(entries, 0, b"abc") == 3


def test_a_message_without_bytes_cannot_be():
    assert verify(seal(b"", 7, 0), 7, b"") == 0
    assert verify(seal(b"", 7, 0), 7, b"more") == 0


def test_the_end_of_all_positions():
    last = 2**63 - 1
    assert verify(seal(b"ab", last - 2, 0), last - 2, b"ab") == 1
    assert verify(seal(b"ab", last - 1, 0), last - 1, b"ab") == 0
    assert verify(seal(b"ab", 2**64 - 3, 0), 2**64 - 3, b"ab") == 0
    assert Records(STREAM, 3, last - 2, seal(b"ab", last - 2, 0), b"ab").end == last


# ---- moving


@given(samples(), st.integers(0, 2**62), st.integers(-(2**63), 2**63 - 1))
@settings(PATIENT, max_examples=150)
def test_moved_entries_are_those_of_the_same_messages_at_another_place(sample, to, time_us):
    moved = bytes(moved_entries(tight(sample.entries), sample.start, to, time_us))
    assert moved == model.moved_entries(sample.entries, sample.start, to, time_us)
    records = Records(STREAM, 3, to, moved, sample.data)
    assert records.count == len(sample.messages), "their sums are right without a look at the messages"
    for before, after in zip(sample.messages, records.messages(), strict=True):
        assert (after.key, after.value) == (before.key, before.value)
        assert after.position - to == before.position - sample.start
        assert after.timestamp_us == max(before.timestamp_us, time_us)


def test_entries_are_not_moved_beyond_the_end_of_the_numbers():
    with pytest.raises(ValueError, match="no position"):
        moved_entries(SAMPLE.entries, SAMPLE.start, 2**62 + 1, 0)


# ---- counting


@given(samples(), st.lists(st.integers(-3, 3), max_size=4))
@settings(PATIENT, max_examples=150)
def test_counts_are_as_the_model_sees_them(sample, around):
    entries = tight(sample.entries)
    for number, (end, time_us, *_) in enumerate(model.ENTRY.iter_unpack(sample.entries)):
        assert entry_at(entries, number) == (end, time_us) == model.entry_at(sample.entries, number)
        for more in around:
            limit, moment = max(0, end + more), min(max(time_us + more, -(2**63)), 2**63 - 1)
            assert count_to_position(entries, limit) == model.count_to_position(sample.entries, limit)
            assert count_to_time(entries, moment) == model.count_to_time(sample.entries, moment)


def test_counts_at_their_limits():
    count = len(ROWS)
    assert [count_to_position(SAMPLE.entries, limit) for limit in (0, 1005, 1006, 1017, 1018, 2**64 - 1)] == [
        *(0, 0, 1, count - 1, count, count)
    ]
    assert [count_to_time(SAMPLE.entries, time_us) for time_us in (-(2**63), 10, 11, 20, 21, 50, 51, 2**63 - 1)] == [
        *(0, 0, 1, 1, 3, count - 1, count, count)
    ]
    assert count_to_position(b"", 5) == count_to_time(b"", 5) == 0
    for limit in (-1, 2**64):
        with pytest.raises(OverflowError):
            count_to_position(SAMPLE.entries, limit)
    for time_us in (-(2**63) - 1, 2**63):
        with pytest.raises(OverflowError):
            count_to_time(SAMPLE.entries, time_us)


def test_an_entry_that_is_not_there():
    assert entry_at(SAMPLE.entries, 0) == (1006, 10)
    assert entry_at(SAMPLE.entries, len(ROWS) - 1) == (1018, 50)
    for number in (len(ROWS), 2**32, 2**61, 2**64 // ENTRY_BYTES + 1, 2**64 - 1):
        with pytest.raises(IndexError):
            entry_at(tight(SAMPLE.entries), number)
    with pytest.raises(IndexError):
        entry_at(b"", 0)
    for number in (-1, 2**64):
        with pytest.raises((IndexError, OverflowError)):
            entry_at(SAMPLE.entries, number)


# ---- what is refused before it is looked at

READS = [
    lambda entries: verify(entries, 0, b""),
    lambda entries: count_to_position(entries, 0),
    lambda entries: count_to_time(entries, 0),
    lambda entries: entry_at(entries, 0),
    lambda entries: Records(STREAM, 3, 0, entries, b""),
]


@pytest.mark.parametrize("read", READS)
def test_ragged_entries_are_refused(read):
    for count in (1, 23, 25, 47):
        with pytest.raises(ValueError, match=f"{count} bytes are not a whole number of 24-byte entries"):
            read(tight(bytes(count)))


@pytest.mark.parametrize("read", READS)
def test_entries_that_are_not_aligned_are_refused(read):
    block = memoryview(Block(64))
    for shift in range(1, 8):
        with pytest.raises(ValueError, match="multiple of 8 bytes in memory"):
            read(block[shift : shift + 24])


@pytest.mark.parametrize("read", READS)
def test_what_is_no_buffer_is_refused(read):
    for entries in (None, "text", 7, [b""]):
        with pytest.raises(TypeError):
            read(entries)
    with pytest.raises(BufferError):
        read(memoryview(bytes(96))[::2])


def test_a_start_that_is_no_position_is_refused():
    with pytest.raises(ValueError, match="cannot start at -1"):
        Records(STREAM, 3, -1, b"", b"")
    for start in (2**63, -(2**63) - 1):
        with pytest.raises(OverflowError):
            Records(STREAM, 3, start, b"", b"")
    for start in (-1, 2**64):
        with pytest.raises(OverflowError):
            verify(b"", start, b"")
    for shard in (2**31, -(2**31) - 1):
        with pytest.raises(OverflowError):
            Records(STREAM, shard, 0, b"", b"")


def test_a_second_making_that_fails_leaves_nothing_to_read():
    records = records_of(SAMPLE)
    for start, entries in ((0, b"ragged"), (-1, b""), (0, None)):
        with pytest.raises((ValueError, TypeError)):
            records.__init__(STREAM, 3, start, entries, b"")
        assert (records.count, records.messages()) == (0, [])
        assert records.columns()[3] == 0


def test_records_hold_their_buffers():
    entries, data = bytearray(SAMPLE.entries), bytearray(SAMPLE.data)
    records = Records(STREAM, 3, 1000, entries, data)
    for buffer in (entries, data):
        with pytest.raises(BufferError):
            buffer.append(0)
    del records
    data.append(0)
    entries.append(0)


def test_records_are_a_buffer_of_their_bytes():
    records = records_of(SAMPLE)
    view = memoryview(records)
    assert (view.tobytes(), view.readonly) == (bytes(records.data), True)
    with pytest.raises(BufferError, match="in use, 1 times"):  # it would be left with memory that is somebody else's
        records.__init__(STREAM, 3, 0, b"", b"")
    assert bytes(records) == bytes(records.data) == view.tobytes()
    assert records.messages() == list(SAMPLE.messages)
    view.release()
    records.__init__(STREAM, 3, 0, b"", b"")
    assert bytes(records) == b""
    assert bytes(Records.__new__(Records)) == b""


def test_as_a_buffer_records_end_where_the_good_ones_do():
    torn = Records(STREAM, 3, 1000, SAMPLE.entries, SAMPLE.data[:-1])
    assert 0 < torn.count < len(SAMPLE.messages)
    assert bytes(torn) == bytes(torn.data) == SAMPLE.data[: torn.end - torn.start]


def test_records_cannot_be_made_of_themselves():
    records = records_of(SAMPLE)
    with pytest.raises(BufferError, match="in use, 1 times"):
        records.__init__(STREAM, 3, 1000, SAMPLE.entries, records)
    assert (records.count, bytes(records)) == (0, SAMPLE.data)
    records.__init__(STREAM, 3, 1000, SAMPLE.entries, SAMPLE.data)
    assert records.messages() == list(SAMPLE.messages)


def test_whoever_wants_to_write_gets_nothing_and_holds_nothing():
    records = records_of(SAMPLE)
    with pytest.raises((BufferError, TypeError)):
        struct.pack_into("B", records, 0, 1)
    records.__init__(STREAM, 3, 0, b"", b"")


def test_a_view_keeps_what_it_shows():
    data = bytearray(SAMPLE.data)
    view = memoryview(Records(STREAM, 3, 1000, SAMPLE.entries, data))
    gc.collect()
    with pytest.raises(BufferError):
        data.append(0)
    assert view == SAMPLE.data
    view.release()
    data.append(0)


def test_buffers_of_any_kind_are_read():
    for kind in (bytes, bytearray, memoryview, tight, lambda content: array("B", content)):
        assert Records(STREAM, 3, 1000, kind(SAMPLE.entries), kind(SAMPLE.data)).messages() == list(SAMPLE.messages)
    block = Block(len(SAMPLE.data))
    memoryview(block)[:] = SAMPLE.data
    assert Records(STREAM, 3, 1000, SAMPLE.entries, block).messages() == list(SAMPLE.messages)


def test_two_gigabytes_are_the_end_of_one_batch_of_columns():
    """Arrow's binary columns count to 2**31 - 1. Nothing is copied here: the pages are all the same page of zeros."""
    with mmap.mmap(-1, 2**31, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as zeros, memoryview(zeros) as data:
        for length in (2**31 - 1, 2**31):
            described = struct.pack("<QqI", length, 0, 0)
            covered = struct.pack("<Q", 0) + described  # the message begins at 0
            entry = described + struct.pack("<I", crc32c(covered, crc32c(data[:length])))
            records = Records(STREAM, 3, 0, entry, data)
            assert (records.count, records.end) == (1, length)
            if length < 2**31:
                columns = records.columns()
                assert struct.unpack("<2i", columns[5]) == (0, length)
                del columns
            else:
                with pytest.raises(OverflowError, match="2 GiB"):
                    records.columns()
            del records


# ---- messages


def message(**changes):
    usual = {"stream": "s", "shard": 1, "position": 2, "timestamp_us": 3, "key": b"k", "value": b"v"}
    return Message(**(usual | changes))


def test_messages_are_equal_when_all_their_fields_are():
    assert message() == message()
    assert hash(message()) == hash(message())
    others = [
        message(stream="t"),
        message(shard=2),
        message(position=3),
        message(timestamp_us=4),
        message(key=None),
        message(key=b""),
        message(value=None),
        message(value=b""),
    ]
    assert all(message() != other for other in others)
    assert len({message(), message(), *others}) == 1 + len(others)
    assert message() != fields(message())
    assert message() != "text"


def test_a_message_shows_what_it_is():
    text = "Message(stream='s', shard=1, position=2, timestamp_us=3, key=b'k', value=b'v')"
    assert repr(message()) == text
    assert eval(repr(message(key=None))) == message(key=None)


@given(samples(min_size=1, max_size=4), st.integers(0, pickle.HIGHEST_PROTOCOL))
@PATIENT
def test_a_message_survives_pickling(sample, protocol):
    for one in records_of(sample).messages():
        again = pickle.loads(pickle.dumps(one, protocol))
        assert again == one
        assert fields(again) == fields(one)


def test_a_message_cannot_be_changed_or_made_wrong():
    for name in FIELDS:
        with pytest.raises(AttributeError):
            setattr(message(), name, getattr(message(), name))
    for wrong in ({"key": "text"}, {"value": bytearray(b"v")}, {"stream": b"s"}, {"shard": "1"}):
        with pytest.raises(TypeError):
            message(**wrong)
    for wrong in ({"shard": 2**31}, {"position": 2**63}, {"timestamp_us": -(2**63) - 1}):
        with pytest.raises(OverflowError):
            message(**wrong)
    with pytest.raises(TypeError):
        Message("s", 1, 2, 3, b"k", b"v")


def test_many_messages_come_and_go():
    """More than the free list of Message holds, so that both of its ends are met."""
    packer = Packer([0], [0], 100)
    packer.add_list([b"%d" % number for number in range(10_000)], None, 0, 1)
    packed = whole(packer.take())[0]
    for _ in range(3):
        messages = Records(STREAM, 3, 0, packed.entries, packed.data).messages()
        assert [int(message.value) for message in messages] == list(range(10_000))
        del messages[::2]
