"""How soon an operation goes on elsewhere when the worker that bore it is killed, at the place where it matters: the
longest pause at a consumer downstream while messages are made at a constant rate, the time between two included.

There are two readers and two writers. Whoever works is killed with -9, time after time, and started again; the other
stands by. Both operations of the shard are with the victim, or the kill does not count: a consumer that reads one layer
would not notice the loss of the other.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

from ..system import process_cpu_s
from .world import BenchWorld, Follower

WATCHED_S = 1.0  # after a kill: what comes later has nothing to do with it
_STANDS_BY = 0.25  # of the other's CPU time at most, and it bears no operation


class Pair:
    """Two processes of a role; one of them works."""

    def __init__(self, world: BenchWorld, cluster: str, role: str, numbers: Sequence[int]) -> None:
        self._world, self._cluster, self._role = world, cluster, role
        self._both = {number: world.node(cluster, role, number) for number in numbers}
        self._gone = -1

    def kill_the_working(self, pour: Callable[[float], None]) -> float | None:
        """When it was killed; None: the work was shared, and now it is not any more."""
        busy = self._busy(pour)
        victim = max(busy, key=lambda number: busy[number])
        shared = min(busy.values()) > _STANDS_BY * busy[victim]
        killed_s = time.monotonic()
        self._both[victim].kill(wait=False)
        self._gone = victim
        return None if shared else killed_s

    def start_again(self) -> None:
        self._world.drop(self._both[self._gone])
        self._both[self._gone] = self._world.node(self._cluster, self._role, self._gone)

    def _busy(self, pour: Callable[[float], None]) -> dict[int, float]:
        before = {number: process_cpu_s(one.pid) for number, one in self._both.items()}
        pour(0.4)
        return {number: process_cpu_s(one.pid) - before[number] for number, one in self._both.items()}


def pauses_ms(pair: Pair, follower: Follower, pour: Callable[[float], None], kills: int) -> list[float]:
    """The longest pause of each kill."""
    found: list[float] = []
    for _ in range(3 * kills):
        killed_s = pair.kill_the_working(pour)
        pour(WATCHED_S)
        if killed_s is not None:
            found.append(longest_pause_s(follower.times_s, killed_s) * 1000)
        pair.start_again()
        pour(0.2)
        if len(found) == kills:
            break
    return found


def longest_pause_s(times_s: Sequence[float], since_s: float) -> float:
    """The longest time without news, the one under way at `since_s` included.

    >>> longest_pause_s([1.0, 2.0, 2.5, 5.5, 6.0], 2.2)
    3.0
    """
    first = max((number for number, when_s in enumerate(times_s) if when_s <= since_s), default=0)
    return max(later - earlier for earlier, later in pairwise(times_s[first:]))
