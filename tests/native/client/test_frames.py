"""Frames of mutations: what `pack` writes and `Cell.apply` does, against a reading of the format by hand."""

import struct
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.native.cell import SLAB_BYTES, Outcome, key_hash
from tailrace.native.client import KIND_CAS, KIND_ERASE, KIND_SET, pack, replicas_of

from ..cell.places import folder, small_cell
from ..strategies import PATIENT
from .frames import CAS, COUNT_MAX, ERASE, HEAD, MUTATION, NOTHING, SET, Mutation, parsed, written

LATEST = (1 << 64) - 1

keys = st.binary(max_size=20) | st.sampled_from([b"", b"a", b"b", b"12345678"])
values = st.binary(max_size=40) | st.just(bytes(3000))
clocks = st.integers(1, 6) | st.sampled_from([1 << 40, LATEST])
versions = st.tuples(clocks, st.integers(0, 3), st.integers(0, 3) | st.just((1 << 32) - 1))


# ---- packing


def test_the_kinds_are_those_of_the_format():
    assert (KIND_SET, KIND_CAS, KIND_ERASE) == (SET, CAS, ERASE)


@settings(PATIENT, max_examples=60)
@given(
    st.lists(st.tuples(keys, values), max_size=12),
    st.sampled_from([SET, CAS, ERASE]),
    st.integers(1, 6).flatmap(lambda backends: st.tuples(st.just(backends), st.integers(1, min(3, backends)))),
    st.integers(0, 3),
    st.sampled_from([1, 200, 524_288]),
)
def test_every_key_is_in_the_frames_of_its_backends_once_and_in_order(items, kind, places, first_copy, frame_bytes_max):
    backends, copies = places
    all_keys, all_values = [key for key, _ in items], [value for _, value in items]
    expected = [(9, 9, number) for number in range(len(items))] if kind == CAS else None
    frames = pack(
        kind,
        all_keys,
        None if kind == ERASE else all_values,
        (7, 5, 3),
        expected,
        99,
        backends,
        copies,
        first_copy,
        frame_bytes_max=frame_bytes_max,
    )
    seen: dict[int, list[int]] = {}
    for backend, block, numbers in frames:
        frame = bytes(block)
        found = parsed(frame)
        assert len(found) == len(numbers)
        assert len(found) == 1 or len(frame) <= frame_bytes_max
        assert not any(content for content in paddings(frame))
        for number, one in zip(numbers, found, strict=True):
            assert one == Mutation(
                kind,
                all_keys[number],
                b"" if kind == ERASE else all_values[number],
                (7, 5, 3 + number),
                expected[number] if expected else NOTHING,
                99,
            )
        seen.setdefault(backend, []).extend(numbers)
    for backend in range(backends):
        has = [
            number for number, key in enumerate(all_keys) if backend in replicas_of(key, backends, copies)[first_copy:]
        ]
        assert seen.get(backend, []) == has


def paddings(frame):
    """What lies between contents, where only zeros belong."""
    at = HEAD.size
    for one in parsed(frame):
        at += MUTATION.size
        for content in (one.key, one.value):
            yield frame[at + len(content) : at + len(content) + -len(content) % 8].strip(b"\0")
            at += len(content) + -len(content) % 8


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((SET, [b"a"], [b"1"], (1, 1, 0), None, 0, 2, 3), ValueError),  # more copies than backends
        ((SET, [b"a"], [b"1"], (1, 1, 0), None, 0, 2, 0), ValueError),
        ((SET, [b"a"], [], (1, 1, 0), None, 0, 1, 1), ValueError),
        ((CAS, [b"a"], [b"1"], (1, 1, 0), [], 0, 1, 1), ValueError),
        ((SET, [b"a", b"b"], [b"1", b"2"], (1, 1, (1 << 32) - 1), None, 0, 1, 1), ValueError),
        ((SET, ["a"], [b"1"], (1, 1, 0), None, 0, 1, 1), TypeError),
        ((SET, [b"a"], ["1"], (1, 1, 0), None, 0, 1, 1), TypeError),
        ((SET, [b"a"], [memoryview(b"1234")[::2]], (1, 1, 0), None, 0, 1, 1), ValueError),  # not in one piece
        ((SET, [b"a"], [b"1"], (1 << 64, 1, 0), None, 0, 1, 1), OverflowError),
        ((SET, [b"a"], [b"1"], (1, 1, 0), None, 1 << 32, 1, 1), OverflowError),
    ],
)
def test_what_cannot_be_packed_is_refused(arguments, error):
    with pytest.raises(error):
        pack(*arguments)


# ---- applying


