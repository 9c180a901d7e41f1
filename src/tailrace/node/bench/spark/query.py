"""A streaming query in a process of its own, to be killed: copies a stream into another until there is nothing new."""

import sys

from ....pipeline.spark import session


def main(world: str, source: str, target: str, checkpoint: str, bytes_per_batch: str) -> None:
    spark = session("copy", master="local[2]", memory="512m")
    reading = spark.readStream.format("tailrace").option("world", world).option("stream", source)
    frame = reading.option("maxBytesPerTrigger", bytes_per_batch).load().select("key", "value")
    writing = frame.writeStream.format("tailrace").option("world", world).option("stream", target)
    query = writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
