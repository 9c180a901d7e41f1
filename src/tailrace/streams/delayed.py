"""When to read the durable file although the cache is the quicker place: only once waiting would cost too much. Pure.

The durable file may get ahead of the cache for a moment, when a write to the cache was lost or is slow. Whoever then
turned to the files at once would make thousands of consumers do so together. So lengths of the file are remembered with
their times, and the file is read when the cache has not come up to one of them within the delay.
"""

from collections import deque


class DelayedReads:
    """
    >>> delayed = DelayedReads(delay_s=1.0)
    >>> delayed.is_due(cached=100, durable=150, now_s=0.0)
    False
    >>> delayed.is_due(cached=150, durable=150, now_s=0.5)
    False
    >>> delayed.is_due(cached=150, durable=200, now_s=2.0), delayed.is_due(cached=150, durable=300, now_s=3.1)
    (False, True)
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._seen: deque[tuple[float, int]] = deque()  # when the durable file was first seen this long

    def is_due(self, cached: int, durable: int, now_s: float) -> bool:
        """Whether to read the durable file now. After a yes everything is forgotten: it will be read to its end."""
        if not self._seen or self._seen[-1][1] != durable:
            self._seen.append((now_s, durable))
        while self._seen and self._seen[0][1] <= cached:
            self._seen.popleft()
        if not self._seen or now_s <= self._seen[0][0] + self._delay_s:
            return False
        self._seen.clear()
        return True
