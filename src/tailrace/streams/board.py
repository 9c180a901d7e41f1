"""What the lengths cache says of all shards that one consumer follows: one bulk read tells of all of them (A26)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from ..env import Clock
from ..errors import TailraceError
from ..files.chunks import file_key
from ..files.lengths import ShardLengths, hint_slot, lengths_key
from ..model.message_file import Track as TrackName
from ..native.hints import Hints, Waiter
from .layers import Layers, Source
from .segments import Segment
from .shard_files import Wrap
from .tracks import DurableTrack, LayeredTrack, Track

Place = tuple[str, int]


@dataclass(slots=True)
class _Told:
    raw: bytes | None = None
    lengths: ShardLengths | None = None
    changed_s: float = 0.0  # when it said something new


class Board:
    """Looks when somebody wants to know and a new round has begun. Belongs to one thread at a time."""

    def __init__(self, hints: Callable[[], Hints | None], clock: Clock) -> None:
        self._hints, self._clock = hints, clock
        self._layers: list[Callable[[], Layers | None]] = []
        self._places: dict[Place, str] = {}
        self._keys: list[bytes] = []
        self._told: list[_Told] = []
        self._stale = True

    def follow(self, stream: str, shard: int, incarnation: str, layers: Callable[[], Layers | None]) -> Wrap:
        """What puts the cache before the files of this shard."""
        self._layers.append(layers)
        self._places[stream, shard] = incarnation
        self._keys.append(lengths_key(incarnation, shard))
        self._told.append(_Told())
        number = len(self._told) - 1

        def wrap(durable: DurableTrack, segment: Segment, name: TrackName) -> Track:
            file = segment.data_name if name == "data" else segment.index_name
            key = partial(file_key, incarnation, shard, file)
            return LayeredTrack(
                durable, name, key, layers, partial(self._of, number), lambda told: told.of(segment), self._clock
            )

        return wrap

    def told(self, stream: str, shard: int) -> tuple[ShardLengths | None, float]:
        """What is said of a shard now, and since when nothing new was said."""
        if (stream, shard) not in self._places:
            return None, math.inf
        self.begin_round()
        return self._of(list(self._places).index((stream, shard)))

    def begin_round(self) -> None:
        """Whatever is asked next is to be looked up again."""
        self._stale = True

    def _of(self, number: int) -> tuple[ShardLengths | None, float]:
        if self._stale:
            self._look()
        told = self._told[number]
        return told.lengths, self._clock.monotonic_s() - told.changed_s

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
                told.lengths = None if raw is None else ShardLengths.decode(raw)

    def _reached(self) -> Layers | None:
        """Any of them: they have the same lengths cache."""
        for find in self._layers:
            if (found := find()) is not None:
                return found
        return None

    def bytes_from(self) -> Counter[Source]:
        """Where consumers of this process got their bytes."""
        layers = self._reached()
        return Counter() if layers is None else layers.bytes_from

    def waiter(self, places: Iterable[Place]) -> Waiter | None:
        """What to sleep on until one of these shards has news; None: some of them raise no hints, or there is no such
        thing here: look now and then."""
        hints = self._hints() if self._places.keys() >= set(places) else None
        if hints is None or not self._places:
            return None
        try:
            return Waiter(hints, {hint_slot(incarnation) for incarnation in self._places.values()})
        except ValueError:  # more streams than a process can sleep on
            return None
