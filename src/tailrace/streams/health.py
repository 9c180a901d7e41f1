"""What is the matter with a shard: nothing, or its producer, its cache, or whoever consumes it. Pure.

A consumer that gets nothing looks the same whether nobody produces or something is stuck on the way. What tells them
apart is the producer's beat, and how far the durable file goes (A72).
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["flowing", "quiet", "producer silent", "cache behind", "consumer stuck"]
STUCK_S = SILENT_S = BEHIND_S = 3.0  # longer than any pause of somebody who lives


@dataclass(frozen=True, slots=True)
class Signs:
    """`still_s`: since the consumer's position last changed. `silent_s`: since the producer last said anything.
    `behind_s`: how long the cache has lacked something that was durable and read. A moment is nothing: whoever reads in
    place is ahead of it each time."""

    position: int
    durable: int  # where the shard ends on disk, as far as is known
    still_s: float
    silent_s: float
    behind_s: float


class CacheLag:
    """How long a cache has lacked something that was there to be had. However fast a stream flows, a cache that follows
    comes to where the stream was a moment ago.

    >>> lag = CacheLag()
    >>> [lag.behind_s(cached, reached, now_s) for cached, reached, now_s in ((0, 9, 1.0), (5, 20, 2.0), (9, 30, 4.0))]
    [0.0, 1.0, 0.0]
    >>> lag.behind_s(29, 40, 5.0), lag.behind_s(29, 40, 9.0), lag.behind_s(40, 40, 10.0)
    (1.0, 5.0, 0.0)
    """

    def __init__(self) -> None:
        self._due, self._since_s = 0, 0.0  # where it is to come, and since when

    def behind_s(self, cached: int, reached: int, now_s: float) -> float:
        if cached >= self._due:
            self._due, self._since_s = reached, now_s
        return now_s - self._since_s


def state_of(signs: Signs) -> State:
    """
    >>> state_of(Signs(position=100, durable=100, still_s=60.0, silent_s=0.5, behind_s=0.0))
    'quiet'
    >>> state_of(Signs(position=100, durable=100, still_s=60.0, silent_s=60.0, behind_s=0.0))
    'producer silent'
    >>> state_of(Signs(position=100, durable=900, still_s=5.0, silent_s=0.5, behind_s=0.0))
    'consumer stuck'
    >>> state_of(Signs(position=900, durable=900, still_s=0.1, silent_s=0.5, behind_s=5.0))
    'cache behind'
    """
    if signs.position < signs.durable and signs.still_s > STUCK_S:
        return "consumer stuck"
    if signs.behind_s > BEHIND_S:
        return "cache behind"
    if signs.still_s <= STUCK_S:
        return "flowing"
    return "producer silent" if signs.silent_s > SILENT_S else "quiet"
