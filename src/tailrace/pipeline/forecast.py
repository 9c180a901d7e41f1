"""How much will come, how long what waits will take, and how many slots hold a delay: what is known now, carried on.

Arrivals are smoothed twice (Holt): the rate, and how it changes. A change is believed for a minute ahead and no longer,
since nothing grows for ever. What a slot does in a second is what slots did lately.

Pure: looks at growing files and finished units come in, with their times.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

_LOOK_S = 1.0  # looks that are closer together are one
_RATE_S = 10.0  # over which the rate is smoothed …
_SLOPE_S = 30.0  # … and how it changes
_HORIZON_S = 60.0  # so far ahead a change is believed
_RESULTS = 100  # the newest that tell what a slot does
_USED = 0.8  # of a slot: with nothing to spare, any hiccup is a delay that stays
_CALM_S = 15.0  # slots are given up when they were not needed for so long


@dataclass(frozen=True, slots=True)
class Trend:
    """Bytes that arrive: in a second now, and by how much more with each second."""

    bytes_per_s: float = 0.0
    slope: float = 0.0

    @property
    def kept(self) -> float:
        """The slope as it is believed: within the horizon, no rate falls below nothing."""
        return max(self.slope, -self.bytes_per_s / _HORIZON_S)

    def at(self, after_s: float) -> float:
        return self.bytes_per_s + self.kept * min(after_s, _HORIZON_S)


class Arrivals:
    """The trend of what arrives, from looks at how far each shard goes."""

    def __init__(self) -> None:
        self.trend = Trend()
        self._ends: dict[tuple[str, int], int] = {}
        self._came = 0  # since the look that counted
        self._looked_s: float | None = None
        self._known = False

    def look(self, now_s: float, ends: Mapping[tuple[str, int], int]) -> None:
        for key, end in ends.items():
            # A shard that is new to us is no arrival; one that is shorter was made anew.
            self._came += max(0, end - self._ends.get(key, end))
            self._ends[key] = end
        if self._looked_s is None:
            self._looked_s = now_s
        elif (passed_s := now_s - self._looked_s) >= _LOOK_S:
            self._learn(self._came / passed_s, passed_s)
            self._came, self._looked_s = 0, now_s

    def _learn(self, seen: float, passed_s: float) -> None:
        if not self._known:
            self.trend, self._known = Trend(seen), True
            return
        before, slope = self.trend.bytes_per_s, self.trend.slope
        expected = before + slope * passed_s
        rate = max(0.0, expected + (1 - math.exp(-passed_s / _RATE_S)) * (seen - expected))
        slope += (1 - math.exp(-passed_s / _SLOPE_S)) * ((rate - before) / passed_s - slope)
        self.trend = Trend(rate, slope)


class Speed:
    """What one slot does in a second, while it is at work."""

    def __init__(self) -> None:
        self._done: deque[tuple[int, float]] = deque(maxlen=_RESULTS)

    def done(self, size: int, wall_s: float) -> None:
        self._done.append((size, wall_s))

    @property
    def bytes_per_s(self) -> float | None:
        """None before anything was done."""
        wall_s = sum(seconds for _, seconds in self._done)
        return sum(size for size, _ in self._done) / wall_s if wall_s > 0 else None


def drain_s(backlog_bytes: int, trend: Trend, capacity: float) -> float | None:
    """When nothing will wait any more; None if that is never."""
    if not backlog_bytes:
        return 0.0
    spare, slope = capacity - trend.bytes_per_s, trend.kept

    def left(after_s: float) -> float:
        return backlog_bytes - spare * after_s + slope * after_s**2 / 2

    if abs(slope) * _HORIZON_S < 1e-9 * max(capacity, 1.0):
        return backlog_bytes / spare if spare > 0 else None
    if (inside := spare**2 - 2 * slope * backlog_bytes) >= 0:
        roots = sorted((spare + sign * math.sqrt(inside)) / slope for sign in (-1, 1))
        for root in roots:
            if 0 < root <= _HORIZON_S:
                return root
    later = capacity - trend.at(_HORIZON_S)
    return _HORIZON_S + left(_HORIZON_S) / later if later > 0 else None


def slots_needed(backlog_bytes: int, trend: Trend, slot_bytes_per_s: float, goal_s: float) -> int:
    """So many that what waits is done within the goal, beside what arrives meanwhile."""
    assert goal_s > 0, goal_s
    wanted = max(trend.at(0.0), trend.at(goal_s)) + backlog_bytes / goal_s
    return max(1, math.ceil(wanted / (slot_bytes_per_s * _USED)))


class Staffing:
    """How many slots to have: more at once when they are needed, fewer when they were not for a while."""

    def __init__(self, least: int, most: int) -> None:
        assert 1 <= least <= most, (least, most)
        self._least, self._most = least, most
        self._needs: deque[tuple[float, int]] = deque()

    def decide(self, now_s: float, needed: int) -> int:
        self._needs.append((now_s, needed))
        while now_s - self._needs[0][0] > _CALM_S:
            self._needs.popleft()
        return min(self._most, max(self._least, max(need for _, need in self._needs)))
