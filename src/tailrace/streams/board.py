"""What the lengths cache says of all shards that one consumer follows: one bulk read tells of all of them (A26)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ..env import Clock
from ..errors import TailraceError
from ..files.chunks import file_key
from ..files.lengths import ShardLengths, hint_slot, late_slot, lengths_key
from ..model.message_file import Track as TrackName
from ..native.client import Watcher
from ..native.hints import Hints, Waiter
from .head import Head
from .in_place import Nearby
from .layers import Layers, Source, Watch
from .quicker import Quicker
from .segments import Segment
from .tracks import DurableTrack, LayeredTrack, Track

Place = tuple[str, int]
# Hints of one's own host come from whoever writes the files: they are missing only if that one was killed between the
# flush and the hint, and then until its successor opens the shard. A thousand sleepers that look in vain are not free.
_ALONE_S, _TOGETHER_S = 300.0, 5.0


@dataclass(slots=True)
class _Told:
    raw: bytes | None = None
    changed_s: float = 0.0  # when it said something new
    _decoded: tuple[bytes | None, ShardLengths | None] = None, None

    def lengths(self) -> ShardLengths | None:
        if self._decoded[0] is not self.raw:
            self._decoded = self.raw, None if self.raw is None else ShardLengths.decode(self.raw)
        return self._decoded[1]


class Followed:
    """The cache before the files of one shard."""

    def __init__(
        self,
        board: "Board",
        number: int,
        shard: int,
        incarnation: str,
        layers: Callable[[], Layers | None],
        clock: Clock,
        nearby: Nearby | None,
        near_bytes: int,
        far_bytes: int,
    ) -> None:
        """`nearby`: what can be read in place, if anything."""
        self.nearby, self._near_bytes, self._far_bytes = nearby, near_bytes, far_bytes
        self._shard, self._incarnation, self._layers, self._clock = shard, incarnation, layers, clock
        self._lengths, self._alone = partial(board.lengths, number), board.is_small
        self.quicker = Quicker()

    def told(self) -> tuple[ShardLengths | None, float]:
        """What is said of the shard now, and since when nothing new was."""
        told, silent_s = self._lengths()
        if told is not None:
            newest = told.newest
            self.quicker.heard(newest.segment.data_base + min(newest.data_cached, newest.data_durable))
        return told, silent_s

    def note_durable(self, size: int) -> None:
        """So much was read from the files without asking the cache."""
        if (layers := self._layers()) is not None:
            layers.bytes_from["durable"] += size
            self.quicker.far = layers.far  # a nearer one may have come

    def wrap(self, durable: DurableTrack, segment: Segment, name: TrackName) -> Track:
        key = partial(self._key, segment.data_name if name == "data" else segment.index_name)
        return LayeredTrack(durable, name, key, self._layers, self.told, lambda told: told.of(segment), self._clock)

    def head(self, segment: Segment) -> Head:
        key = lengths_key(self._incarnation, self._shard)
        sizes = self._near_bytes, self._far_bytes
        return Head(segment, key, self.told, self._layers, self._key, self._alone, *sizes, self.quicker)

    def _key(self, file: str, chunk_bytes: int) -> bytes:
        return file_key(self._incarnation, self._shard, file, chunk_bytes)


class Board:
    """Looks when somebody wants to know and a new round has begun. Belongs to one thread at a time. `host`: the tag of
    ours, where `hints` are raised; None: there is no other."""

    def __init__(self, hints: Callable[[], Hints | None], clock: Clock, host: int | None = None) -> None:
        self._hints, self._clock, self._host = hints, clock, host
        self._layers: list[Callable[[], Layers | None]] = []
        self._places: dict[Place, str] = {}
        self._keys: list[bytes] = []
        self._told: list[_Told] = []
        self._nearby: list[Nearby] = []
        self._stale = True
        self._watch: tuple[Layers, Watch] | None = None  # of all keys, by whose cache
        self._stopped = False

    def follow(
        self,
        stream: str,
        shard: int,
        incarnation: str,
        layers: Callable[[], Layers | None],
        nearby: Nearby | None = None,
        near_bytes: int = 1 << 30,
        far_bytes: int = 0,
    ) -> Followed:
        """`nearby`: what a producer of this host has, to be read in place. `near_bytes`: the most that the short way
        gives at once out of memory of this host; `far_bytes`: so much it may give from elsewhere, even if less is asked
        for."""
        if nearby is not None:
            self._nearby.append(nearby)
        self._layers.append(layers)
        self._places[stream, shard] = incarnation
        self._keys.append(lengths_key(incarnation, shard))
        self._told.append(_Told())
        self._watch = None
        sizes = near_bytes, far_bytes
        return Followed(self, len(self._told) - 1, shard, incarnation, layers, self._clock, nearby, *sizes)

    def told(self, stream: str, shard: int) -> tuple[ShardLengths | None, float]:
        """What is said of a shard now, and since when nothing new was said."""
        if (stream, shard) not in self._places:
            return None, math.inf
        self.begin_round()
        return self.lengths(list(self._places).index((stream, shard)))

    def is_small(self) -> bool:
        """Whether it is about one shard only."""
        return len(self._told) == 1

    def begin_round(self) -> None:
        """Whatever is asked next is to be looked up again."""
        self._stale = True

    def lengths(self, number: int) -> tuple[ShardLengths | None, float]:
        """What is said of the shard that was followed as this number, and since when it is, in seconds."""
        if self._stale:
            self._look()
        told = self._told[number]
        return told.lengths(), self._clock.monotonic_s() - told.changed_s

    def _look(self) -> None:
        self._stale = False
        now_s, layers = self._clock.monotonic_s(), self._reached()
        try:
            found = layers.lengths.get_many(self._keys) if layers else [None] * len(self._keys)
        except TailraceError:  # the files tell, too
            found = [None] * len(self._keys)
        for told, raw in zip(self._told, found, strict=True):
            if raw != told.raw:
                told.raw, told.changed_s = raw, now_s

    def _reached(self) -> Layers | None:
        """Any of them: they have the same lengths cache."""
        for find in self._layers:
            if (found := find()) is not None:
                return found
        return None

    def bytes_from(self) -> Counter[Source]:
        """Where consumers of this process got their bytes; of those that are read in place, only whoever asks here."""
        layers = self._reached()
        found = Counter() if layers is None else Counter(layers.bytes_from)
        found["in_place"] = sum(nearby.bytes_read for nearby in self._nearby)
        return found

    def sleep_s_max(self) -> float:
        """How long to sleep at most before one looks although there was no hint. A hint may be lost with the memory it
        lies in; and whoever is to raise it may be killed, or begin anew on another host."""
        if self._host is None:
            return _ALONE_S
        here = all(found is not None and found.host == self._host for found in (told.lengths() for told in self._told))
        return _TOGETHER_S if here else 0.0

    def wait(self, timeout_s: float) -> bool | None:
        """Sleep until the lengths cache says something new, wherever it is; whether it did within the time. None: it
        cannot be slept on, look now and then."""
        layers = self._reached()
        if layers is None or layers.watch is None:
            return None
        if self._watch is None or self._watch[0] is not layers:
            self._watch = layers, layers.watch(self._keys)
        if self._stopped:
            return False
        try:
            return self._watch[1].wait(min(timeout_s, _TOGETHER_S))
        except TailraceError:
            return None
        finally:
            if not layers.far:  # perhaps hints are raised here by now, and the next sleep is a cheaper one
                self._look()

    def watcher(self) -> Watcher | None:
        """What wait() sleeps on, if it is for a single shard and by a cache on another host; None: wait by wait()."""
        if self._watch is None or self._stopped or not self.is_small() or not self._watch[0].far:
            return None
        return self._watch[1].native if self._watch[0] is self._reached() else None

    def stop(self) -> None:
        """Whoever waits returns, and nobody waits any more."""
        self._stopped = True
        if (watch := self._watch) is not None:
            watch[1].stop()

    def waiter(self, places: Iterable[Place]) -> Waiter | None:
        """What to sleep on until one of these shards has news; None: some of them raise no hints, or there is no such
        thing here: look now and then."""
        hints = self._hints() if self._places.keys() >= set(places) else None
        if hints is None or not self._places:
            return None
        try:
            streams = set(self._places.values())
            return Waiter(hints, map(hint_slot, streams), map(late_slot, streams))
        except ValueError:  # more streams than a process can sleep on
            return None
