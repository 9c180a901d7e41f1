"""Runs in a process of its own against a cluster: a batch job and a streaming query, while an executor dies."""

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql.functions import udf

from tailrace.pipeline.spark import session


def main(master: str, world: str, folder: str) -> None:
    settings = {"spark.executor.memory": "600m", "spark.executor.cores": "1", "spark.speculation": "true"}
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

    followed = spark.readStream.format("tailrace").option("world", world).option("stream", "in")
    writing = followed.option("maxBytesPerTrigger", "50000").load().select("key", "value").writeStream
    writing = writing.format("tailrace").option("world", world).option("stream", "streamed")
    query = writing.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True).start()
    query.awaitTermination()
    print("RESULT " + json.dumps({"partitions": hosts, "batches": len(query.recentProgress), "killed": mark.exists()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
