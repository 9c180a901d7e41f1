"""Random operations leave a cell, a view of it and the model alike."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.native.cell import SLAB_BYTES, CellView, Outcome, key_hash

from ..strategies import PATIENT
from . import model
from .places import folder, small_cell, weak_hash

KEYS = [b"", *(b"key %d" % number for number in range(11)), b"key 1\0", b"a longer key " * 20]
FULL = model.FULL
# Which bits of (low, high) are kept: all; one bucket; two; twins in one bucket; nothing but twins.
MASKS = [(FULL, FULL), (FULL, 0), (FULL, 1 << 63), (1, 0), (0, 0)]

keys = st.sampled_from(KEYS)
values = st.binary(max_size=40) | st.sampled_from([5_000, 70_000]).map(bytes)
versions = st.tuples(st.integers(0, 12), st.integers(0, 1), st.integers(0, 1))
times_s = st.integers(0, 4)
operations = st.lists(
    st.tuples(st.just("set"), keys, values, versions, times_s)
    | st.tuples(st.just("cas"), keys, values, versions, versions, times_s)
    | st.tuples(st.just("erase"), keys, versions)
    | st.tuples(st.just("collect"))
    | st.tuples(st.just("later")),
    max_size=60,
)


class Pair:
    """A cell and its model, given the same operations."""

    def __init__(self, path, masks, tombstones, **more):
        self.now_s = 0
        self.cell = small_cell(path, tombstones=tombstones, **more)
        self.model = model.Cell(tombstones, lambda key: model.key_hash(key, *masks))
        self.view = CellView(path)

    def apply(self, name, *arguments):
        if name == "later":
            self.now_s += 1
        elif name == "collect":
            before = self.cell.stats()
            gone = self.cell.collect(self.now_s, 1000)
            after = self.cell.stats()
            assert after["expired"] - before["expired"] == self.model.collect(self.now_s)
            assert gone == sum(after[kind] - before[kind] for kind in ("expired", "evicted_capacity"))
        elif name == "erase":
            assert self.cell.erase(*arguments) == self.model.erase(*arguments)
        else:
            ours = getattr(self.cell, name)(*arguments, now_s=self.now_s)
            assert ours == getattr(self.model, name)(*arguments, now_s=self.now_s)

    def let_evicted_go(self):
        """Whatever is missing was counted as evicted or expired; the model forgets it too."""
        there = {key for key, *_ in self.cell.items()}
        stats = self.cell.stats()
        gone = self.model.stored.keys() - there
        for key in gone:
            self.model.drop(key)
        return len(gone), stats["evicted_capacity"] + stats["evicted_associativity"] + stats["expired"]

    def check(self):
        stored = {key: (value, version, expiry) for key, value, version, expiry in self.cell.items()}
        assert stored == self.model.stored
        assert sorted(self.cell.hashes()) == sorted(
            (self.model.hash_of(key), version) for key, (_, version, _) in stored.items()
        )
        assert self.cell.stats()["records"] == len(stored)
        assert self.cell.summary_version == self.model.summary
        assert self.cell.stats()["tombstones"] == len(self.model.tombs)
        assert self.cell.tombstones() == list(self.model.tombs.items())
        assert [self.cell.floor(key) for key in KEYS] == [self.model.floor(key) for key in KEYS]
        found = self.view.get_many(KEYS, self.now_s)
        hints, room = self.view.hints, bytearray(80_000)
        for number, key in enumerate(KEYS):
            expected = self.model.get(key, self.now_s)
            assert self.cell.get(key, self.now_s) == expected
            assert found[number] == (None if number in hints else expected)
            size = self.view.get_into(key, room, self.now_s)
            assert (None if size is None else bytes(room[:size])) == (found[number][0] if found[number] else None)
        assert self.view.stats()["unsettled"] == 0
        assert not hints or self.cell.stats()["chained"]


@given(operations, st.sampled_from(MASKS), st.sampled_from([0, 1, 3, 100]), st.sampled_from([1, 4]))
@settings(PATIENT, max_examples=400)
def test_versions_tombstones_expiry_overflow_and_growth(todo, masks, tombstones, buckets):
    with weak_hash(*masks), folder() as path:
        pair = Pair(path, masks, tombstones, buckets=buckets)
        for operation in todo:
            pair.apply(*operation)
        assert pair.let_evicted_go() == (0, pair.cell.stats()["expired"])
        pair.check()


@given(
    operations, st.sampled_from(MASKS), st.booleans(), st.sampled_from(["lrm", "lru", "arc"]), st.sampled_from([1, 2])
)
@settings(PATIENT, max_examples=400)
def test_what_is_evicted_is_counted_and_the_rest_stays(todo, masks, chaining, policy, slabs):
    """So little room, or so few places, that keys must go: then nothing but those."""
    with weak_hash(*masks), folder() as path:
        pair = Pair(path, masks, 3, buckets=1, slabs=slabs, chaining=chaining, policy=policy)
        gone = 0
        for operation in todo:
            before = len(pair.model.stored)
            pair.apply(*operation)
            collected = before - len(pair.model.stored) if operation[0] == "collect" else 0
            lost, counted = pair.let_evicted_go()
            gone += lost + collected
            assert gone == counted
        pair.check()
        assert chaining or pair.cell.stats()["chained"] == 0


def test_hashes_are_two_xxh64():
    for length in range(100):
        key = bytes(range(length))
        assert key_hash(key) == model.key_hash(key)


def test_the_largest_entry_fills_a_slab():
    with folder() as path:
        cell = small_cell(path)
        assert cell.set(b"k", bytes(SLAB_BYTES - 39), (1, 0, 0)) == Outcome.TOO_LARGE
        assert cell.set(b"k", bytes(SLAB_BYTES - 40), (1, 0, 0)) == Outcome.APPLIED
        assert CellView(path).get(b"k", 0) == (bytes(SLAB_BYTES - 40), (1, 0, 0))


def test_many_keys_grow_the_index_under_a_view():
    with folder() as path:
        cell, view = small_cell(path, buckets=1), CellView(path)
        names = [b"name %d" % number for number in range(3000)]
        for number, name in enumerate(names, start=1):
            assert cell.set(name, name * 3, (number, 7, 0)) == Outcome.APPLIED
            if number % 500 == 0:
                assert view.get(names[0], 0) == (names[0] * 3, (1, 7, 0)) or view.hints == [0]
        found = view.get_many(names, 0)
        asked = cell.get_many([names[number] for number in view.hints], 0)
        for number, answer in zip(view.hints, asked, strict=True):
            found[number] = answer
        assert found == [(name * 3, (number, 7, 0)) for number, name in enumerate(names, start=1)]
        stats = cell.stats()
        assert stats["growths"] == stats["generation"] - 1 >= 8
        assert len(view.hints) <= stats["chained"] <= 3
        assert 6 * stats["buckets"] * 0.75 <= stats["records"] <= 6 * stats["buckets"] * 0.94
        assert 1 <= view.stats()["remaps"] <= stats["growths"]
        assert [file.name for file in path.glob("index.*")] == [f"index.{stats['generation']}"]


def test_bulk_calls_do_what_single_ones_do():
    with folder() as path:
        cell = small_cell(path)
        assert cell.set_many([(b"a", b"1", (1, 0, 0), 0), (b"b", b"2", (1, 0, 1), 9), (b"a", b"0", (1, 0, 0), 0)]) == [
            Outcome.APPLIED,
            Outcome.APPLIED,
            Outcome.STALE,
        ]
        assert cell.cas_many(
            [
                (b"a", b"3", (1, 0, 0), (2, 0, 0), 0),
                (b"b", b"4", (1, 0, 0), (2, 0, 0), 0),
                (b"c", b"5", (0, 0, 0), (2, 0, 1), 0),
            ]
        ) == [Outcome.APPLIED, Outcome.MISMATCH, Outcome.APPLIED]
        assert cell.erase_many([(b"b", (3, 0, 0)), (b"a", (1, 9, 9))]) == [Outcome.APPLIED, Outcome.STALE]
        assert cell.get_many([b"a", b"b", b"c"], 5) == [(b"3", (2, 0, 0)), None, (b"5", (2, 0, 1))]
