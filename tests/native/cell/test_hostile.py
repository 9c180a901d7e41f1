"""Damaged memory. Whatever lies in the files: no crash, and no value that was not set for that key."""

import os
import struct
from itertools import product
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.native.cell import SLAB_BYTES, CellView

from ..strategies import PATIENT
from .model import entry_sum
from .places import (
    BUCKET,
    DATA,
    HEAD,
    PLACE,
    PLACES,
    UNIT_BYTES,
    buckets_of,
    folder,
    overwrite,
    place_at,
    small_cell,
    with_true_sum,
)

BUCKETS = 4
KEYS = [b"key %d" % number for number in range(8)]
FAR = [0, 1, 63, 64, SLAB_BYTES - 64, SLAB_BYTES, 16 * SLAB_BYTES, 64 * SLAB_BYTES, 2**31, 2**32 - 1]
FARTHER = [*FAR, 2**32, 2**63 - 1, 2**63, 2**64 - 64, 2**64 - 1]


def filled(path):
    """A cell, and all that was ever set in it by key. Slots have been used twice, so older entries lie around."""
    cell, ever = small_cell(path, buckets=BUCKETS), {}
    for turn in range(2):
        for number, key in enumerate(KEYS):
            value, version = b"%s turn %d " % (key, turn) * (1 + 40 * number), (1 + turn, 0, number)
            cell.set(key, value, version)
            ever.setdefault(key, set()).add((value, version))
    return cell, ever


def test_the_sample_is_all_readable():
    with folder() as path:
        cell, ever = filled(path)
        view = CellView(path)
        found = view.get_many(KEYS, 0)
        assert all(answer in ever[key] for key, answer in zip(KEYS, found, strict=True))
        assert cell.stats()["growths"] == cell.stats()["chained"] == 0


def assert_nothing_new(views, ever):
    """Each view answers or refuses; a new one may refuse from the start."""
    room = bytearray(SLAB_BYTES)
    for view in views:
        try:
            found = view.get_many(KEYS, 0)
            sizes = [(key, view.get_into(key, room, 0), bytes(room)) for key in KEYS]
        except (ValueError, OSError):
            continue
        for key, answer in zip(KEYS, found, strict=True):
            assert answer is None or answer in ever[key]
        for key, size, content in sizes:
            assert size is None or content[:size] in {value for value, _ in ever[key]}


def opened(path):
    try:
        return [CellView(path)]
    except (ValueError, OSError):
        return []


def files_of(path):
    return {"head": 80, "index.1": BUCKETS * 256, "data": 2 * SLAB_BYTES}


@given(st.data())
@settings(PATIENT, max_examples=250)
def test_changed_bytes_make_no_value(data):
    with folder() as path:
        cell, ever = filled(path)
        views = opened(path)
        for _ in range(data.draw(st.integers(1, 6))):
            name, size = data.draw(st.sampled_from(sorted(files_of(path).items())))
            at = data.draw(st.integers(0, size - 1) | st.integers(0, min(size - 1, 2000)))
            overwrite(path / name, at, data.draw(st.binary(min_size=1, max_size=min(24, size - at))))
        assert_nothing_new(views + opened(path), ever)
        cell.close()


