"""The demo's producer and consumer processes. They tell what happened as lines of JSON, before they act on it."""

import itertools
import json
import signal
import sys
import time
from types import FrameType
from typing import Any

from ....streams import Delays
from ...world import World, open_world

_REPORT_S = 0.1
_FILLER = b"." * 84  # makes a message about 100 bytes

_stopping = False


def _stop(signum: int, frame: FrameType | None) -> None:
    global _stopping
    _stopping = True


def tell(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def produce(world: World, stream: str, shards: list[int], rate: int) -> None:
    """Send numbered messages at a steady rate until told to stop; report only what flush() confirmed."""
    numbers = {status.shard: status.messages for status in world.stream_status(stream) if status.shard in shards}
    with world.producer(stream, only=shards, buffer_s=0.01) as producer:
        tell(flushed=numbers, sent=0)
        sent, begin_s = 0, time.monotonic()
        reported_s, turns = begin_s, itertools.cycle(shards)
        while not _stopping:
            for _ in range(max(0, int((time.monotonic() - begin_s) * rate) - sent)):
                shard = next(turns)
                producer.send(b"%015d " % numbers[shard] + _FILLER, shard=shard)
                numbers[shard] += 1
                sent += 1
            if time.monotonic() - reported_s >= _REPORT_S:  # the background flushes all the time; this is to be sure
                producer.flush()
                tell(flushed=numbers, sent=sent)
                reported_s = time.monotonic()
            time.sleep(0.005)
        producer.flush()
        tell(flushed=numbers, sent=sent)


def consume(world: World, stream: str, name: str) -> None:
    """Follow all shards from the checkpoint, check the numbers, report, and only then commit."""
    expected: dict[int, int] = {}
    delays, reported_s = Delays(), time.monotonic()
    with world.consumer(stream, start="earliest", checkpoint=name) as consumer:
        while True:
            batch = consumer.poll(timeout_s=0.05)
            if batch is not None:
                now_us = time.time_ns() // 1000
                shard = batch.shard
                for message in batch:
                    number = int(message.value[:15])  # type: ignore[index]
                    if shard not in expected:
                        tell(began={shard: number})
                        expected[shard] = number
                    if number != expected[shard]:
                        tell(broke={"shard": shard, "expected": expected[shard], "seen": number})
                    expected[shard] = number + 1
                    delays.add(now_us - message.timestamp_us)
            if time.monotonic() - reported_s >= _REPORT_S or _stopping:
                tell(saw=expected, delays=delays.counts)
                delays, reported_s = Delays(), time.monotonic()
                consumer.commit()
                if _stopping:
                    return


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the story ends us in order
    role, folder, stream, *rest = sys.argv[1:]
    with open_world(folder) as world:
        if role == "producer":
            produce(world, stream, [int(shard) for shard in rest[0].split(",")], int(rest[1]))
        else:
            consume(world, stream, rest[0])


if __name__ == "__main__":
    main()
