"""Runs in a process of its own against a cluster: a batch job while an executor dies, one of which a task is run twice
at the same time, and a streaming query."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow
from pyspark import TaskContext
from pyspark.sql.functions import udf

from tailrace.pipeline.spark import session


def main(master: str, world: str, folder: str) -> None:
    settings = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.speculation": "true"}
    settings |= {"spark.speculation.interval": "100ms", "spark.speculation.minTaskRuntime": "100ms"}
    settings |= {"spark.speculation.quantile": "0.1", "spark.speculation.multiplier": "1.1"}
    spark = session("cluster", master=master, memory="600m", settings=settings)
    mark = Path(folder) / "killed"

    def kill_once(value: bytearray) -> bytearray:
        """Ends the executor, which is the parent of the daemon that this process was forked from."""
        if not mark.exists():
            mark.touch()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1]
            os.kill(int(daemon), signal.SIGKILL)
        return value

    reading = spark.read.format("tailrace").option("world", world).option("stream", "in")
    rows = reading.option("partitionBytes", "20000").load()
    hosts = rows.rdd.getNumPartitions()
    frame = rows.select("key", udf(kill_once, "binary")("value").alias("value"))
    frame.write.format("tailrace").option("world", world).option("stream", "batch").mode("append").save()

    def straggle(batches: "Iterator[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        """The first task is slow until Spark has begun it a second time: then both go on side by side."""
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 0:
            (Path(folder) / f"attempt-{context.taskAttemptId()}").touch()
            end_s = time.monotonic() + 120
            while len(attempts()) < 2 and time.monotonic() < end_s:
                time.sleep(0.02)
        yield from batches

    def attempts() -> list[Path]:
        return list(Path(folder).glob("attempt-*"))

    twice = rows.select("key", "value").mapInArrow(straggle, "key binary, value binary")
    twice.write.format("tailrace").option("world", world).option("stream", "speculated").mode("append").save()

    followed = spark.readStream.format("tailrace").option("world", world).option("stream", "in")
    writing = followed.option("maxBytesPerTrigger", "50000").load().select("key", "value").writeStream
    writing = writing.format("tailrace").option("world", world).option("stream", "streamed")
    query = writing.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    told = {"partitions": hosts, "batches": len(query.recentProgress), "killed": mark.exists()}
    print("RESULT " + json.dumps(told | {"attempts": len(attempts())}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
