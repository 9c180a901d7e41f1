"""A histogram of delays in buckets that grow by a fixed ratio: bounded memory, bounded error. Pure."""

import math
from collections import Counter

_RATIO = 1.05


class Delays:
    """
    >>> delays = Delays()
    >>> for us in range(1000, 101_000, 1000): delays.add(us)
    >>> 48 < delays.percentile_ms(50) < 54 and 95 < delays.percentile_ms(99) < 105
    True
    """

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})

    def add(self, delay_us: int) -> None:
        self.counts[math.ceil(math.log(max(delay_us, 1), _RATIO))] += 1

    def merge(self, other: "Delays") -> None:
        self.counts.update(other.counts)

    def percentile_ms(self, percent: float) -> float:
        """The bucket's upper end; 0 when there is nothing."""
        rank = self.counts.total() * percent / 100
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                return float(_RATIO**bucket / 1000)
        return 0.0
