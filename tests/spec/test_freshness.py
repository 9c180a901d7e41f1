"""When is a view as fresh as the durable layer?"""

from tailrace.streams.freshness import Freshness

NEVER = float("-inf")


def test_before_anything_is_known_it_is_not_fresh() -> None:
    freshness = Freshness()
    assert freshness.fresh_s == NEVER
    assert freshness.wants_mark(0.0)


def test_a_look_that_finds_nothing_is_as_fresh_as_its_beginning() -> None:
    freshness = Freshness()
    freshness.looked(5.0, {0: 10})
    assert freshness.fresh_s == 5.0
    freshness.looked(4.0, {0: 10})
    assert freshness.fresh_s == 5.0, "never back"


def test_a_stream_that_never_pauses_is_judged_by_marks() -> None:
    freshness = Freshness()
    freshness.marked(1.0, 0.001, {0: 100, 1: 50})
    assert not freshness.wants_mark(100.0), "one at a time"
    freshness.applied({0: 99, 1: 60})
    assert freshness.fresh_s == NEVER
    freshness.applied({0: 120, 1: 60})
    assert freshness.fresh_s == 1.0
    assert not freshness.wants_mark(1.4)
    assert freshness.wants_mark(1.5)


def test_a_mark_that_is_not_reached_contradicts_a_look_that_finds_nothing() -> None:
    """What consumers are told may lag behind the durable layer."""
    freshness = Freshness()
    freshness.marked(1.0, 0.001, {0: 100})
    freshness.looked(2.0, {0: 90})
    assert freshness.fresh_s == NEVER
    freshness.looked(3.0, {0: 100})
    assert freshness.fresh_s == 3.0


def test_marking_takes_a_hundredth_of_the_time_at_most() -> None:
    freshness = Freshness()
    freshness.marked(10.0, 0.05, {})
    freshness.applied({})
    assert not freshness.wants_mark(14.9)
    assert freshness.wants_mark(15.0)


def test_a_mark_that_could_not_be_taken_is_tried_again_later() -> None:
    freshness = Freshness()
    freshness.marked(10.0, 0.0, None)
    freshness.looked(10.1, {0: 5})
    assert freshness.fresh_s == NEVER, "perhaps there is more than it can see"
    assert not freshness.wants_mark(10.4)
    assert freshness.wants_mark(10.5)
    freshness.marked(10.5, 0.0, {0: 5})
    freshness.looked(10.6, {0: 5})
    assert freshness.fresh_s == 10.6
