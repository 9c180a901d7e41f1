"""When messages came, at marks that are the same in every cluster. Pure.

A mark is a point on the producer's clock; it has come when the first message from behind it has. So the same message is
timed everywhere, however messages are batched on their way, and the difference between two clusters is what the way
from one to the other took (by their clocks).
"""

MARK_US = 250_000
MARKS_MAX = 40  # the newest; they are told to the whole world


class Arrivals:
    """
    >>> here = Arrivals()
    >>> for last_time_us, now_us in ((100_000, 1), (240_000, 2), (600_000, 3), (610_000, 4), (800_000, 5)):
    ...     here.came(last_time_us, now_us)
    >>> here.marks
    {1: 3, 2: 3, 3: 5}
    """

    def __init__(self) -> None:
        self.marks: dict[int, int] = {}  # number of the mark: when it came, in microseconds
        self._passed: int | None = None

    def came(self, last_time_us: int, now_us: int) -> None:
        """A batch whose last message is from then came now."""
        mark = last_time_us // MARK_US
        if self._passed is None:  # what came before the first batch nobody has seen
            self._passed = mark
        for passed in range(max(self._passed + 1, mark - MARKS_MAX + 1), mark + 1):
            self.marks[passed] = now_us
        self._passed = max(self._passed, mark)
        for old in list(self.marks)[:-MARKS_MAX]:
            del self.marks[old]
