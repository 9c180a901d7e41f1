"""Worlds in memory, for the crash sweep and the model tests: simulated disk, clock and randomness; no threads."""

import math
from collections.abc import Iterable

from tailrace.config import ConsumerConfig, ProducerConfig, Retention, StreamConfig
from tailrace.env import Disk
from tailrace.files import PosixFiles
from tailrace.native import Message
from tailrace.streams import Consumer, Producer, ShardLog, ShardTail, Start
from tailrace.testing import ManualClock, SeededRandomness

STREAM = "prices"


class SimulatedWorld:
    """One process's view of a stream on a simulated disk."""

    def __init__(self, disk: Disk, clock: ManualClock, config: StreamConfig, seed: int = 0) -> None:
        self.clock, self.config = clock, config
        self.files = PosixFiles(
            "/root", disk=disk, clock=clock, randomness=SeededRandomness(seed), owner=f"seed {seed}"
        )

    def producer(self) -> Producer:
        """Flushes only when told, in the caller's thread and shard by shard, so that every run is the same."""
        logs = {
            shard: ShardLog(self.files, self.clock, STREAM, shard, self.config) for shard in range(self.config.shards)
        }
        producer = Producer(
            STREAM,
            self.config.shards,
            logs,
            ProducerConfig(buffer_s=math.inf, buffer_bytes=1 << 20),
            self.clock,
            self.config.message_bytes_max,
        )
        if producer._pool is not None:
            producer._pool.shutdown()
            producer._pool = None
        return producer

    def tail(self, shard: int = 0, start: Start = "earliest") -> ShardTail:
        return ShardTail(self.files, self.clock, STREAM, shard, start)

    def consumer(self, start: Start = "earliest", batch_bytes: int = 64) -> Consumer:
        tails = [self.tail(shard, start) for shard in range(self.config.shards)]
        return Consumer(tails, ConsumerConfig(batch_bytes=batch_bytes), self.clock, follow=False)

    def read(self, start: Start = "earliest") -> list[Message]:
        with self.consumer(start) as consumer:
            return [message for batch in consumer for message in batch]


def small_config(shards: int = 1, file_bytes: int = 120, retention: Retention | None = None) -> StreamConfig:
    return StreamConfig(
        shards=shards, file_bytes=file_bytes, message_bytes_max=4096, retention=retention or Retention()
    )


def values(messages: Iterable[Message]) -> list[bytes | None]:
    return [message.value for message in messages]
