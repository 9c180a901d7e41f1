"""Who may take a unit, and when: the local ETA, the site ETA, outages, locality."""

from dataclasses import replace

from tailrace.pipeline.assignment import Etas, Health, choose, may_take
from tailrace.pipeline.ranges import ByteRange
from tailrace.pipeline.unit import Holder, Unit, committed, handed_out, reassigned, rolled_back

FILE = "00000000000000000001-00000000000000000000.data"
ETAS = Etas(local_us=10, site_us=100)
ALL_UP = Health({"us": 1.0, "eu": 1.0}, frozenset({"us-1", "us-2", "eu-1"}))
US, US_2, EU = Holder("us", "us-1"), Holder("us", "us-2"), Holder("eu", "eu-1")


def unit(begin: int = 0, oldest_us: int = 0, site: str = "us") -> Unit:
    return Unit((ByteRange("s", 0, FILE, begin, begin + 10),), oldest_us, 0, site)


def test_a_unit_that_was_handed_out_is_hidden_for_the_local_eta() -> None:
    held = handed_out(unit(), US, now_us=0)
    assert not may_take(held, US_2, 9, ALL_UP, ETAS)
    assert may_take(held, US_2, 10, ALL_UP, ETAS)
    assert not may_take(held, EU, 99, ALL_UP, ETAS)
    assert may_take(held, EU, 100, ALL_UP, ETAS)


def test_who_asks_for_a_unit_that_it_has_never_heard_that_it_got_it() -> None:
    held = handed_out(unit(), US, now_us=0)
    assert may_take(held, US, 1, ALL_UP, ETAS)
    assert choose([held], US, 1, ALL_UP, ETAS, units_max=1, has=lambda unit: False) == [], "unless it is at it"


def test_taking_over_within_a_site_does_not_restart_the_site_eta() -> None:
    again = handed_out(handed_out(unit(), US, 0), US_2, 50)
    assert may_take(again, EU, 100, ALL_UP, ETAS)
    elsewhere = handed_out(again, EU, 100)
    assert not may_take(elsewhere, US, 150, ALL_UP, ETAS)


def test_the_work_of_a_dead_runner_is_free_at_once_for_its_site() -> None:
    held = handed_out(unit(), US, 0)
    assert may_take(held, US_2, 1, replace(ALL_UP, runners=frozenset({"us-2", "eu-1"})), ETAS)


def test_the_work_of_a_site_that_is_out_is_free_at_once_for_all() -> None:
    held = handed_out(unit(), US, 0)
    assert may_take(held, EU, 1, replace(ALL_UP, out=frozenset({"us"})), ETAS)
    assert may_take(held, EU, 1, Health({"eu": 1.0}, frozenset({"eu-1"})), ETAS)
    assert not may_take(held, US_2, 50, replace(ALL_UP, out=frozenset({"us"})), ETAS), "and gets no more"


def test_a_unit_that_nobody_began_is_taken_over_after_the_local_eta() -> None:
    assert may_take(unit(), US, 0, ALL_UP, ETAS)
    assert not may_take(unit(), EU, 9, ALL_UP, ETAS)
    assert may_take(unit(), EU, 10, ALL_UP, ETAS)


def test_a_unit_that_waits_for_its_site_goes_to_any_that_has_time() -> None:
    """The site that sees new bytes first gets them, so without help from the others it would do all the work."""
    etas = Etas(local_us=10, site_us=100, open_us=3)
    near = replace(unit(), nearby=("us",))
    for waits in (unit(), near):
        assert not may_take(waits, EU, 2, ALL_UP, etas), "its own site may be about to take it"
        assert may_take(waits, EU, 3, ALL_UP, etas)
        assert choose([waits], EU, 3, ALL_UP, etas, units_max=1, has=lambda one: False) == [], "but not without bytes"
    begun = handed_out(near, US, now_us=0)
    assert not may_take(begun, EU, 99, ALL_UP, etas), "once it is begun, only the site ETA counts"
    assert may_take(unit(), EU, 10, ALL_UP, replace(etas, open_us=50)), "never later than within a site"


def test_bytes_that_lie_nearby_one_site_stay_there_unless_it_is_late_or_out() -> None:
    near = replace(unit(site="eu"), nearby=("eu",))
    assert not may_take(near, US, 99, ALL_UP, ETAS)
    assert may_take(near, US, 100, ALL_UP, ETAS)
    assert may_take(near, US, 1, replace(ALL_UP, out=frozenset({"eu"})), ETAS)


def test_a_clock_that_was_set_back_hides_nothing_for_ever() -> None:
    assert may_take(handed_out(unit(), US, now_us=10**12), US_2, 0, ALL_UP, ETAS)


def test_the_oldest_come_first_and_only_those_whose_bytes_are_here() -> None:
    units = [unit(0, oldest_us=30), unit(10, oldest_us=10), unit(20, oldest_us=20)]
    taken = choose(units, US, 0, ALL_UP, ETAS, units_max=2)
    assert [one.oldest_us for one in taken] == [10, 20]
    taken = choose(units, US, 0, ALL_UP, ETAS, units_max=2, has=lambda one: one.oldest_us != 10)
    assert [one.oldest_us for one in taken] == [20, 30]


def test_the_first_commit_wins_and_no_other_does() -> None:
    held = handed_out(handed_out(unit(), US, 0), EU, 100)
    first = committed(held, US, {"name": "a"}, 101)
    assert first is not None
    assert first.receipt == {"name": "a"}
    assert committed(first, EU, {"name": "b"}, 102) is None
    assert not may_take(first, EU, 10**6, ALL_UP, ETAS)


def test_records_come_back_as_they_were() -> None:
    one = committed(handed_out(replace(unit(), nearby=("us",), failures=2, reason="x"), US, 5), US, {"rows": 1}, 7)
    assert one is not None
    assert Unit.decode(one.encode()) == one
    back = rolled_back(one, "lost", 9)
    assert back.whole
    assert Unit.decode(back.encode()) == back
    assert reassigned(back, "eu", 10).site == "eu"
