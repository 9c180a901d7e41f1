"""What is evicted first, how much memory entries take, and that it is given back."""

import os

import pytest

from tailrace.native.cell import SLAB_BYTES, Cell, CellView, Outcome, key_hash

from .places import data_memory_bytes, folder, small_cell, weak_hash


def fill(cell, count, size, first=1):
    for number in range(first, first + count):
        assert cell.set(b"key %05d" % number, bytes(size), (number, 0, 0)) == Outcome.APPLIED


def numbers_in(cell):
    return sorted(int(key[4:]) for key, *_ in cell.items())


@pytest.mark.parametrize("policy", ["lrm", "lru"])
def test_the_least_recent_goes_first_and_four_fifths_stay(policy):
    with folder() as path:
        cell = small_cell(path, slabs=4, policy=policy, buckets=512)
        fill(cell, 100, 4000)
        cell.touch([key_hash(b"key 00001"), key_hash(b"gone")])
        cell.set(b"key 00002", bytes(4000), (1000, 0, 0))
        fill(cell, 200, 4000, first=101)
        kept = numbers_in(cell)
        room = 64 * 64  # what such an entry takes
        assert 0.75 * 4 * SLAB_BYTES < len(kept) * room <= 0.8 * 4 * SLAB_BYTES
        newest = [number for number in kept if number > 100]
        assert newest == list(range(301 - len(newest), 301))
        assert kept[: -len(newest)] == ([1, 2, 99, 100] if policy == "lru" else [2, 98, 99, 100])
        assert cell.stats()["evicted_capacity"] == 300 - len(kept)
        assert cell.stats()["touched"] == (policy == "lru")


def test_used_keys_outlive_others_only_if_use_counts():
    for policy, survives in (("lru", True), ("lrm", False)):
        with folder() as path:
            cell = small_cell(path, slabs=4, policy=policy, buckets=512)
            fill(cell, 190, 4000)
            cell.touch([key_hash(b"key 00001")])
            assert cell.get(b"key 00002", 0) is not None
            fill(cell, 50, 4000, first=191)
            assert [number in numbers_in(cell) for number in (1, 2, 3)] == [survives, survives, False]


def test_without_chains_a_full_bucket_drops_its_least_recent():
    with weak_hash(high_mask=0), folder() as path:
        cell = small_cell(path, buckets=100, chaining=False)
        fill(cell, 12, 10)  # all that two buckets hold
        cell.set(b"key 00001", b"again", (19, 0, 0))
        fill(cell, 1, 10, first=13)
        assert numbers_in(cell) == [1, *range(3, 14)]
        assert cell.stats()["evicted_associativity"] == 1
        assert cell.summary_version == (2, 0, 0)
        view = CellView(path)
        assert view.get(b"key 00002", 0) is None
        assert view.hints == []


def test_with_chains_the_backend_answers_and_a_free_place_is_taken_again():
    with weak_hash(high_mask=0), folder() as path:
        cell, view = small_cell(path, buckets=100), CellView(path)
        fill(cell, 14, 10)
        assert cell.stats()["chained"] == 2
        assert view.get_many([b"key 00013", b"key 00001", b"other"], 0)[0] is None
        assert view.hints == [0, 2]
        assert cell.get(b"key 00013", 0) == (bytes(10), (13, 0, 0))
        cell.erase_many([(b"key 00001", (19, 0, 0)), (b"key 00012", (19, 0, 0))])  # one of either bucket
        assert cell.stats()["chained"] == 0
        assert view.get_many([b"key 00013", b"key 00014", b"other"], 0) == [
            (bytes(10), (13, 0, 0)),
            (bytes(10), (14, 0, 0)),
            None,
        ]
        assert view.hints == []


def overhead_of(path, cell, content_bytes):
    """By part, as shares of the content. What stats say of the files is what the file system says."""
    stats = cell.stats()
    assert stats["populated_bytes"] == data_memory_bytes(path)
    assert stats["index_bytes"] == os.stat(path / f"index.{stats['generation']}").st_blocks * 512
    parts = {
        "data": stats["populated_bytes"] - content_bytes,
        "index": stats["index_bytes"],
        "heap": stats["heap_bytes"],
    }
    return {name: size / content_bytes for name, size in parts.items()}


