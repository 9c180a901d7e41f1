"""What was used is counted once and stays small; what will come is told from what came."""

import math
import random

import pytest

from tailrace.pipeline.forecast import Arrivals, Speed, Staffing, Trend, drain_s, slots_needed
from tailrace.pipeline.usage import Usage, summary, total


def test_usage_adds_up_and_comes_back_as_it_was() -> None:
    one, more = Usage(1, 10, 1000, 3, 50, 0.25, 0.5), Usage(failed=1, wall_s=0.1)
    both = total([one, more])
    assert both == Usage(1, 10, 1000, 3, 50, 0.25, 0.6, failed=1)
    assert Usage.decode(both.encode()) == both
    assert Usage.decode(None) == Usage()
    assert Usage.decode(b'{"units": 2, "water_l": 7}') == Usage(2), "what later versions count is left out"
    told = summary({"us": one, "eu": more})
    assert (list(told["sites"]), told["total"]) == (["eu", "us"], both.told())


def arrivals(rates: list[float], start_bytes: int = 5_000) -> Trend:
    """Of one look a second, after which so many bytes more were there."""
    looks, end = Arrivals(), float(start_bytes)
    for second, rate in enumerate([0.0, *rates]):
        end += rate
        looks.look(float(second), {("s", 0): round(end), ("s", 1): 77})
    return looks.trend


def test_a_steady_rate_is_found_whatever_lay_there_before() -> None:
    assert arrivals([1000.0] * 30) == Trend(1000.0, 0.0)
    noise = random.Random(3)
    found = arrivals([1000.0 + noise.uniform(-300, 300) for _ in range(300)])
    assert found.bytes_per_s == pytest.approx(1000, rel=0.2)
    assert abs(found.slope) < 20


def test_a_rate_that_grows_is_carried_on_but_not_for_ever() -> None:
    found = arrivals([100.0 * second for second in range(1, 240)])
    assert found.slope == pytest.approx(100, rel=0.05)
    assert found.bytes_per_s == pytest.approx(23_900, rel=0.05)
    assert found.at(30) > found.bytes_per_s + 2500
    assert found.at(60) == found.at(3600)


def test_a_rate_that_ends_falls_to_nothing_and_not_below() -> None:
    found = arrivals([1000.0] * 60 + [0.0] * 200)
    assert 0 <= found.bytes_per_s < 20
    assert min(found.at(after_s) for after_s in range(200)) >= 0


def test_a_shard_that_is_new_or_made_anew_is_no_arrival() -> None:
    looks = Arrivals()
    looks.look(0.0, {("s", 0): 1 << 40})
    looks.look(2.0, {("s", 0): 10, ("s", 1): 1 << 40})
    looks.look(4.0, {("s", 0): 30, ("s", 1): 1 << 40})
    assert looks.trend.bytes_per_s < 10


def test_looks_that_are_close_together_are_one() -> None:
    often, seldom = Arrivals(), Arrivals()
    for tenth in range(600):
        often.look(tenth / 10, {("s", 0): tenth * 50})
        if tenth % 10 == 0:
            seldom.look(tenth / 10, {("s", 0): tenth * 50})
    assert often.trend.bytes_per_s == pytest.approx(seldom.trend.bytes_per_s)


@pytest.mark.parametrize("seed", range(200))
def test_draining_takes_as_long_as_it_does_when_played(seed: int) -> None:
    dice = random.Random(seed)
    backlog = dice.randint(1, 10**6)
    trend = Trend(dice.uniform(0, 1000), dice.choice([0.0, dice.uniform(-40, 40)]))
    capacity = dice.uniform(1, 3000)
    told = drain_s(backlog, trend, capacity)
    left, now_s, step_s = float(backlog), 0.0, 0.01
    while left > 0 and now_s < 3000:
        left += (trend.at(now_s + step_s / 2) - capacity) * step_s
        now_s += step_s
    if told is None or told > 2999:
        assert left > 0
    else:
        assert told == pytest.approx(now_s, abs=0.05, rel=1e-3)


def test_what_is_not_there_is_drained() -> None:
    assert drain_s(0, Trend(5000, 3), 1.0) == 0.0
    assert drain_s(100, Trend(), 50.0) == 2.0
    assert drain_s(100, Trend(50.0), 50.0) is None


@pytest.mark.parametrize("seed", range(100))
def test_the_slots_that_are_asked_for_hold_the_delay(seed: int) -> None:
    dice = random.Random(seed)
    backlog, speed, goal_s = dice.randint(0, 10**6), dice.uniform(10, 5000), dice.uniform(1, 120)
    trend = Trend(dice.uniform(0, 5000), dice.uniform(-30, 30))
    slots = slots_needed(backlog, trend, speed, goal_s)
    after_s = drain_s(backlog, trend, slots * speed)
    assert after_s is not None
    assert after_s <= goal_s
    fewer = math.floor(slots * 0.8) - 1  # without what is kept in reserve
    if fewer >= 1 and not trend.slope < 0:
        assert (drain_s(backlog, trend, fewer * speed) or goal_s + 1) > goal_s or trend.at(goal_s) < fewer * speed


def test_what_a_slot_does_is_what_slots_did_lately() -> None:
    speed = Speed()
    assert speed.bytes_per_s is None
    speed.done(1000, 1.0)
    speed.done(3000, 1.0)
    assert speed.bytes_per_s == 2000
    for _ in range(100):
        speed.done(10, 1.0)
    assert speed.bytes_per_s == 10


def test_slots_are_taken_at_once_and_given_up_after_a_while() -> None:
    staffing = Staffing(1, 4)
    assert staffing.decide(0, 1) == 1
    assert staffing.decide(1, 9) == 4
    assert [staffing.decide(second, 1) for second in (2, 10, 16)] == [4, 4, 4]
    assert staffing.decide(17, 1) == 1
    assert Staffing(2, 4).decide(0, 0) == 2
