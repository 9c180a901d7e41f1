"""The quick way to what is new near the head of a shard, where most consumers stand most of the time.

It knows one case only: the segment's producer was heard of lately, and caches have what is next. Whatever else may be
the case is left to the long way, which asks more and decides the same in this one.
"""

from collections.abc import Callable

from ..files.lengths import ShardLengths
from ..native import Block
from ..native.client import Follower
from .layers import Grip, Layers
from .quicker import Quicker
from .segments import HEADER_BYTES, Segment

_AHEAD_BYTES = 8 << 20  # of messages, whose entries come from another host at once


class Head:
    """Of one segment. `key`: what the chunks of one of its files have as theirs, by name and size. `alone`: whether it
    is the only one of its consumer. Else each gives back at once what it looks with: who follows many shards must not
    hold connections for each of them. `near_bytes`: the most it gives at once out of memory of this host; `far_bytes`:
    so much it may give at once from elsewhere, even if less is asked for."""

    def __init__(
        self,
        segment: Segment,
        lengths_key: bytes,
        told: Callable[[], tuple[ShardLengths | None, float]],
        layers: Callable[[], Layers | None],
        key: Callable[[str, int], bytes],
        alone: Callable[[], bool],
        near_bytes: int,
        far_bytes: int,
        quicker: Quicker,
    ) -> None:
        self._segment, self._lengths_key, self._told, self._layers, self._key = segment, lengths_key, told, layers, key
        self._alone, self._near_bytes, self.far_bytes = alone, near_bytes, far_bytes
        self._is_near, self._quicker = True, quicker
        self._follower: Follower | None = None
        self._entries_max: int | None = None
        self._grip: tuple[Layers, Grip] | None = None  # on the caches that are looked at
        self.at_end = False  # the last look was certain that there is no more than it gave

    def end_at(self, entries: int) -> None:
        """It has a successor, which says how many entries it has: no more than these are its."""
        self._entries_max = entries
        if self._follower is not None:
            self._follower.entries_max = entries

    def look(self, entry: int, start: int, bytes_max: int) -> tuple[memoryview, memoryview] | None:
        """Entries from this one on, and the data of all of them; None: the long way must tell, unless `at_end`."""
        follower, found = self._follower, None
        bytes_max = min(bytes_max, self._near_bytes) if self._is_near else max(bytes_max, self.far_bytes)
        if follower is not None and follower.holds:
            found = follower.glance(entry, start, bytes_max)
        if found is None and (follower is None or not follower.holds):  # the time of what it holds is over
            follower = self._hold()
            found = None if follower is None else follower.glance(entry, start, bytes_max)
        self.at_end = follower is not None and follower.at_end
        if follower is not None and not self._is_near:
            self._quicker.heard(follower.told_end)
        if found is not None and self._grip is not None:
            layers = self._grip[0]
            layers.bytes_from[layers.nearest] += len(found[0]) + len(found[1])
        if not self._alone():
            self.rest()
        return found

    def lookout(self) -> tuple[Follower, Layers] | None:
        """Who looks on from the end of what there is, and at whose cache; None: nobody, or it is on this host."""
        if self._follower is None or self._grip is None or self._is_near or not self.at_end:
            return None
        return self._follower, self._grip[0]

    def renew(self, layers: Layers) -> bool:
        """Give who looks out something to look with; whether it is at the same cache."""
        return self._hold() is not None and self._grip is not None and self._grip[0] is layers

    def rest(self) -> None:
        """Nobody looks for a while: give back what others may need."""
        if self._grip is not None:
            self._grip[1].close()

    def close(self) -> None:
        self.rest()
        self._grip, self.at_end = None, False

    def _hold(self) -> Follower | None:
        """The caches may be others by now, and nearer ones."""
        layers = self._layers()
        if self._follower is None:
            self._follower = self._meet()
        if layers is None or layers.grip is None or self._follower is None:
            self.close()
            return None
        if self._grip is None or self._grip[0] is not layers:
            self.close()
            self._grip = layers, layers.grip()
            self._is_near = not layers.far
            self._follower.ahead_bytes = _AHEAD_BYTES if layers.far else 0
        self._quicker.far = layers.far
        self._grip[1].hold(self._follower)
        return self._follower

    def _meet(self) -> Follower | None:
        """One that follows this segment, once its chunk sizes are known: they are a file's for its whole life."""
        told, _ = self._told()
        lengths = None if told is None else told.of(self._segment)
        if lengths is None:
            return None
        index, data = lengths.index_chunk_bytes, lengths.data_chunk_bytes
        follower = Follower(
            self._lengths_key,
            (self._segment.created_us, self._segment.data_base, self._segment.index_base),
            self._key(self._segment.index_name, index),
            index,
            self._key(self._segment.data_name, data),
            data,
            HEADER_BYTES,
            Block,
        )
        if self._entries_max is not None:
            follower.entries_max = self._entries_max
        return follower