@pytest.mark.parametrize("policy", ["lrm", "lru", "arc"])
def test_a_chunk_takes_three_percent_more_than_its_bytes(policy):
    """Everything counts: headers, rounding, the ends of slabs, the index at its load, and the heap's bookkeeping; right
    before the index grows, when it is fullest, and right after, when it is emptiest."""
    with folder() as path:
        cell = Cell(path, reserve_bytes=1 << 30, capacity_bytes=1 << 29, buckets=16, policy=policy)
        key_bytes, value, seen = 24, bytes(4096), []
        growths = before = None
        for number in range(25_000):
            stats = cell.stats()
            if number > 15_000 and number % 63 == 0:  # no slab is half full
                before = (overhead_of(path, cell, number * (key_bytes + len(value))), stats)
            assert cell.set(b"%024d" % number, value, (1 + number, 0, 0)) == Outcome.APPLIED
            if number > 20_000 and growths is not None and cell.stats()["growths"] > growths:
                last_slab = 63 * (1 + number // 63) * (key_bytes + len(value))
                seen = [before[0], overhead_of(path, cell, last_slab)]
                break
            growths = cell.stats()["growths"]
        assert before[1]["records"] > 0.935 * 6 * before[1]["buckets"], "seen right before it grew"
        assert cell.stats()["records"] < 0.79 * 6 * cell.stats()["buckets"], "and right after"
        assert cell.stats()["chained"] == 0
        print(*({name: f"{share:.2%}" for name, share in parts.items()} for parts in seen))
        assert max(sum(parts.values()) for parts in seen) <= 0.03


def test_slots_waste_little_at_any_size():
    with folder() as path:
        cell = small_cell(path, slabs=64)
        for size in range(1, 20_000, 331):
            cell.set(b"key", bytes(size), (size, 0, 0))
            needed = (32 + 8 + size + 63) // 64 * 64
            assert needed <= cell.stats()["used_bytes"] <= needed * (1 if needed <= 8192 else 1.016)


def test_memory_shrinks_after_erase_and_after_expiry():
    with folder() as path:
        cell = small_cell(path, slabs=64, buckets=4096)
        fill(cell, 1000, 8000)
        for number in range(1000):
            cell.set(b"brief %d" % number, bytes(3000), (1, 0, 0), expiry_s=5, now_s=1)
        full = data_memory_bytes(path)
        assert full == cell.stats()["populated_bytes"] > 11_000_000
        cell.erase_many([(b"key %05d" % number, (2000, 0, 0)) for number in range(1, 1001)])
        assert data_memory_bytes(path) <= full - 8_000_000 + 4 * SLAB_BYTES  # so many empty ones are kept at hand
        assert cell.collect(5, 10_000) == 1000
        assert data_memory_bytes(path) == cell.stats()["populated_bytes"] == 4 * SLAB_BYTES
        assert cell.stats()["used_bytes"] == cell.stats()["records"] == 0


def test_memory_that_is_joined_is_the_same_memory_with_the_same_content():
    """Eight slabs side by side become one huge page under the eyes of a view; when one goes, so does the page."""
    with folder() as path:
        cell = small_cell(path, slabs=64, buckets=4096)
        view = CellView(path)
        fill(cell, 1000, 8000)
        keys = [b"key %05d" % number for number in range(1, 1001)]
        before, memory = view.get_many(keys, 0), data_memory_bytes(path)
        assert None not in before
        groups = memory // (8 * SLAB_BYTES)
        assert cell.join(1) in (0, 1)
        if not cell.stats()["joined_bytes"]:
            pytest.skip("this system makes no huge pages of shared memory")
        assert cell.stats()["joined_bytes"] == 8 * SLAB_BYTES
        assert cell.join(100) == groups - 1
        assert cell.stats()["joined_bytes"] == groups * 8 * SLAB_BYTES
        assert cell.join(100) == 0, "each is joined once"
        assert view.get_many(keys, 0) == CellView(path).get_many(keys, 0) == before
        assert data_memory_bytes(path) == cell.stats()["populated_bytes"] == memory
        cell.erase_many([(key, (2000, 0, 0)) for key in keys[: len(keys) // 2]])
        assert 0 < cell.stats()["joined_bytes"] < groups * 8 * SLAB_BYTES
        assert data_memory_bytes(path) == cell.stats()["populated_bytes"] < memory
        assert view.get_many(keys[len(keys) // 2 :], 0) == before[len(keys) // 2 :]
        for number, key in enumerate(keys):
            cell.set(key, bytes(8000), (3000 + number, 0, 0))
        cell.join(100)
        assert cell.stats()["joined_bytes"] == groups * 8 * SLAB_BYTES, "and again when it has memory again"
        assert data_memory_bytes(path) == cell.stats()["populated_bytes"]


def test_emptied_slabs_change_class():
    with folder() as path:
        cell = small_cell(path, slabs=4, buckets=64)
        version = 0
        for size in (4000, 30_000, 100, 250_000, 4000):
            for number in range(40):
                version += 1
                assert cell.set(b"key %05d" % number, bytes(size), (version, 0, 0)) == Outcome.APPLIED
                assert cell.get(b"key %05d" % number, 0) == (bytes(size), (version, 0, 0))
        assert data_memory_bytes(path) <= 4 * SLAB_BYTES


def test_collecting_keeps_to_its_budget():
    with folder() as path:
        cell = small_cell(path)
        for number in range(10):
            cell.set(b"brief %d" % number, b"", (1, 0, 0), expiry_s=5)
        assert [cell.collect(4, 100), cell.collect(5, 4), cell.collect(5, 4), cell.collect(5, 4)] == [0, 4, 4, 2]


def test_another_configuration_is_noticed():
    with folder() as path:
        cell = small_cell(path, config_id=1)
        cell.set(b"key", b"value", (1, 0, 0))
        open_to_any, strict = CellView(path), CellView(path, config_id=1)
        assert strict.get(b"key", 0) == (b"value", (1, 0, 0))
        cell.configure(2)
        assert open_to_any.get(b"key", 0) == (b"value", (1, 0, 0))
        assert (open_to_any.config_id, open_to_any.stats()["remaps"]) == (2, 1)
        for _ in range(2):
            with pytest.raises(ValueError, match="has configuration 2, not 1"):
                strict.get(b"key", 0)
        with pytest.raises(ValueError, match="has configuration 2, not 1"):
            CellView(path, config_id=1)


def test_a_buffer_that_is_too_small_is_refused():
    with folder() as path:
        cell = small_cell(path)
        cell.set(b"key", b"value", (1, 0, 0))
        view = CellView(path)
        with pytest.raises(ValueError, match="5 bytes into 4"):
            view.get_into(b"key", bytearray(4), 0)
        with pytest.raises(BufferError):
            view.get_into(b"key", b"read-only", 0)
        room = bytearray(5)
        assert view.get_into(b"key", room, 0) == 5
        assert room == b"value"
