"""Spark reads a stream, aggregates it, and writes the result into another stream, exactly once.

# > 4 campaigns, 1000 clicks
# > again: nothing new
"""

import json
import tempfile

import tailrace
from tailrace.pipeline.spark import session

folder = tempfile.mkdtemp()
world = tailrace.open(folder)
with world.producer("clicks", shards=2) as producer:
    for number in range(1000):
        click = {"campaign": f"c{number % 4}", "cost": number}
        producer.send(json.dumps(click).encode(), key=b"user-%d" % (number % 10))

spark = session(master="local[2]")
clicks = spark.read.format("tailrace").option("world", folder).option("stream", "clicks")
fields = clicks.option("payload", "json").schema("campaign string, cost bigint").load()
totals = fields.groupBy("campaign").count().selectExpr("campaign AS key", "to_json(struct(*)) AS value")


def publish() -> None:
    """May be tried again: the pair of name and version is written once."""
    writing = totals.write.format("tailrace").option("world", folder).option("stream", "totals")
    writing.option("txnApp", "hourly-totals").option("txnVersion", "7").mode("append").save()


publish()
with world.view("totals") as view:
    counts = [json.loads(value)["count"] for _, value in view.items()]
print(len(counts), "campaigns,", sum(counts), "clicks")

publish()
messages = sum(shard.messages for shard in world.stream_status("totals"))
print("again:", "nothing new" if messages == len(counts) else f"{messages} messages")
