"""A consumer that measures: how late messages come, where their bytes come from, and whether they are the right ones.

It reads as every consumer does, through the cache. The same ranges are read once more from the durable files and
compared: bytes that differ would otherwise be noticed by nobody (A67).
"""

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from ..env import Clock
from ..errors import Corrupt, PositionRetired
from .arrivals import Arrivals
from .batch import Batch
from .board import Board
from .consumer import Consumer, Place
from .delays import Delays
from .health import CacheLag, Signs, state_of
from .tail import ShardTail

PERCENTILES = (50.0, 99.0, 99.9, 99.99)


@dataclass(slots=True)
class _Shard:
    """What was seen of one shard."""

    tail: ShardTail | None  # of the durable files alone; None: nothing is compared
    end: Callable[[], int]
    delays: Delays = field(default_factory=Delays)
    arrivals: Arrivals = field(default_factory=Arrivals)
    durable: tuple[int, float] = (-1, 0.0)  # where it ended on disk when it was last looked at, and since when
    messages: int = 0
    bytes: int = 0
    position: int = 0
    moved_s: float = 0.0
    lag: CacheLag = field(default_factory=CacheLag)
    compared: int = 0
    unequal: int = 0
    waiting: bytearray = field(default_factory=bytearray)  # durable bytes from `position` on


class Monitor:
    """Call step() over and over; report() says what was seen so far. Not for several threads at once."""

    def __init__(
        self,
        consumer: Consumer,
        board: Board,
        shards: Iterable[tuple[Place, ShardTail | None, Callable[[], int]]],
        clock: Clock,
    ) -> None:
        """Of each shard: a tail of the durable files at the consumer's position, and what says where they end."""
        self._consumer, self._board, self._clock = consumer, board, clock
        self._began_s = clock.monotonic_s()
        positions = consumer.positions
        self._shards = {
            place: _Shard(tail, end, position=positions[place], moved_s=self._began_s) for place, tail, end in shards
        }

    def step(self, timeout_s: float) -> Batch | None:
        """Take the next batch into account, if one comes within the time."""
        batch = self._consumer.poll(timeout_s)
        if batch is None:
            return None
        shard, now_us = self._shards[batch.stream, batch.shard], self._clock.time_us()
        for sent_us in (batch.first_time_us, batch.last_time_us):
            if sent_us is not None:
                shard.delays.add(now_us - sent_us)
        if batch.last_time_us is not None:
            shard.arrivals.came(batch.last_time_us, now_us)
        shard.messages += batch.count
        shard.bytes += batch.end - batch.start
        shard.position, shard.moved_s = batch.end, self._clock.monotonic_s()
        self._compare(shard, batch)
        return batch

    def _compare(self, shard: _Shard, batch: Batch) -> None:
        if shard.tail is None:
            return
        size = batch.end - batch.start
        try:
            while len(shard.waiting) < size and (durable := shard.tail.poll(size)) is not None:
                shard.waiting += durable.data
        except (Corrupt, PositionRetired):  # the files have other bytes there than messages; `verify` tells which
            shard.unequal += size
            shard.waiting.clear()
            with suppress(Corrupt, PositionRetired):
                shard.tail.seek(batch.end)
            return
        shard.compared += size
        if shard.waiting[:size] != batch.data:
            shard.unequal += size
        del shard.waiting[:size]

    def report(self) -> dict[str, Any]:
        """Plain values: of each shard, and of all together."""
        seconds = max(self._clock.monotonic_s() - self._began_s, 1e-9)
        together, shards = Delays(), []
        for (stream, number), shard in self._shards.items():
            together.merge(shard.delays)
            told, silent_s = self._board.told(stream, number)
            cached = 0 if told is None else told.newest.segment.data_base + told.newest.data_cached
            durable, now_s = shard.end(), self._clock.monotonic_s()
            reached = min(durable, shard.position)
            # Without a cache there is none that could be behind.
            behind_s = shard.lag.behind_s(reached if told is None else cached, reached, now_s)
            signs = Signs(shard.position, durable, now_s - shard.moved_s, silent_s, behind_s)
            shards.append(
                {
                    "stream": stream,
                    "shard": number,
                    "state": state_of(signs),
                    "messages": shard.messages,
                    "bytes": shard.bytes,
                    "bytes_per_s": shard.bytes / seconds,
                    **_percentiles(shard.delays),
                    "position": shard.position,
                    "durable_end": durable,
                    "cached_end": cached,
                    "producer_silent_s": None if told is None else silent_s,
                    "compared_bytes": shard.compared,
                    "unequal_bytes": shard.unequal,
                }
            )
        return {
            "seconds": seconds,
            "messages": sum(shard.messages for shard in self._shards.values()),
            "bytes": sum(shard.bytes for shard in self._shards.values()),
            **_percentiles(together),
            "compared_bytes": sum(shard.compared for shard in self._shards.values()),
            "unequal_bytes": sum(shard.unequal for shard in self._shards.values()),
            "bytes_from": dict(self._board.bytes_from()),
            "shards": shards,
        }

    def sightings(self) -> dict[Place, dict[str, Any]]:
        """What is to be compared with other clusters: how far each shard is, and when messages came."""
        now_s, found = self._clock.monotonic_s(), {}
        for (stream, number), shard in self._shards.items():
            told, silent_s = self._board.told(stream, number)
            end = shard.end()
            if end != shard.durable[0]:
                shard.durable = end, now_s
            found[stream, number] = {
                "durable": end,
                "still_s": now_s - shard.durable[1],
                "beat_us": 0 if told is None else told.beat_us,
                "silent_s": None if math.isinf(silent_s) else silent_s,  # without a cache nobody hears the producer
                "marks": dict(shard.arrivals.marks),
            }
        return found

    def close(self) -> None:
        self._consumer.close()
        for shard in self._shards.values():
            if shard.tail is not None:
                shard.tail.close()

    def __enter__(self) -> "Monitor":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _percentiles(delays: Delays) -> dict[str, float]:
    return {f"delay_p{percent:g}_ms": delays.percentile_ms(percent) for percent in PERCENTILES}
