"""How fresh a view is: the last moment at which it had applied everything that was durable. Pure.

Two things tell. A look that finds nothing more: then the view is as fresh as the moment before the look. And, since a
stream that never pauses never shows that, a mark: where the durable messages ended at some moment; once the view has
come so far, it is as fresh as that moment. A mark that is not reached yet also contradicts a look that finds nothing.
"""

from collections.abc import Mapping

_MARK_S = 0.5
_MARK_SHARE = 100  # marking costs a few file calls a shard: never more than a hundredth of the time


class Freshness:
    def __init__(self) -> None:
        self.fresh_s = float("-inf")
        self._mark: tuple[float, Mapping[int, int]] | None = None
        self._blind = False  # where the durable messages end cannot be found out
        self._next_s = float("-inf")

    def wants_mark(self, now_s: float) -> bool:
        return self._mark is None and now_s >= self._next_s

    def marked(self, at_s: float, took_s: float, ends: Mapping[int, int] | None) -> None:
        """At this moment the durable messages ended there; None: that could not be found out."""
        self._mark, self._blind = (None, True) if ends is None else ((at_s, ends), False)
        self._next_s = at_s + max(_MARK_S, took_s * _MARK_SHARE)

    def applied(self, positions: Mapping[int, int]) -> None:
        """The view has come so far."""
        if self._mark is not None and _reached(positions, self._mark[1]):
            self.fresh_s = max(self.fresh_s, self._mark[0])
            self._mark = None

    def looked(self, at_s: float, positions: Mapping[int, int]) -> None:
        """A look that began at this moment found nothing more."""
        self.applied(positions)
        if self._mark is None and not self._blind:
            self.fresh_s = max(self.fresh_s, at_s)


def _reached(positions: Mapping[int, int], ends: Mapping[int, int]) -> bool:
    return all(positions[shard] >= end for shard, end in ends.items())
