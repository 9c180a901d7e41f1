"""Damaged and forged entries. Whatever lies in the buffers: no crash, no message that was not packed at that place, and
no read outside, which a sanitized run watches."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tailrace.native import ENTRY_BYTES, Records, count_to_position, count_to_time, entry_at, verify
from tailrace.streams import Batch

from . import model
from .buffers import tight
from .strategies import PATIENT, STREAM, sample_of, samples

U64_MAX = 2**64 - 1
FAR = [0, 1, 2**31 - 1, 2**31, 2**32, 2**62, 2**63 - 1, 2**63, U64_MAX - 1, U64_MAX]
SHAPES = [0, 1, model.HAS_KEY, model.NO_VALUE, model.FILLER, 1 << 31, model.KEY_BYTES_MAX, 2**32 - 1]


# ---- damage, done to a list of entries or to the data


@st.composite
def mutations(draw, sample):
    """A damaged copy of (entries, data). No sum is made true again."""
    entries = [list(entry) for entry in model.ENTRY.iter_unpack(sample.entries)]
    data = bytearray(sample.data)
    number = st.integers(0, max(0, len(entries) - 1))
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(sorted(KINDS)))
        if entries and kind != "data":
            KINDS[kind](draw, entries, number)
        elif kind == "data":
            _change_data(draw, data)
    return b"".join(model.ENTRY.pack(*entry) for entry in entries), bytes(data)


def _flip(draw, entries, number):
    at = draw(number) % len(entries)
    raw = bytearray(model.ENTRY.pack(*entries[at]))
    bit = draw(st.integers(0, 8 * ENTRY_BYTES - 1))
    raw[bit // 8] ^= 1 << bit % 8
    entries[at] = list(model.ENTRY.unpack(raw))


def _move_end(draw, entries, number):
    entry = entries[draw(number) % len(entries)]
    entry[0] = draw(st.sampled_from(FAR) | st.integers(-20, 20).map(lambda more: (entry[0] + more) & U64_MAX))


def _change_time(draw, entries, number):
    entries[draw(number) % len(entries)][1] = draw(st.integers(-(2**63), 2**63 - 1))


def _change_shape(draw, entries, number):
    entry = entries[draw(number) % len(entries)]
    entry[2] = draw(st.sampled_from(SHAPES) | st.sampled_from(SHAPES).map(lambda bits: entry[2] ^ bits))


def _swap(draw, entries, number):
    one, other = draw(number) % len(entries), draw(number) % len(entries)
    entries[one], entries[other] = entries[other], entries[one]


def _swap_ends(draw, entries, number):
    one, other = entries[draw(number) % len(entries)], entries[draw(number) % len(entries)]
    one[0], other[0] = other[0], one[0]


def _drop(draw, entries, number):
    del entries[draw(number) % len(entries)]


def _repeat(draw, entries, number):
    entries.insert(draw(number) % len(entries), list(entries[draw(number) % len(entries)]))


def _randomise(draw, entries, number):
    entries[draw(number) % len(entries)] = list(
        model.ENTRY.unpack(draw(st.binary(min_size=ENTRY_BYTES, max_size=ENTRY_BYTES)))
    )


def _erase(draw, entries, number):
    for entry in entries[draw(number) % len(entries) :]:
        entry[:] = [0, 0, 0, 0]


KINDS = {
    "change shape": _change_shape,
    "change time": _change_time,
    "data": None,
    "drop": _drop,
    "erase": _erase,
    "flip": _flip,
    "move end": _move_end,
    "randomise": _randomise,
    "repeat": _repeat,
    "swap ends": _swap_ends,
    "swap": _swap,
}


def _change_data(draw, data):
    kind = draw(st.sampled_from(["flip", "cut", "cut front", "insert", "append", "replace"]))
    at = draw(st.integers(0, max(0, len(data) - 1)))
    if kind == "flip" and data:
        data[at] ^= 1 << draw(st.integers(0, 7))
    elif kind == "cut":
        del data[at:]
    elif kind == "cut front":
        del data[:at]
    elif kind == "insert":
        data[at:at] = draw(st.binary(min_size=1, max_size=9))
    elif kind == "append":
        data += draw(st.binary(max_size=30))
    elif kind == "replace":
        fresh = draw(st.binary(max_size=9))
        data[at : at + len(fresh)] = fresh


def read_all(start, entries, data):
    """Every way to read them, in memory that ends where the content does. The messages."""
    records = Batch(STREAM, 3, start, tight(entries), tight(data))
    assert records.count == verify(tight(entries), start, tight(data))
    messages = records.messages()
    assert len(messages) == records.count
    for limit in (0, start, records.end, U64_MAX):
        assert 0 <= count_to_position(tight(entries), limit) <= len(entries) // ENTRY_BYTES
    for time_us in (-(2**63), 0, 2**63 - 1):
        assert 0 <= count_to_time(tight(entries), time_us) <= len(entries) // ENTRY_BYTES
    for number in range(len(entries) // ENTRY_BYTES):
        assert entry_at(tight(entries), number) == model.ENTRY.unpack_from(entries, number * ENTRY_BYTES)[:2]
    table = records.to_arrow()
    table.validate(full=True)
    for name in ("key", "value", "position"):
        assert table.column(name).to_pylist() == [getattr(message, name) for message in messages]
    assert records.start <= records.end <= records.start + len(data)
    assert bytes(records.data) == data[: records.end - start]
    return messages


def assert_only_originals(sample, start, entries, data):
    originals, position = sample.by_position, start
    for message in read_all(start, entries, data):
        assert message.position == position, "messages lie behind each other"
        assert message == originals.get(position), "nothing else was packed there"
        position += max(1, len(message.key or b"") + len(message.value or b""))


@given(st.data(), samples(min_size=1))
@settings(PATIENT, max_examples=400)
def test_damage_never_makes_a_message(data, sample):
    entries, content = data.draw(mutations(sample))
    assert_only_originals(sample, sample.start, entries, content)


@given(st.data(), samples(min_size=1))
@settings(PATIENT, max_examples=200)
def test_another_start_never_makes_a_message(data, sample):
    """Also with entries and data cut to fit: then the rest of the run is what there is."""
    ends = [end for end, *_ in model.ENTRY.iter_unpack(sample.entries)]
    start = data.draw(st.sampled_from([sample.start, *ends, 0, 2**62, 2**63 - 1]) | st.integers(0, 300))
    skip_entries = data.draw(st.integers(0, len(ends)))
    skip_bytes = data.draw(st.just(max(0, start - sample.start)) | st.integers(0, 40))
    assert_only_originals(sample, start, sample.entries[skip_entries * ENTRY_BYTES :], sample.data[skip_bytes:])


@given(samples(min_size=1), samples(min_size=1), st.integers(0, 12), st.booleans())
@settings(PATIENT, max_examples=200)
def test_the_end_of_another_file_never_continues_this_one(sample, other, cut, data_too):
    """Old blocks of the disk may show up behind a torn write."""
    entries = sample.entries[: cut * ENTRY_BYTES] + other.entries[cut * ENTRY_BYTES :]
    content = sample.data + other.data if data_too else sample.data
    messages = read_all(sample.start, entries, content)
    kept = min(cut, len(sample.messages))
    assert messages[:kept] == list(sample.messages[:kept])
    for message in messages[kept:]:  # it goes on only where the files happen to lie at the same place
        assert message in sample.messages or message in other.messages


@given(st.integers(0, 2**63 - 1) | st.integers(0, 50), st.binary(max_size=240), st.binary(max_size=80))
@settings(PATIENT, max_examples=300)
def test_noise_is_no_message(start, noise, content):
    entries = noise[: len(noise) // ENTRY_BYTES * ENTRY_BYTES]
    assert read_all(start, entries, content) == []


@given(
    st.lists(
        st.tuples(
            st.integers(0, 12) | st.sampled_from(FAR),
            st.integers(-2, 2) | st.sampled_from([-(2**63), 2**63 - 1]),
            st.sampled_from(SHAPES)
            | st.tuples(*[st.sampled_from(SHAPES)] * 2).map(lambda two: two[0] | two[1])
            | st.integers(0, 4).map(lambda length: model.HAS_KEY | length),
        ),
        max_size=6,
    ),
    st.integers(0, 3) | st.sampled_from([2**62, 2**63 - 3, 2**63 - 1]),
    st.binary(max_size=12),
)
@example([(2, 0, 0), (2, 0, 0), (1, 0, 0), (U64_MAX, 0, 0)], 0, b"abcd")
@settings(PATIENT, max_examples=400)
def test_with_true_sums_only_what_the_format_allows_is_read(forged, start, content):
    """A forger may make the sums true, so that the bounds and shapes alone have to hold."""
    entries, before = b"", start
    for end, time_us, shape in forged:
        end = end if end > 12 else start + end
        message = content[max(0, before - start) : max(0, end - start)]
        described = model.ENTRY.pack(end & U64_MAX, time_us, shape, 0)[:-4]
        entries += described + model.crc32c(message + described).to_bytes(4, "little")
        before = end
    expected = model.Records(STREAM, 3, start, entries, content)
    messages = read_all(start, entries, content)
    assert [(m.position, m.timestamp_us, m.key, m.value) for m in messages] == [
        (m.position, m.timestamp_us, m.key, m.value) for m in expected.messages()
    ]


@given(st.binary(max_size=30).map(lambda noise: noise * 24))
@PATIENT
def test_counting_takes_any_order(noise):
    """Counts of entries that are out of order mean nothing, but they stay within bounds."""
    for number in (0, 1, 2**32, 2**63 - 1):
        assert 0 <= count_to_position(tight(noise), number) <= len(noise) // ENTRY_BYTES
        assert 0 <= count_to_time(tight(noise), number) <= len(noise) // ENTRY_BYTES


def test_data_that_changes_behind_the_entries_is_seen_only_once():
    """Records hold the buffers but not their content: the data may change, the bounds stay those that were checked."""
    sample = sample_of([(b"key", b"value"), (None, b"more")], [1, 2], 0)
    data = bytearray(sample.data)
    records = Records(STREAM, 3, 0, sample.entries, data)
    data[:] = bytes(len(data))
    assert [(m.key, m.value) for m in records.messages()] == [(bytes(3), bytes(5)), (None, bytes(4))]
