"""A unit that fails is tried again, then divided until the bad bytes stand alone; the rest is always done."""

from collections.abc import Callable
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace.pipeline.failure import Failure, Patience, aftermath, revived
from tailrace.pipeline.ranges import ByteRange, overlap, subtract, total
from tailrace.pipeline.unit import Unit

FILE = "00000000000000000001-00000000000000000000.data"
PATIENCE = Patience(attempts_max=3, bad_ranges_max=100, pause_us=10, pause_max_us=50)


def unit(*sizes: int) -> Unit:
    ranges = tuple(ByteRange("s", shard, FILE, 100, 100 + size) for shard, size in enumerate(sizes))
    return Unit(ranges, 0, 0, "us")


def middle(one: ByteRange) -> int | None:
    """Every byte is a message."""
    return (one.begin + one.end) // 2 if one.size > 1 else None


def test_it_is_tried_again_first_with_growing_pauses() -> None:
    one = unit(10)
    pauses = []
    for _ in range(2):
        after = aftermath(one, Failure("boom"), PATIENCE, 0, middle, now_us=0)
        (one,) = after.units
        pauses.append(one.not_before_us)
    assert pauses == [10, 20]
    assert (one.failures, one.reason, after.bad) == (2, "boom", ())
    assert len(aftermath(one, Failure("boom"), PATIENCE, 0, middle, 0).units) == 2


def test_bytes_that_are_certainly_bad_are_given_up_at_once_and_named() -> None:
    bad = ByteRange("s", 0, FILE, 104, 106)
    after = aftermath(unit(10), Failure("checksum", (bad,), certain=True), PATIENCE, 0, middle, 0)
    assert [one.range for one in after.bad] == [bad]
    (rest,) = after.units
    assert rest.ranges == (ByteRange("s", 0, FILE, 100, 104), ByteRange("s", 0, FILE, 106, 110))


def test_nothing_is_given_up_when_everything_fails_or_too_much_is_bad() -> None:
    one = replace(unit(1), failures=5)
    assert aftermath(one, Failure("x", everywhere=True), PATIENCE, 0, middle, 0).bad == ()
    full = aftermath(one, Failure("x"), PATIENCE, 100, middle, 0)
    assert full.bad == ()
    assert "look at the cause" in full.units[0].reason


def test_a_unit_whose_output_may_have_been_seen_is_never_divided() -> None:
    whole = replace(unit(10, 10), whole=True, failures=9)
    assert [one.ranges for one in aftermath(whole, Failure("x"), PATIENCE, 0, middle, 0).units] == [whole.ranges]


@given(st.lists(st.integers(1, 40), min_size=1, max_size=4), st.data(), st.booleans())
def test_one_bad_message_is_found_and_all_else_is_done(sizes: list[int], data: st.DataObject, tells: bool) -> None:
    """Whether the worker can say where it failed, or dies of it and cannot."""
    start = unit(*sizes)
    shard = data.draw(st.integers(0, len(sizes) - 1))
    at = data.draw(st.integers(100, 99 + sizes[shard]))
    poison = ByteRange("s", shard, FILE, at, at + 1)

    def run(one: Unit) -> Failure | None:
        if all(subtract([poison], [r]) for r in one.ranges):
            return None
        return Failure("poison", (poison,) if tells else ())

    done, bad, tries = settle(start, run)
    assert list(bad) == [poison]
    assert overlap([*done, *bad]) is None
    assert total(done) + total(bad) == start.size
    assert tries <= 3 + 2 * (len(sizes) + 8)


def settle(start: Unit, run: Callable[[Unit], Failure | None]) -> tuple[list[ByteRange], list[ByteRange], int]:
    waiting, done, bad, tries = [start], list[ByteRange](), list[ByteRange](), 0
    while waiting:
        tries += 1
        one = waiting.pop()
        failure = run(one)
        if failure is None:
            done += one.ranges
            continue
        after = aftermath(one, failure, PATIENCE, len(bad), middle, 0)
        assert total(r for u in after.units for r in u.ranges) + total(b.range for b in after.bad) == one.size
        waiting += after.units
        bad += [one.range for one in after.bad]
    return done, bad, tries


def test_a_bad_range_can_be_tried_again_once_its_cause_is_mended() -> None:
    after = aftermath(unit(1), Failure("x", certain=True), PATIENCE, 0, middle, 0)
    back = revived(after.bad[0], "eu", 7)
    assert (back.ranges, back.failures, back.site) == (unit(1).ranges, 0, "eu")