@given(st.binary(min_size=8, max_size=64), st.sampled_from(["head", "index", "data"]))
@settings(PATIENT, max_examples=100)
def test_noise_makes_no_value(noise, which):
    with folder() as path:
        cell, ever = filled(path)
        views = opened(path)
        name, size = next((name, size) for name, size in files_of(path).items() if name.startswith(which))
        overwrite(path / name, 0, (noise * (size // len(noise) + 1))[:size])
        assert_nothing_new(views + opened(path), ever)
        cell.close()


@given(st.data())
@settings(PATIENT, max_examples=250)
def test_entries_pointing_anywhere_make_no_value(data):
    """The index names other offsets, sizes, versions and times, with hashes that are asked for."""
    with folder() as path:
        cell, ever = filled(path)
        views = opened(path)
        index = path / "index.1"
        for _ in range(data.draw(st.integers(1, 4))):
            bucket, number, another = (data.draw(st.integers(0, limit - 1)) for limit in (BUCKETS, PLACES, PLACES))
            at, content = place_at(bucket, number), index.read_bytes()
            place, other = list(PLACE.unpack_from(content, at)), PLACE.unpack_from(content, place_at(bucket, another))
            place[0] = data.draw(st.sampled_from([place[0], 0, 1, 2]))
            place[3] = data.draw(st.sampled_from([place[3], other[3]]))
            place[4] = data.draw(st.sampled_from([place[4], other[4], *FAR]))
            place[5] = data.draw(st.sampled_from([place[5], other[5], *FAR]))
            overwrite(index, at, PLACE.pack(*place))
            high = BUCKET.unpack_from(content, 256 * bucket)[3 + data.draw(st.sampled_from([number, another]))]
            overwrite(index, 256 * bucket + 16 + 8 * number, struct.pack("<Q", high))
        assert_nothing_new(views + opened(path), ever)
        cell.close()


@given(st.lists(st.tuples(st.sampled_from([24, 32, 40, 48, 56, 64]), st.sampled_from(FARTHER)), min_size=1, max_size=3))
@settings(PATIENT, max_examples=150)
def test_a_forged_head_with_a_true_sum_leads_nowhere(changes):
    with folder() as path:
        cell, ever = filled(path)
        views = opened(path)
        head = bytearray((path / "head").read_bytes()[:80])
        for at, number in changes:
            head[at : at + 8] = struct.pack("<Q", number)
        overwrite(path / "head", 0, with_true_sum(bytes(head)))
        assert_nothing_new(views + opened(path), ever)
        cell.close()


def test_lengths_of_a_data_entry_with_a_true_sum_must_fit_the_index():
    with folder() as path:
        cell, _ = filled(path)
        index, data = (path / "index.1").read_bytes(), (path / "data").read_bytes()
        instance = HEAD.unpack_from((path / "head").read_bytes())[4]
        for bucket, number in product(range(BUCKETS), range(PLACES)):
            unit, size = PLACE.unpack_from(index, place_at(bucket, number))[4:6]
            if not size:
                continue
            header = list(DATA.unpack_from(data, unit * UNIT_BYTES))
            header[2] += 1
            forged = DATA.pack(*header) + data[unit * UNIT_BYTES + DATA.size : unit * UNIT_BYTES + size + 1]
            total = struct.pack("<I", entry_sum(instance, unit * UNIT_BYTES, forged))
            overwrite(path / "data", unit * UNIT_BYTES, total + forged[4:])
        view = CellView(path)
        assert view.get_many(KEYS, 0) == [None] * len(KEYS)
        assert view.stats()["unsettled"] + view.stats()["hints"] >= len(KEYS)
        cell.close()


def test_a_backend_that_stopped_in_a_change_hides_nothing():
    """Odd counters for ever: what is there is still read, and what is not there is not called a miss."""
    with folder() as path:
        cell = small_cell(path, buckets=2)
        for number, key in enumerate(KEYS[:3]):
            cell.set(key, key * 100, (1, 0, number))
        view, index = CellView(path), path / "index.1"
        for bucket in (0, 1):
            (counter, *_) = BUCKET.unpack_from(index.read_bytes(), 256 * bucket)
            overwrite(index, 256 * bucket, struct.pack("<I", counter + 1))
        for one in (view, CellView(path)):
            found = one.get_many(KEYS[:4], 0)
            assert found == [*((key * 100, (1, 0, number)) for number, key in enumerate(KEYS[:3])), None]
            assert one.stats()["hits"] == 3
            assert one.stats()["unsettled"] == 1
            assert one.stats()["misses"] == 0
            assert one.stats()["torn"] > 4
        head = (path / "head").read_bytes()
        overwrite(path / "head", 16, struct.pack("<Q", struct.unpack_from("<Q", head, 16)[0] + 1))
        assert CellView(path).get(KEYS[0], 0) == (KEYS[0] * 100, (1, 0, 0))
        cell.close()


def moves(path, content, buckets):
    """Every (from, to) by which a key could move to its other bucket, as places of an index file."""
    for bucket, number in product(range(buckets), range(PLACES)):
        if not PLACE.unpack_from(content, place_at(bucket, number))[5]:
            continue
        (first, second) = buckets_of(BUCKET.unpack_from(content, 256 * bucket)[3 + number], buckets)
        other = second if bucket == first else first
        empty = [at for at in range(PLACES) if not PLACE.unpack_from(content, place_at(other, at))[5]]
        if empty:
            yield (bucket, number), (other, empty[0])


def words_of_a_move(content, source, target):
    """The writes of one move, word by word, in the order of cell_index.c."""

    def change(bucket, number, high, place):
        (counter,) = struct.unpack_from("<I", content, 256 * bucket)
        yield 256 * bucket, struct.pack("<I", counter + 1)
        yield 256 * bucket + 16 + 8 * number, struct.pack("<Q", high)
        for word in range(0, PLACE.size, 8):
            yield place_at(bucket, number) + word, place[word : word + 8]
        yield 256 * bucket, struct.pack("<I", counter + 2)

    high = BUCKET.unpack_from(content, 256 * source[0])[3 + source[1]]
    place = content[place_at(*source) :][: PLACE.size]
    yield from change(*target, high, place)
    yield from change(*source, 0, bytes(PLACE.size))


def test_a_backend_killed_in_a_move_hides_no_key_and_makes_no_value():
    """Stop after every single word of a move: old and new views find the key that moves, and all the others."""
    with folder() as path:
        cell, ever = filled(path)
        index = path / "index.1"
        before = index.read_bytes()
        latest = {key: max(ever[key], key=lambda answer: answer[1]) for key in KEYS}
        todo = list(moves(path, before, BUCKETS))
        assert len(todo) >= 4
        for source, target in Random(1).sample(todo, 4):
            overwrite(index, 0, before)
            view = CellView(path)
            for at, word in words_of_a_move(before, source, target):
                overwrite(index, at, word)
                for one in (view, CellView(path)):
                    assert one.get_many(KEYS, 0) == [latest[key] for key in KEYS]
                    assert one.get(b"never set", 0) is None
        cell.close()


def test_a_bucket_of_another_configuration_is_not_decided():
    with folder() as path:
        cell = small_cell(path, buckets=1)
        cell.set(b"key", b"value", (1, 0, 0))
        view = CellView(path)
        overwrite(path / "index.1", 8, struct.pack("<Q", 77))
        assert view.get(b"key", 0) is None
        assert view.stats() == {"hits": 0, "misses": 0, "torn": 0, "remaps": 0, "hints": 0, "unsettled": 1}
        os.unlink(path / "head")
        try:
            view.get(b"key", 0)
        except FileNotFoundError as error:
            assert "head" in str(error)
        else:
            raise AssertionError("a cell without a head was read")
        cell.close()
