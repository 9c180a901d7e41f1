"""How much may be on its way to a writer: pure. What is not taken yet is bounded by the window that the writer grants,
so that a slow disk downstream holds back the reader instead of filling memory. One batch may always be on its way: a
window smaller than that must not stop the copy.

The number of batches is bounded, too: a few, and as many more as the way is long. A writer that is late then finds few
and large ones, not a long queue of small ones: what waits at the source is put together, what is on its way is not.
Those that are as large as can be do not count: with more of them on their way, more of them share a sync."""

import math
from collections import deque

BATCHES = 4  # that may wait at the writer
LARGE_BYTES = 1 << 20  # of which nothing larger would be made
PACE_S = 0.005  # … and one more for each of these that the way takes, there and back


class Window:
    def __init__(self) -> None:
        self.sent_bytes = self.taken_bytes = self.granted_bytes = 0
        self._ends: deque[tuple[int, float, bool]] = deque()  # of batches on their way: bytes sent, when, and if small
        self._small = 0  # of them
        self._way_s = math.inf  # there and back, at its quickest

    @property
    def room_bytes(self) -> int:
        waiting = self.sent_bytes - self.taken_bytes
        if self._small >= self.batches_max:
            return 0
        return max(0, self.granted_bytes - waiting) if waiting else max(1, self.granted_bytes)

    @property
    def batches_max(self) -> int:
        return BATCHES + (0 if self._way_s == math.inf else math.ceil(self._way_s / PACE_S))

    def sent(self, size: int, now_s: float) -> None:
        assert size >= 0, size
        self.sent_bytes += size
        if size:
            self._ends.append((self.sent_bytes, now_s, size < LARGE_BYTES))
            self._small += size < LARGE_BYTES

    def taken(self, total: int, granted: int, now_s: float) -> bool:
        """False: the writer claims to have taken what was never sent."""
        if not self.taken_bytes <= total <= self.sent_bytes:
            return False
        self.taken_bytes, self.granted_bytes = total, granted
        while self._ends and self._ends[0][0] <= total:
            _, sent_s, small = self._ends.popleft()
            self._way_s = min(self._way_s, now_s - sent_s)
            self._small -= small
        return True
