"""Exactly once, under fire: a streaming query copies a stream, its driver is killed again and again, and then the copy
is compared with the original, by a count that Spark has no part in."""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass

from ...world import open_world

_LOOK_S = 0.002
_DEADLINE_S = 300.0


@dataclass(frozen=True, slots=True)
class Survived:
    """kills: those that hit a query at work. mid_batch: those of them after which a batch was to be run again."""

    kills: int
    mid_batch: int
    starts: int
    missing: int
    surplus: int

    @property
    def exact(self) -> bool:
        return not self.missing and not self.surplus


def run(folder: str, *, kills: int, messages: int, bytes_per_batch: int, seed: int = 0) -> Survived:
    world_folder, checkpoint = os.path.join(folder, "world"), os.path.join(folder, "checkpoint")
    choose = random.Random(seed)
    with open_world(world_folder) as world:
        with world.producer("original", shards=2) as producer:
            keys = [b"%d" % (number % 97) for number in range(messages)]
            producer.send_many([b"%08d" % number + b"." * (number % 200) for number in range(messages)], keys)
        world.create_stream("copy", shards=3)
    done = starts = mid_batch = 0
    while True:
        starts += 1
        process = _start(world_folder, checkpoint, bytes_per_batch, os.path.join(folder, f"log-{starts}"))
        try:
            killed = done < kills and _kill_at_work(process, world_folder, choose)
            if not killed and process.wait(_DEADLINE_S) == 0:
                break
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        done += killed
        mid_batch += killed and _newest(checkpoint, "offsets") > _newest(checkpoint, "commits")
        if starts > kills + 5:
            raise RuntimeError(f"the query does not come to its end; see the logs in {folder}")
    wanted, found = _count(world_folder, "original"), _count(world_folder, "copy")
    return Survived(done, mid_batch, starts, (wanted - found).total(), (found - wanted).total())


def _start(world: str, checkpoint: str, bytes_per_batch: int, log: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tailrace.node.bench.spark.query", world, "original", "copy", checkpoint]
    with open(log, "wb") as file:
        return subprocess.Popen(
            [*command, str(bytes_per_batch)], stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )


def _kill_at_work(process: "subprocess.Popen[bytes]", world: str, choose: random.Random) -> bool:
    """Some batches after it has begun, and at any moment within one. False if it ended before."""
    target, deadline_s = _batches(world) + choose.randint(1, 4), time.monotonic() + _DEADLINE_S
    while _batches(world) < target:
        if process.poll() is not None or time.monotonic() > deadline_s:
            return False
        time.sleep(_LOOK_S)
    time.sleep(choose.uniform(0, 0.4))
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def _batches(world: str) -> int:
    """The number of the newest batch that was committed; -1 before the first."""
    newest = -1
    for _, _, names in os.walk(os.path.join(world, "streams", "copy", "transactions")):
        newest = max([newest, *(int(name[-20:]) for name in names if name[-20:].isdigit())])
    return newest


def _newest(checkpoint: str, kind: str) -> int:
    """The number of the newest batch that Spark has planned ("offsets") or knows to be done ("commits")."""
    place = os.path.join(checkpoint, kind)
    return max((int(name) for name in os.listdir(place) if name.isdigit()), default=-1) if os.path.isdir(place) else -1


def _count(world_folder: str, stream: str) -> Counter[tuple[bytes | None, bytes | None]]:
    with open_world(world_folder) as world, world.consumer(stream, start="earliest", follow=False) as consumer:
        return Counter((message.key, message.value) for batch in consumer for message in batch)
