"""A consumer that has nothing to sleep on looks now and then, and less often the dearer a look has become."""

from typing import cast

from tailrace.config import ConsumerConfig
from tailrace.streams import Consumer, ShardTail
from tailrace.testing import ManualClock


class Silent:
    """A tail that has nothing, and needs its time to find that out."""

    stream, shard, position, drained = "s", 0, 0, False

    def __init__(self, clock: ManualClock, look_s: float) -> None:
        self._clock, self.look_s, self.looks = clock, look_s, 0

    def poll(self, bytes_max: int) -> None:
        self.looks += 1
        self._clock.advance(self.look_s)

    def rest(self) -> None: ...

    def close(self) -> None: ...


def looks_within(look_s: float, seconds: float, poll_s: float) -> int:
    clock = ManualClock()
    tail = Silent(clock, look_s)
    consumer = Consumer([cast(ShardTail, tail)], ConsumerConfig(poll_s=poll_s), clock)
    assert consumer.poll(seconds) is None
    return tail.looks


def test_a_quick_look_is_taken_as_often_as_is_asked_for() -> None:
    assert 180 <= looks_within(look_s=0.0001, seconds=1.0, poll_s=0.005) <= 200


def test_slow_looks_take_a_fifth_of_the_time() -> None:
    assert 19 <= looks_within(look_s=0.02, seconds=2.0, poll_s=0.005) <= 22


def test_there_is_always_a_next_look() -> None:
    assert looks_within(look_s=3.0, seconds=13.0, poll_s=0.005) >= 4


def test_longer_pauses_that_were_asked_for_stay_as_they_are() -> None:
    assert 9 <= looks_within(look_s=0.001, seconds=10.0, poll_s=1.0) <= 11
