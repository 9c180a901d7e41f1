"""Copies in the cache: chunks come in any order, lengths cover only what is there, of two writers the older stops."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from tailrace.copytree.cache_lock import SEIZE_S, CacheLock, Go, Stop, Wait, Write
from tailrace.copytree.chunk_writes import ChunkWrites, IndexNeeds, WriteChunks


@st.composite
def deliveries(draw: st.DrawFn) -> tuple[bytes, int, int, list[tuple[int, bytes]]]:
    """A file, a chunk size, where its copy begins, and its bytes from there in pieces, shuffled and some twice."""
    chunk_bytes = draw(st.integers(1, 9))
    content = bytes(draw(st.lists(st.integers(0, 255), max_size=60)))
    start = draw(st.integers(0, len(content) // chunk_bytes)) * chunk_bytes
    cuts = sorted({start, len(content), *draw(st.lists(st.integers(start, len(content)), max_size=8))})
    pieces = [(a, content[a:b]) for a, b in itertools.pairwise(cuts)]
    again = draw(st.lists(st.sampled_from(pieces), max_size=3)) if pieces else []
    return content, chunk_bytes, start, draw(st.permutations([*pieces, *again]))


@given(deliveries(), st.data())
def test_the_length_covers_only_what_was_written_whatever_the_order(
    delivery: tuple[bytes, int, int, list[tuple[int, bytes]]], data: st.DataObject
) -> None:
    content, chunk_bytes, start, pieces = delivery
    writes, cache = ChunkWrites(chunk_bytes, start), dict[int, bytes]()
    under_way: list[WriteChunks] = []

    def finish(order: WriteChunks) -> None:
        under_way.remove(order)
        cache.update((number, bytes(chunk)) for number, chunk in order.chunks(chunk_bytes))
        writes.written(order)

    def busy() -> set[int]:
        return {number for order in under_way for number, _ in order.chunks(chunk_bytes)}

    def check() -> None:
        assert start <= writes.length <= len(content)
        for number in range(start // chunk_bytes, -(-writes.length // chunk_bytes)):
            covered = min(chunk_bytes, writes.length - number * chunk_bytes)
            assert cache[number][:covered] == content[number * chunk_bytes :][:covered]

    for offset, piece in pieces:
        writes.receive(offset, piece)
        for order in writes.due():
            for number, chunk in order.chunks(chunk_bytes):
                assert number not in busy()  # one write of a chunk at a time
                assert 0 < len(chunk) <= chunk_bytes
                assert content[number * chunk_bytes :].startswith(bytes(chunk))  # always from its start
                assert len(chunk) > len(cache.get(number, b""))  # and never shorter than before
            under_way.append(order)
        for order in data.draw(st.lists(st.sampled_from(under_way), unique_by=id)) if under_way else []:
            if data.draw(st.booleans()):
                finish(order)
            else:
                under_way.remove(order)
                writes.failed(order)
        check()
    for _ in range(3):
        for order in tuple(under_way):
            finish(order)
        under_way += writes.due()
        check()
    assert writes.length == len(content)


def test_the_example_of_two_writes() -> None:
    """The first is short, the second large and early: its first chunk waits for the other, the rest does not."""
    writes = ChunkWrites(10)
    writes.receive(0, b"aaa")
    (first,) = writes.due()
    writes.written(first)
    assert writes.length == 3
    writes.receive(6, b"c" * 29)  # W2: the rest of chunk 0, 1 and 2, a part of 3
    orders = writes.due()
    assert [number for order in orders for number, _ in order.chunks(10)] == [1, 2, 3]
    for order in orders:
        writes.written(order)
    assert writes.length == 3
    writes.receive(3, b"bbb")  # W1
    (late,) = writes.due()
    assert (late.first, late.content) == (0, b"aaabbbcccc")
    writes.written(late)
    assert writes.length == 35


def test_a_copy_that_jumps_leaves_a_gap_and_goes_on() -> None:
    writes = ChunkWrites(10)
    writes.receive(0, b"x" * 15)
    for order in writes.due():
        writes.written(order)
    writes.receive(45, b"y" * 5)
    writes.jump(40)
    assert writes.length == 40
    writes.receive(40, b"y" * 5)
    (order,) = writes.due()
    writes.written(order)
    assert writes.length == 50


def test_a_copy_that_jumps_into_a_run_keeps_the_rest_of_it() -> None:
    writes = ChunkWrites(10)
    writes.receive(10, b"x" * 40)
    (run,) = writes.due()
    writes.jump(30)
    assert writes.length == 30
    writes.written(run)
    assert writes.length == 50
    writes.receive(50, b"y" * 20)
    (passed,) = writes.due()
    writes.jump(80)
    writes.written(passed)
    assert writes.length == 80


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=8), st.data())
def test_the_index_is_told_only_with_its_data(steps: list[tuple[int, int]], data: st.DataObject) -> None:
    """Each look brings some data and some entries that speak of them; pieces arrive in any order."""
    index_end = data_end = 0
    pieces: list[tuple[str, int, int, int]] = []
    needed_at = [0]  # by byte of the index: how far the data must be
    for index_bytes, data_bytes in steps:
        data_end += data_bytes
        pieces.append(("data", data_end - data_bytes, data_bytes, 0))
        pieces.append(("index", index_end, index_bytes, data_end))
        needed_at += [data_end] * index_bytes
        index_end += index_bytes
    tracks, needs, told = {"data": ChunkWrites(4), "index": ChunkWrites(4)}, IndexNeeds(), 0
    for track, offset, size, needed in data.draw(st.permutations(pieces)):
        tracks[track].receive(offset, b"x" * size)
        if track == "index":
            needs.add(offset, needed)
        for writes in tracks.values():
            for order in writes.due():
                writes.written(order)
        told = max(told, needs.covered(tracks["index"].length, tracks["data"].length))
        assert needed_at[told] <= tracks["data"].length
    assert told == index_end


OLD, NEW = b"o" * 16, b"n" * 16


class Locks:
    """What the cache holds, and two writers that look at it."""

    def __init__(self) -> None:
        self.raw: bytes | None = None
        self.now_s = 0.0

    def look(self, lock: CacheLock) -> object:
        act = lock.seen(self.raw, self.now_s)
        if isinstance(act, Write):
            self.raw = act.value
        return act

    def take(self, lock: CacheLock) -> None:
        while not isinstance(self.look(lock), Go):
            self.now_s += 0.02


def test_a_newcomer_poisons_the_lock_and_the_holder_stops_and_releases() -> None:
    locks, old, new = Locks(), CacheLock(OLD), CacheLock(NEW)
    locks.take(old)
    assert isinstance(locks.look(new), Write)
    assert isinstance(locks.look(new), Wait)
    assert isinstance(locks.look(old), Stop)
    left = old.release(locks.raw)
    assert left is not None
    locks.raw = left.value
    locks.take(new)
    assert locks.now_s < 0.1


def test_the_lock_of_a_dead_holder_is_taken_after_a_short_wait() -> None:
    locks, old, new = Locks(), CacheLock(OLD), CacheLock(NEW)
    locks.take(old)
    locks.take(new)
    assert SEIZE_S <= locks.now_s < SEIZE_S + 0.1
    assert isinstance(locks.look(old), Stop)
    assert old.release(locks.raw) is None


def test_a_lock_that_was_lost_with_the_cache_is_taken_again() -> None:
    locks, old = Locks(), CacheLock(OLD)
    locks.take(old)
    locks.raw = None
    assert isinstance(locks.look(old), Write)
    assert isinstance(locks.look(old), Go)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 0.3)), max_size=60))
def test_whoever_looks_when_in_the_end_one_holds_it(steps: list[tuple[int, float]]) -> None:
    locks = Locks()
    writers = {number: CacheLock(bytes([number]) * 16) for number in range(4)}
    held: set[int] = set()
    for number, pause_s in steps:
        if number not in writers:
            continue
        match locks.look(writers[number]):
            case Go():
                held.add(number)
            case Stop():
                held.discard(number)
                del writers[number]
        locks.now_s += pause_s
    last = CacheLock(b"last" * 4)
    locks.take(last)
    for number in held:
        assert isinstance(locks.look(writers[number]), Stop)
