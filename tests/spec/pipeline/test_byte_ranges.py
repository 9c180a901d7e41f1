"""Byte ranges against a dumb model: sets of bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.ranges import ByteRange, decode, encode, identity, merge, overlap, subtract, total

FILES = ["00000000000000000001-00000000000000000000.data", "00000000000000000002-00000000000000000050.data"]
ranges = st.builds(
    lambda shard, file, begin, size: ByteRange("s", shard, FILES[file], begin, begin + size),
    st.integers(0, 1),
    st.integers(0, 1),
    st.integers(0, 40),
    st.integers(1, 20),
)


def bytes_of(found: list[ByteRange]) -> set[tuple[int, str, int]]:
    return {(one.shard, one.file, at) for one in found for at in range(one.begin, one.end)}


@given(st.lists(ranges, max_size=12))
def test_merging_keeps_every_byte_and_leaves_no_two_neighbours(found: list[ByteRange]) -> None:
    merged = merge(found)
    assert bytes_of(merged) == bytes_of(found)
    assert total(merged) == len(bytes_of(found))
    for one in merged:
        assert not any(other.place == one.place and other.begin == one.end for other in merged)


@given(st.lists(ranges, max_size=8), st.lists(ranges, max_size=8))
def test_what_is_left_is_what_was_not_taken(found: list[ByteRange], taken: list[ByteRange]) -> None:
    assert bytes_of(subtract(found, taken)) == bytes_of(found) - bytes_of(taken)


@given(st.lists(ranges, min_size=1, max_size=6))
def test_overlaps_are_found(found: list[ByteRange]) -> None:
    twice = overlap(found)
    assert (twice is not None) == (total(found) != len(bytes_of(found)))


@given(st.lists(ranges, min_size=1, max_size=6, unique=True), st.randoms())
def test_a_unit_is_named_by_its_bytes(found: list[ByteRange], dice: object) -> None:
    assert identity(found) == identity(list(reversed(found)))
    assert decode(encode(found)) == tuple(found)
    if len(found) > 1:
        assert identity(found) != identity(found[1:])