class Model:
    """A cell that never evicts and never forgets a tombstone, in a dictionary."""

    def __init__(self):
        self.stored, self.erased = {}, {}

    def apply(self, one, clock_max):
        version, floor = one.version, self.floor(one.key)
        if version[0] > clock_max:
            return Outcome.AHEAD
        if one.kind == CAS and one.expected != self.stored.get(one.key, (b"", NOTHING))[1]:
            return Outcome.MISMATCH
        if version <= floor:
            return Outcome.STALE
        if one.kind == ERASE:
            self.stored.pop(one.key, None)
            self.erased[one.key] = version
        else:
            self.stored[one.key] = (one.value, version)
        return Outcome.APPLIED

    def floor(self, key):
        return self.stored[key][1] if key in self.stored else self.erased.get(key, NOTHING)


@st.composite
def mutations(draw):
    kind = draw(st.sampled_from([SET, CAS, ERASE]))
    expected = draw(st.just(NOTHING) | versions) if kind == CAS else NOTHING
    value = b"" if kind == ERASE else draw(values)
    return Mutation(kind, draw(st.sampled_from([b"", b"a", b"b"])), value, draw(versions), expected)


@settings(PATIENT, max_examples=80)
@given(st.lists(st.lists(mutations(), max_size=8), max_size=6), st.sampled_from([3, 1 << 41, LATEST]))
def test_mutations_are_applied_in_order_each_on_its_own(batches, clock_max):
    with folder() as path:
        cell, model = small_cell(path), Model()
        for batch in batches:
            outcomes, floor = cell.apply(written(batch), 0, clock_max)
            told, stood = [], NOTHING
            for one in batch:
                told.append(model.apply(one, clock_max))
                if told[-1] is Outcome.STALE and model.floor(one.key) == one.version:
                    told[-1] = Outcome.APPLIED  # it is there already
                elif told[-1] is Outcome.STALE:
                    stood = max(stood, model.floor(one.key))
            assert [Outcome(outcome) for outcome in outcomes] == told
            assert floor == stood, "the highest version that made a mutation stale"
        assert {key: (value, version) for key, value, version, _ in cell.items()} == model.stored
        cell.close()


def test_too_large_is_an_outcome_and_the_others_of_the_frame_are_applied():
    with folder() as path:
        cell = small_cell(path)
        most = SLAB_BYTES - 32 - 8
        outcomes, _ = cell.apply(
            written(
                [Mutation(SET, b"l", bytes(most + 1)), Mutation(SET, b"m", bytes(most)), Mutation(SET, b"s", b"1")]
            ),
            0,
            LATEST,
        )
        assert list(outcomes) == [Outcome.TOO_LARGE, Outcome.APPLIED, Outcome.APPLIED]
        assert cell.get(b"l", 0) is None
        assert len(cell.get(b"m", 0)[0]) == most


def test_expiry_and_compare_and_set_are_carried():
    with folder() as path:
        cell = small_cell(path)
        cell.apply(written([Mutation(SET, b"k", b"1", (5, 1, 0), expiry_s=50)]), 10, LATEST)
        assert cell.get(b"k", 49) is not None
        assert cell.get(b"k", 50) is None
        # What has expired is not there, so compare-and-set of nothing goes through, above its version.
        late = Mutation(CAS, b"k", b"2", (6, 1, 0), NOTHING, 90)
        assert cell.apply(written([late]), 49, LATEST)[0] == bytes([Outcome.MISMATCH])
        assert cell.apply(written([late]), 50, LATEST)[0] == bytes([Outcome.APPLIED])
        assert cell.get(b"k", 50) == (b"2", (6, 1, 0))


def test_what_was_fetched_from_one_cell_makes_another_alike():
    with folder() as path, folder() as other_path:
        cell, other = small_cell(path, slabs=48), small_cell(other_path, slabs=48)
        items = [(b"key %d" % number, bytes(300 * number), (number + 1, 2, 3), 7 * number) for number in range(30)]
        cell.set_many(items)
        hashes = b"".join(key_hash(key) for key, *_ in items) + key_hash(b"not there")
        frames = 0
        while hashes:
            frame, done = cell.fetch(hashes, 4096)
            assert done > 0
            found = parsed(frame)
            assert len(frame) <= 4096 or len(found) == 1
            assert all(one.kind == SET for one in found)
            assert not other.apply(frame, 0, LATEST)[0].strip(b"\0")
            hashes, frames = hashes[16 * done :], frames + 1
        assert frames > 10
        assert sorted(other.items()) == sorted(cell.items()) == sorted(items)


# ---- hostile frames


SAMPLE = [
    Mutation(SET, b"a key", b"a value", (5, 1, 0)),
    Mutation(ERASE, b"old", b"", (5, 1, 1)),
    Mutation(CAS, b"", b"12345678", (5, 1, 2), NOTHING, 77),
    Mutation(SET, b"12345678", b"", (5, 1, 3)),
]


@pytest.fixture
def cell():
    with folder() as path:
        made = small_cell(path)
        made.set(b"old", b"stays", (1, 0, 0))
        yield made
        made.close()


