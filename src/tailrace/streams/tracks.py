"""One file of a segment, as a consumer reads it: from the durable layer alone, or from both layers.

From both: the cache first, relaxed; then the cache again, by quorum, for chunks that are shorter than they should be;
then one read of the durable file over all that is still missing (A27, A28). Whether there is more, the lengths cache
says; the file itself is asked when that is silent, or when the cache is too far behind it (A37, A38).
"""

import math
from collections.abc import Callable
from typing import Protocol

from ..env import Clock
from ..files import FileLength, View
from ..files.chunks import Part, short_ones
from ..files.lengths import SegmentLengths, ShardLengths
from ..model.message_file import Track as TrackName
from ..native import Block
from .delayed import DelayedReads
from .layers import Layers
from .quicker import LARGE_BYTES, NEAR_BYTES

DELAY_S = 1.0  # how long the cache may be behind the file before consumers turn to the file
SILENT_S = 1.0  # without a word from the producer, the file itself is asked
_ASK_S = 0.05  # how often, at most, while the lengths cache does not help
_AHEAD_BYTES = 1 << 20  # of a file that are brought while the last ones are dealt with: hundreds may be late together
_READS_BLIND_MAX = 15  # of the file, before a late consumer tries the cache again, however far from the head


class Track(Protocol):
    """One file of a segment. `proven`: what was read last has been checked where it came from, byte by byte."""

    proven: bool

    def length(self) -> FileLength: ...

    def read(self, offset: int, size: int) -> memoryview:
        """These bytes; fewer if the file does not have them yet."""
        ...

    def close(self) -> None: ...


class DurableTrack:
    """`in_place`: much at once is not copied, where the file system can."""

    proven = False

    def __init__(self, view: View, *, in_place: bool = False) -> None:
        self._view = view
        self._in_place_bytes = LARGE_BYTES if in_place else math.inf
        self._next = -1  # where it is read next, as was said

    @property
    def in_place(self) -> bool:
        """Whether large reads are not copied."""
        return self._in_place_bytes < math.inf and self._view.is_mappable()

    def length(self) -> FileLength:
        return self._view.length()

    def read(self, offset: int, size: int) -> memoryview:
        return self.read_on(offset, size) if size >= self._in_place_bytes else self._copied(offset, size)

    def read_on(self, offset: int, size: int) -> memoryview:
        """The same, and what comes next is brought meanwhile: nobody does that for whoever reads in place."""
        if offset != self._next:
            self._view.expect(offset, size)
        window = self._view.mapped(offset, size) if size >= self._in_place_bytes else None
        if window is None:
            window = self._copied(offset, size)
        self._next = offset + size
        self._view.expect(self._next, max(size, _AHEAD_BYTES))
        return window

    def _copied(self, offset: int, size: int) -> memoryview:
        block = memoryview(Block(size))
        return block[: self._view.read_into(offset, block)]

    def close(self) -> None:
        self._view.close()


