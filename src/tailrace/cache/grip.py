"""A hold on the native clients of two caches, for who looks at the head of a segment again and again.

Taking a client from its pool and giving it back costs more than the look itself, to a process that has just woken up
and finds nothing of itself in the processor's cache. So they are lent for a while, and as long as they have no trouble.
"""

from ..errors import Closed
from ..native.client import Follower
from .ways import Reading, Ways

_HOLD_S = 0.5  # then both are taken anew, which is how the registry is followed
_MOMENT_S = 0.01


class Grip:
    """Belongs to one thread at a time; close it, so that others get the clients. `lengths` has how far shards go, and
    `data` their chunks."""

    def __init__(self, lengths: Ways, data: Ways, deadline_s: float) -> None:
        self._lengths, self._data, self._deadline_s = lengths, data, deadline_s
        self._lent: tuple[Follower, Reading, Reading] | None = None

    def hold(self, follower: Follower) -> None:
        """Lend it both for a while, instead of what it had."""
        self.close()
        for ways in (self._lengths, self._data):
            if ways.closed:
                raise Closed(f"the cache {ways.name} was closed; open it again")
        mine, its = self._lengths.take(), self._data.take()
        self._lent = follower, mine, its
        # With a backend to attach anew there is something to do each time, and so it is where touches are to be told.
        steady = not (mine.retry_at_s or its.retry_at_s or self._lengths.records or self._data.records)
        follower.hold(mine.native, its.native, _HOLD_S if steady else _MOMENT_S, self._deadline_s)

    def close(self) -> None:
        if self._lent is not None:
            follower, mine, its = self._lent
            self._lent = None
            follower.let_go()
            self._data.give(its)
            self._lengths.give(mine)