def assert_refused(cell, frame):
    with pytest.raises(ValueError, match=r"\(\d+\)$"):
        cell.apply(frame, 0, LATEST)
    assert list(cell.items()) == [(b"old", b"stays", (1, 0, 0), 0)]
    assert cell.tombstones() == []


def test_a_frame_that_is_cut_anywhere_changes_nothing(cell):
    frame = written(SAMPLE)
    for end in range(len(frame)):
        assert_refused(cell, frame[:end])
    assert_refused(cell, frame + b"\0")
    assert_refused(cell, frame + bytes(8))
    assert cell.apply(frame, 0, LATEST)[0] == bytes(4)


@pytest.mark.parametrize("count", [0, 3, 5, COUNT_MAX, COUNT_MAX + 1, 1 << 32, (1 << 63) - 1, (1 << 64) - 1])
def test_a_wrong_count_changes_nothing(cell, count):
    assert_refused(cell, written(SAMPLE, count=count))


@pytest.mark.parametrize("head", [{"magic": b"TILL"}, {"layout": 0}, {"layout": 2}, {"layout": (1 << 32) - 1}])
def test_another_head_changes_nothing(cell, head):
    assert_refused(cell, written(SAMPLE, **head))


@pytest.mark.parametrize("kind", [0, 4, 1 << 31, (1 << 32) - 1])
def test_an_unknown_kind_changes_nothing(cell, kind):
    assert_refused(cell, written([*SAMPLE, Mutation(kind, b"k", b"")]))


def test_an_erase_with_a_value_changes_nothing(cell):
    assert_refused(cell, written([*SAMPLE, Mutation(ERASE, b"k", b"v")]))


FAR = [0, 1, 7, 8, 9, 63, 1 << 16, SLAB_BYTES, 1 << 31, *range((1 << 32) - 50, 1 << 32, 7), (1 << 32) - 1]


def test_sizes_near_the_end_of_their_numbers_change_nothing(cell):
    """48 + key + value is computed from 32-bit sizes: it must not wrap round to something that fits."""
    frame = bytearray(written(SAMPLE))
    for key_bytes in FAR:
        for value_bytes in FAR:
            struct.pack_into("<II", frame, HEAD.size + 4, key_bytes, value_bytes)
            if sum(size + -size % 8 for size in (key_bytes, value_bytes)) == 16:
                continue  # the same room: a sound frame that says something else
            with pytest.raises(ValueError, match=r"\w"):
                parsed(bytes(frame))
            assert_refused(cell, bytes(frame))


@settings(PATIENT, max_examples=60)
@given(st.binary(max_size=200), st.integers(0, 3))
def test_garbage_changes_nothing(garbage, begin):
    with folder() as path:
        cell = small_cell(path)
        frame = written([], count=begin) + garbage if begin else garbage
        try:
            count = len(parsed(frame))
        except ValueError:
            with pytest.raises(ValueError, match=r"\w"):
                cell.apply(frame, 0, LATEST)
            assert cell.stats()["records"] == cell.stats()["tombstones"] == 0
        else:
            assert len(cell.apply(frame, 0, LATEST)[0]) == count
        cell.close()


def test_one_changed_byte_is_refused_or_means_what_it_says():
    """Whatever byte of a sound frame is changed: the format's reading and the cell's are the same."""
    draw, frame = Random(4), written(SAMPLE)
    refused = 0
    for at in range(len(frame)):
        for _ in range(3):
            damaged = frame[:at] + bytes([frame[at] ^ 1 << draw.randrange(8)]) + frame[at + 1 :]
            with folder() as path:
                cell, model = small_cell(path), Model()
                try:
                    read = parsed(damaged)
                except ValueError:
                    refused += 1
                    with pytest.raises(ValueError, match=r"\w"):
                        cell.apply(damaged, 0, LATEST)
                    assert cell.stats()["records"] == cell.stats()["tombstones"] == 0
                else:
                    outcomes, _ = cell.apply(damaged, 0, LATEST)
                    assert list(outcomes) == [model.apply(one, LATEST) for one in read]
                    assert {key: (value, version) for key, value, version, _ in cell.items()} == model.stored
                cell.close()
    assert refused > 100


def test_a_frame_for_a_closed_cell_is_refused():
    with folder() as path:
        cell = small_cell(path)
        cell.close()
        with pytest.raises(ValueError, match="closed"):
            cell.apply(written(SAMPLE), 0, LATEST)


def test_values_may_lie_in_any_buffer():
    content = memoryview(bytearray(b"0123456789"))
    ((_, plain, _),) = pack(SET, [b"a", b"b"], [b"345", b""], (1, 1, 0), None, 0, 1, 1)
    ((_, other, _),) = pack(SET, [b"a", b"b"], [content[3:6], bytearray()], (1, 1, 0), None, 0, 1, 1)
    assert bytes(other) == bytes(plain)
