"""What is the matter with a shard: nothing, or its producer, its cache, or whoever consumes it. Pure.

A consumer that gets nothing looks the same whether nobody produces or something is stuck on the way. What tells them
apart is the producer's beat, and how far the durable file goes (A72).
"""

from dataclasses import dataclass
from typing import Literal

State = Literal["flowing", "quiet", "producer silent", "cache behind", "consumer stuck"]
STUCK_S = SILENT_S = 3.0  # longer than any pause of somebody who lives


@dataclass(frozen=True, slots=True)
class Signs:
    """`still_s`: since the consumer's position last changed. `silent_s`: since the producer last said anything."""

    position: int
    durable: int  # where the shard ends on disk, as far as is known
    cached: int  # … and in the cache; 0 without one
    still_s: float
    silent_s: float


def state_of(signs: Signs) -> State:
    """
    >>> state_of(Signs(position=100, durable=100, cached=100, still_s=60.0, silent_s=0.5))
    'quiet'
    >>> state_of(Signs(position=100, durable=100, cached=100, still_s=60.0, silent_s=60.0))
    'producer silent'
    >>> state_of(Signs(position=100, durable=900, cached=900, still_s=5.0, silent_s=0.5))
    'consumer stuck'
    >>> state_of(Signs(position=900, durable=900, cached=100, still_s=0.1, silent_s=0.5))
    'cache behind'
    """
    if signs.position < signs.durable and signs.still_s > STUCK_S:
        return "consumer stuck"
    if signs.cached < min(signs.durable, signs.position):
        return "cache behind"
    if signs.still_s <= STUCK_S:
        return "flowing"
    return "producer silent" if signs.silent_s > SILENT_S else "quiet"
