"""Time that passes when nothing is left to do: a whole world runs in one thread, and the same seed runs the same way.

>>> time = VirtualTime()
>>> time.after(2.0, lambda: print("second"))
>>> time.after(1.0, lambda: print("first"))
>>> time.run(10.0)
first
second
>>> time.now_s
10.0
"""

import heapq
import threading
from collections.abc import Callable

_START_US = 1_700_000_000_000_000


class VirtualTime:
    """Acts happen in the order of their times, and of one time in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._number = 0
        self._acts: list[tuple[float, int, Callable[[], None]]] = []

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        assert delay_s >= 0, delay_s
        self._number += 1
        heapq.heappush(self._acts, (self.now_s + delay_s, self._number, act))

    def run(self, until_s: float) -> None:
        while self._acts and self._acts[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._acts)
            act()
        self.now_s = max(self.now_s, until_s)


class VirtualClock:
    """Implements `tailrace.env.Clock` for one machine: its wall may be wrong, and jump."""

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._wrong_us = 0
        self._waits = 0

    def time_us(self) -> int:
        return _START_US + round(self._time.now_s * 1e6) + self._wrong_us

    def monotonic_s(self) -> float:
        return self._time.now_s

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Nobody else runs meanwhile, so a wait that is not over at once never will be."""
        self._waits += 1
        if self._waits > 10_000:
            raise AssertionError("something waits in a world with one thread: it would wait for ever")
        return event.is_set()

    def jump_wall(self, seconds: float) -> None:
        self._wrong_us += round(seconds * 1e6)