class LayeredTrack:
    """`told`: what the lengths cache says of the shard now, and since when it has said nothing new, in seconds. `key`:
    what the file's chunks of a size have as theirs."""

    def __init__(
        self,
        durable: DurableTrack,
        name: TrackName,
        key: Callable[[int], bytes],
        layers: Callable[[], Layers | None],
        told: Callable[[], tuple[ShardLengths | None, float]],
        chosen: Callable[[ShardLengths], SegmentLengths | None],
        clock: Clock,
    ) -> None:
        self._durable, self._name, self._key_of, self._clock = durable, name, key, clock
        self._layers, self._told, self._chosen = layers, told, chosen
        self._delayed = DelayedReads(DELAY_S)
        self._due = 0  # how far the durable file is read although the cache is behind it
        self._chunk_bytes, self._key = 0, b""  # not known yet
        self._cached = 0  # how far the cache goes, as far as is known
        self._blind = self._blind_next = 0  # reads without a try of the cache: still to come, and after the next miss
        self._asked: tuple[float, FileLength] | None = None
        self._learned_s = -_ASK_S  # when it was last looked up what is not known yet
        self.proven = False

    def close(self) -> None:
        self._durable.close()

    # ---- how far it goes

    def length(self) -> FileLength:
        told, silent_s = self._told()
        mine = None if told is None else self._chosen(told)
        if mine is None or told is None:
            return self._ask(_ASK_S)
        self._learn(mine)
        if told.newest is not mine:  # it has a successor: nobody appends to it any more
            return FileLength(mine.durable(self._name), mine.durable(self._name), appending=False)
        if silent_s > SILENT_S:
            return self._ask(DELAY_S)
        cached, durable = mine.cached(self._name), mine.durable(self._name)
        # Of a file that the cache has nothing of, not even its beginning, nobody could say how long they have waited.
        if self._delayed.is_due(cached, durable, self._clock.monotonic_s()) or not cached:
            self._due = durable
        readable = max(cached, self._due)
        return FileLength(readable, readable, appending=True)

    def _learn(self, mine: SegmentLengths) -> None:
        self._cached = mine.cached(self._name)
        if (size := mine.chunk_bytes(self._name)) != self._chunk_bytes:
            self._chunk_bytes, self._key = size, self._key_of(size)

    def _ask(self, pause_s: float) -> FileLength:
        """The file itself, but not all the time: thousands may be asking."""
        now_s = self._clock.monotonic_s()
        if self._asked is None or now_s >= self._asked[0] + pause_s:
            self._asked = now_s, self._durable.length()
        return self._asked[1]

    # ---- its bytes

    def read(self, offset: int, size: int) -> memoryview:
        layers = self._layers()
        self.proven = False
        if layers is None or not size:
            return self._durable.read(offset, size)
        if not self._chunk_bytes:
            now_s = self._clock.monotonic_s()
            if now_s >= self._learned_s + _ASK_S:  # perhaps nobody serves the cache at all
                self._learned_s = now_s
                self._look_up()
        elif self._blind and offset + size + NEAR_BYTES >= self._cached:
            self._look_up()  # who is known to be further behind is no nearer now, and need not ask
        if not self._chunk_bytes or (self._blind and offset + size + NEAR_BYTES < self._cached):
            self._blind = max(0, self._blind - 1)
            return self._from_file(layers, offset, size)
        return self._gather(layers, offset, size)

    def _look_up(self) -> None:
        told, _ = self._told()
        if told is not None and (mine := self._chosen(told)) is not None:
            self._learn(mine)

    def _from_file(self, layers: Layers, offset: int, size: int) -> memoryview:
        window = self._durable.read_on(offset, size)
        layers.bytes_from["durable"] += len(window)
        return window

    def _gather(self, layers: Layers, offset: int, size: int) -> memoryview:
        stride = self._chunk_bytes
        part = Part.of(offset, size, stride)
        block = memoryview(Block(part.count * stride))
        got = layers.data.get_parts(self._key, part.first, part.count, block, stride, relaxed=True)
        end = part.skip + size
        if part.complete(got, size, stride):
            layers.bytes_from[layers.nearest] += size  # nearly always
            self.proven, self._blind_next = True, 0
            return block[part.skip : end]
        wanted = part.wanted(size, stride)
        missing = short_ones(got, wanted)
        found = size - sum(wanted[number] - max(got[number], 0) for number in missing)
        layers.bytes_from[layers.nearest] += max(found, 0)
        if missing and (not self._blind_next or any(got[number] >= 0 for number in missing)):
            # A replica that was asked alone may be behind, or have lost them: the others are asked, too. Not again and
            # again by who is so late that nobody has anything.
            again = layers.data.get_parts(self._key, part.first, part.count, block, stride, only=missing)
            still = [number for number in missing if again[number] < wanted[number]]
            layers.bytes_from["consistent"] += sum(wanted[number] for number in missing if number not in still)
            missing = still
        if len(missing) == part.count:
            # It has left the cache. Who is late reads the files, which is slower, and would stay late if it did not try
            # again: the sooner it is back, the better; but who is far behind must not ask in vain all the time.
            self._blind, self._blind_next = self._blind_next, min(2 * self._blind_next + 1, _READS_BLIND_MAX)
            return self._from_file(layers, offset, size)
        self._blind_next = 0
        if missing:
            end = self._mend(layers, part, missing, block, offset, size)
        self.proven = not missing
        return block[part.skip : end]

    def _mend(self, layers: Layers, part: Part, missing: list[int], block: memoryview, offset: int, size: int) -> int:
        """One read of the durable file over everything that is missing. How far the block is good."""
        stride, base = self._chunk_bytes, part.first * self._chunk_bytes
        start = max(base + missing[0] * stride, offset)
        stop = min(base + (missing[-1] + 1) * stride, offset + size)
        window = self._from_file(layers, start, stop - start)
        block[start - base : start - base + len(window)] = window
        return part.skip + size if len(window) == stop - start else start - base + len(window)
