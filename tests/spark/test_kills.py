"""kill -9: of the process that commits, in the middle of batches, and of the whole driver. Nothing is lost or twice."""

import os
import random
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import tailrace
from conftest import wait_until
from tailrace.node.bench.spark import kills

from .processes import descendants

KILLS = 8


def messages(world: tailrace.World, stream: str) -> Counter[tuple[bytes | None, bytes | None]]:
    with world.consumer(stream, start="earliest", follow=False) as consumer:
        return Counter((message.key, message.value) for batch in consumer for message in batch)


def test_the_process_that_commits_is_killed_again_and_again(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    choose = random.Random(5)
    with world.producer("in", shards=2) as producer:
        keys = [b"%d" % (number % 50) for number in range(30_000)]
        producer.send_many([b"%d" % number for number in range(30_000)], keys)
    world.create_stream("out", shards=3)
    folder = tmp_path / "world"

    def committed() -> int:
        found = (folder / "streams" / "out" / "transactions").rglob("*." + "[0-9]" * 20)
        return max((int(path.name[-20:]) for path in found), default=-1)

    killed = 0
    for _ in range(KILLS + 3):
        reading = spark.readStream.format("tailrace").option("world", str(folder)).option("stream", "in")
        frame = reading.option("maxBytesPerTrigger", "6000").load().select("key", "value")
        writing = frame.writeStream.format("tailrace").option("world", str(folder)).option("stream", "out")
        query = writing.option("checkpointLocation", str(tmp_path / "ck")).trigger(availableNow=True).start()
        if killed < KILLS:
            target = committed() + choose.randint(1, 2)
            wait_until(lambda: committed() >= target or not query.isActive, "some batches")  # noqa: B023
            threading.Event().wait(choose.uniform(0, 0.3))  # any moment within a batch
            for pid in descendants("python_streaming_sink_runner"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            killed += 1
        try:
            query.awaitTermination()
            if killed == KILLS:
                break
        except StreamingQueryException:
            continue
    assert killed == KILLS
    assert not query.isActive
    assert query.exception() is None
    assert messages(world, "out") == messages(world, "in")


@pytest.mark.timeout(900)
def test_the_driver_is_killed_in_the_middle_of_a_query(tmp_path: Path) -> None:
    """A process of its own with its JVM and workers; the benchmark kills it more often."""
    survived = kills.run(str(tmp_path), kills=1, messages=20_000, bytes_per_batch=150_000, seed=3)
    assert survived.kills == 1
    assert (survived.missing, survived.surplus) == (0, 0)
