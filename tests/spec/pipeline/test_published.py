"""The account of what was published says of each range what a list of all ranges would say, in few words."""

import random

import pytest

from tailrace.model import MessageFile
from tailrace.pipeline.published import Stretch, add, decode, encode, has_all
from tailrace.pipeline.ranges import ByteRange

BORN = {"s": "one"}


def name(created: int, base: int) -> str:
    return MessageFile(created, base, "data").name


def ranges_of(bases: list[int], end: int, step: int, created: int = 1) -> list[ByteRange]:
    """A shard cut into pieces, each within a file."""
    found: list[ByteRange] = []
    for number, base in enumerate(bases):
        stop = bases[number + 1] if number + 1 < len(bases) else end
        file = name(created + number, base)
        found += [ByteRange("s", 0, file, begin, min(begin + step, stop)) for begin in range(base, stop, step)]
    return found


@pytest.mark.parametrize("seed", range(30))
def test_in_any_order_the_account_knows_exactly_what_was_published(seed: int) -> None:
    dice = random.Random(seed)
    pieces = ranges_of([0, 70, 100, 250], 300, dice.choice([7, 10, 33]))
    dice.shuffle(pieces)
    known: tuple[Stretch, ...] = ()
    for count, piece in enumerate(pieces):
        assert not has_all(known, [piece], BORN)
        known = decode(encode(add(known, [piece], BORN)))
        for place, other in enumerate(pieces):
            assert has_all(known, [other], BORN) == (place <= count)
    assert len(known) == 1
    files = [name(number + 1, base) for number, base in enumerate([0, 70, 100, 250])]
    (all_of_it,) = known
    assert sum(one.size for one in all_of_it.ranges(files)) == 300
    assert [(one.begin, one.end) for one in all_of_it.ranges(files)] == [(0, 70), (70, 100), (100, 250), (250, 300)]


def test_a_stream_that_was_made_anew_has_other_bytes_at_the_same_positions() -> None:
    old = ranges_of([0], 100, 100, created=1)
    first, second = ranges_of([0, 100], 200, 100, created=5)
    known = add(add((), old, BORN), [second], {"s": "two"})
    assert not has_all(known, [first], {"s": "two"})
    known = add(known, [first], {"s": "two"})
    assert has_all(known, [first, second], {"s": "two"})
    assert len(known) == 2


def test_a_text_that_is_no_account_is_refused() -> None:
    with pytest.raises(ValueError, match="no account"):
        decode('{"version": 99}')
