"""Byte ranges of shards in memory: ranges that follow each other hand out every message once, wherever they are cut."""

import random
from itertools import pairwise

import pytest

from tailrace.errors import FileProblem, PositionRetired
from tailrace.native import Message
from tailrace.streams import arrow_schema, cut_positions, file_ranges, find_position, read_arrow, read_range
from tailrace.testing import ManualClock, SimulatedDisk
from worlds import STREAM, SimulatedWorld, small_config


def a_world(seed: int, *, producers: int = 3) -> SimulatedWorld:
    """A shard of several files of random messages, of which some producers were not closed."""
    choose = random.Random(seed)
    clock = ManualClock()
    world = SimulatedWorld(SimulatedDisk(), clock, small_config(file_bytes=choose.choice([60, 200, 1000])), seed)
    for _ in range(producers):
        producer = world.producer()
        for number in range(choose.randrange(40)):
            clock.advance(0.001)
            key = None if choose.random() < 0.3 else bytes([choose.randrange(4)]) * choose.randrange(6)
            value = None if key is not None and choose.random() < 0.2 else b"x" * choose.choice([0, 1, 5, 30, 90])
            producer.send(value, key)
            if number % 5 == 0:
                producer.flush()
        producer.flush()
        if choose.random() < 0.5:
            producer.close()
    return world


def read(world: SimulatedWorld, begin: int, end: int, batch_bytes: int = 100) -> list[Message]:
    batches = read_range(world.files, world.clock, STREAM, 0, begin, end, batch_bytes=batch_bytes)
    return [message for batch in batches for message in batch]


def test_a_range_has_the_messages_that_begin_in_it() -> None:
    world = a_world(7)
    messages = world.read()
    for one in messages:
        assert read(world, one.position, one.position + 1) == [one], "its first byte is all it takes"
        assert one not in read(world, one.position + 1, messages[-1].position + 1)


@pytest.mark.parametrize("seed", range(30))
def test_ranges_that_follow_each_other_have_every_message_once_wherever_they_are_cut(seed: int) -> None:
    world, choose = a_world(seed), random.Random(seed)
    messages = world.read()
    end = find_position(world.files, world.clock, STREAM, 0, "latest")
    cuts = sorted({0, end, *(choose.randrange(end + 1) for _ in range(choose.randrange(20)))})
    found = [one for a, b in pairwise(cuts) for one in read(world, a, b, choose.choice([1, 64, 1 << 20]))]
    assert found == messages


@pytest.mark.parametrize("seed", range(30))
def test_cuts_lie_between_messages_and_pieces_are_of_the_size_that_was_asked(seed: int) -> None:
    world = a_world(seed)
    messages = world.read()
    end = find_position(world.files, world.clock, STREAM, 0, "latest")
    starts = {one.position for one in messages}
    for size in (1, 50, 170, 1 << 20):
        cuts = cut_positions(world.files, STREAM, 0, 0, end, size)
        assert cuts == sorted(set(cuts))
        assert set(cuts) <= starts - {0}
        for a, b in pairwise([0, *cuts, end]):
            assert b - a <= size or not starts & set(range(a + 1, b)), "longer than asked only for a single message"
            following = [one for one in starts if b < one <= a + size]
            assert not following, "and not shorter than it could be"


@pytest.mark.parametrize("seed", range(10))
def test_files_follow_each_other_and_hold_all_messages(seed: int) -> None:
    world = a_world(seed)
    messages, ranges = world.read(), file_ranges(world.files, STREAM, 0)
    assert ranges[0].begin == messages[0].position
    assert ranges[-1].end == find_position(world.files, world.clock, STREAM, 0, "latest")
    assert all(a.end == b.begin and a.created_us < b.created_us for a, b in pairwise(ranges))
    assert [one.newest for one in ranges[:-1]] == [False] * (len(ranges) - 1)
    assert [message for one in ranges for message in read(world, one.begin, one.end)] == messages


def test_arrow_batches_have_the_columns_of_a_stream() -> None:
    world = a_world(1)
    end = find_position(world.files, world.clock, STREAM, 0, "latest")
    batches = list(read_arrow(world.files, world.clock, STREAM, 0, 0, end, batch_bytes=500))
    assert len(batches) > 2
    assert all(batch.schema.equals(arrow_schema()) for batch in batches)
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["key"], row["value"], row["position"]) for row in rows] == [
        (one.key, one.value, one.position) for one in world.read()
    ]


def test_a_range_that_is_not_there_yet_is_an_error_and_not_silently_short() -> None:
    world = a_world(2)
    end = find_position(world.files, world.clock, STREAM, 0, "latest")
    with pytest.raises(FileProblem, match=f"ends at {end} here, before {end + 10}"):
        read(world, 0, end + 10)
    assert read(world, end, end) == []


def test_a_range_that_retention_took_is_an_error() -> None:
    world = a_world(3)
    first = file_ranges(world.files, STREAM, 0)[0]
    for name in (
        name for name in world.files.list(f"streams/{STREAM}/00000") if name.startswith(f"{first.created_us:020d}")
    ):
        world.files.delete(f"streams/{STREAM}/00000/{name}")
    with pytest.raises(PositionRetired):
        read(world, 0, first.end)


def test_a_shard_without_messages_has_no_files_and_no_cuts() -> None:
    world = SimulatedWorld(SimulatedDisk(), ManualClock(), small_config())
    assert file_ranges(world.files, STREAM, 0) == []
    assert cut_positions(world.files, STREAM, 0, 0, 1000, 10) == []
    world.producer()
    assert file_ranges(world.files, STREAM, 0) == []
