"""The two storage layers of a stream: durable files, and a cache beside them that holds only what is hot (A8).

The files are the truth, and everything here works without the cache. What a layer is asked for is small enough to be a
protocol: `Cache` of the cache room is one, and so is whatever a test needs.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ..files.chunks import ChunkCache
from ..files.lengths import LengthCache
from ..native.client import Follower, Watcher

Source = Literal["in_place", "relaxed", "consistent", "durable", "ambassador"]


class Grip(Protocol):
    """Lends a follower what it needs to look at both caches at once, for a while. Belongs to one thread."""

    def hold(self, follower: Follower) -> None: ...

    def close(self) -> None: ...


class Watch(Protocol):
    """Sleeps until the lengths cache says something new of some shards. Belongs to one thread, but for `stop`."""

    def wait(self, timeout_s: float) -> bool:
        """Whether there was news; a TailraceError where it cannot be had now."""
        ...

    @property
    def native(self) -> Watcher | None:
        """What sleeps, for those who wait without a call through Python; None: there is none, or none that would do."""
        ...

    def stop(self) -> None: ...


@dataclass(slots=True)
class Layers:
    """The cache beside the files. `bytes_from` counts where consumers of this process got their bytes; a relaxed look
    counts as `nearest`. `grip`: the short way to the head of a shard; `watch`: of lengths by their keys. Without them
    one looks now and then, and by the long way. `far`: on other hosts, so that a nearer one may come."""

    data: ChunkCache
    lengths: LengthCache
    bytes_from: Counter[Source] = field(default_factory=Counter)
    nearest: Source = "relaxed"
    grip: Callable[[], Grip] | None = None
    watch: Callable[[Sequence[bytes]], Watch] | None = None
    far: bool = False
