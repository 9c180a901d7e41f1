"""The source: rows are what a consumer gets, whichever way they are asked for."""

import io
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import tailrace
from tailrace.native import Message

Rows = list[tuple[Any, ...]]


def fill(world: tailrace.World, stream: str, count: int = 300, shards: int = 3, seed: int = 1) -> list[Message]:
    """Keys and values of all kinds, over several files, and what a consumer makes of them."""
    choose = random.Random(seed)
    if stream not in world.streams():
        world.create_stream(stream, shards=shards, file_bytes=2000)
    with world.producer(stream) as producer:
        for number in range(count):
            key = choose.choice([None, b"", b"k%d" % (number % 7)])
            value = choose.choice([b"", b"v" * (number % 50), b"\xff\x00", None if key is not None else b"x"])
            producer.send(value, key)
            if number % 40 == 0:
                producer.flush()
    return consumed(world, stream)


def consumed(world: tailrace.World, stream: str) -> list[Message]:
    with world.consumer(stream, start="earliest", follow=False) as consumer:
        return [message for batch in consumer for message in batch]


def load(spark: SparkSession, folder: Path, stream: str, schema: str | None = None, **options: object) -> DataFrame:
    reading = spark.read.format("tailrace").option("world", str(folder / "world")).option("stream", stream)
    for name, value in options.items():
        reading = reading.option(name, str(value))
    return (reading if schema is None else reading.schema(schema)).load()


def time_of(message: Message) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=message.timestamp_us)


def as_row(message: Message) -> tuple[Any, ...]:
    return message.key, message.value, time_of(message), message.shard, message.position


def found(frame: DataFrame) -> Rows:
    """In the order of shard and position. Spark gives local times without a zone and bytearrays."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytearray):
            return bytes(value)
        return value.astimezone(UTC) if isinstance(value, datetime) else value

    rows = [tuple(plain(value) for value in row) for row in frame.collect()]
    return sorted(rows, key=lambda row: row[-2:])


def test_rows_are_the_messages(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    messages = fill(world, "all")
    frame = load(spark, tmp_path, "all")
    assert frame.columns == ["key", "value", "timestamp", "shard", "position"]
    expected = sorted(map(as_row, messages), key=lambda row: row[-2:])
    assert found(frame) == expected
    assert found(load(spark, tmp_path, "all", columns="value,shard,position")) == [
        (row[1], row[3], row[4]) for row in expected
    ]
    assert found(load(spark, tmp_path, "all", schema="shard bigint, position bigint")) == [row[3:] for row in expected]


def test_a_shard_is_read_by_any_number_of_tasks(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    with world.producer("large", shards=2) as producer:
        producer.send_many([b"%06d" % number + b"." * (number % 100) for number in range(3000)], shard=0)
        producer.send_many([b"y" * 30_000] * 3, shard=1)
    frame = load(spark, tmp_path, "large", partitionBytes=4096)
    assert frame.rdd.getNumPartitions() > 60, "also pieces in the middle of a message, in which none begins"
    rows = [tuple(row) for row in frame.select("shard", "position").collect()]
    assert (len(rows), len(set(rows))) == (3003, 3003)


@pytest.mark.parametrize("pushed", ["true", "false"])
def test_filters_read_less_and_tell_the_same(
    spark: SparkSession, world: tailrace.World, tmp_path: Path, pushed: str
) -> None:
    fill(world, "filtered", seed=2)
    messages = fill(world, "filtered", seed=3)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
    try:
        one = messages[len(messages) // 2]
        stamp = f"timestamp'{time_of(one):%Y-%m-%d %H:%M:%S.%f}Z'"
        moment = one.timestamp_us
        cases = {
            "shard = 1": lambda m: m.shard == 1,
            "shard IN (0, 2) AND position >= 1000": lambda m: m.shard in (0, 2) and m.position >= 1000,
            f"position = {one.position}": lambda m: m.position == one.position,
            "position < 500 AND position > 20": lambda m: 20 < m.position < 500,
            "position <= 20 AND position >= 500": lambda m: False,
            f"timestamp >= {stamp}": lambda m: m.timestamp_us >= moment,
            f"timestamp < {stamp} AND shard = 0": lambda m: m.timestamp_us < moment and m.shard == 0,
            f"timestamp > {stamp} OR shard = 0": lambda m: m.timestamp_us > moment or m.shard == 0,
            f"timestamp = {stamp} AND value IS NOT NULL": lambda m: m.timestamp_us == moment and m.value is not None,
            "shard <> 1 AND length(value) > 5": lambda m: m.shard != 1 and m.value is not None and len(m.value) > 5,
            "shard = 9": lambda m: False,
        }
        for condition, holds in cases.items():
            expected = sorted((m.shard, m.position) for m in messages if holds(m))
            frame = load(spark, tmp_path, "filtered").where(condition)
            seen = sorted(map(tuple, frame.select("shard", "position").collect()))
            assert seen == expected, condition
        if pushed == "true":
            narrow = load(spark, tmp_path, "filtered").where(f"shard = 1 AND position > 20 AND timestamp <= {stamp}")
            assert "Filter (" not in narrow._jdf.queryExecution().executedPlan().toString()
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_one_frame_serves_several_queries(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    """Spark keeps what a frame's last query pushed down and gives it to the next one, hence this is off by default."""
    messages = fill(world, "shared")
    frame = load(spark, tmp_path, "shared")
    one, two = frame.where("shard = 1"), frame.where("shard = 2 AND position > 100")
    assert one.count() == sum(m.shard == 1 for m in messages)
    assert frame.count() == len(messages)
    assert one.union(two).union(frame).count() == len(messages) + sum(
        m.shard == 1 or (m.shard == 2 and m.position > 100) for m in messages
    )


def test_where_to_begin_and_to_end(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    first = fill(world, "places")
    middle = datetime.now(UTC)
    messages = fill(world, "places", seed=5)
    new = len(messages) - len(first)

    def count(**options: object) -> int:
        return load(spark, tmp_path, "places", **options).count()

    assert count(start=middle.isoformat()) == new
    assert count(end=middle.isoformat()) == len(first)
    assert count(start="latest") == 0
    positions = {one.shard: one.position for one in messages}  # the last of each shard
    assert count(start=json.dumps(positions)) == 3
    assert count(end=json.dumps(positions)) == len(messages) - 3
    assert count(shards="0-1") == sum(one.shard < 2 for one in messages)
    assert count(start='{"2": 0}') == sum(one.shard == 2 for one in messages)


def test_json_messages_become_columns(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    good = [{"user": f"u{number % 4}", "cost": number / 4, "tags": ["a"] * (number % 3)} for number in range(500)]
    texts = [json.dumps(one, indent=2 if place % 5 == 0 else None).encode() for place, one in enumerate(good)]
    with world.producer("json") as producer:
        producer.send_many(texts)
        producer.send(None, b"a tombstone")
    schema = "user string, cost double, tags array<string>, missing int, position bigint"
    frame = load(spark, tmp_path, "json", schema, payload="json")
    rows = frame.orderBy("position").collect()
    assert [(row.user, row.cost, row.tags) for row in rows[:-1]] == [tuple(one.values()) for one in good]
    assert rows[-1][:4] == (None, None, None, None)


BAD = [
    b"",
    b"no json",
    b"[1]",
    b'{"a": 1}{"a": 2}',
    b'{"a": }',
    b'{"a": "x"}',
    b"\xff\xfe",
    b'{"a":"}',
    b'{":1}',
    b" {} {} ",
]


def test_messages_that_are_no_json_are_null_or_end_the_query(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    values = [b'{"a": %d}' % number for number in range(200)]
    for place, bad in enumerate(BAD):
        values.insert(17 * place, bad)
    with world.producer("bad") as producer:
        producer.send_many(values)
    frame = load(spark, tmp_path, "bad", "a bigint, position bigint", payload="json", malformed="null")
    rows = [row.a for row in frame.orderBy("position").collect()]
    assert rows == [None if value in BAD else json.loads(value)["a"] for value in values]
    with pytest.raises(PySparkException, match="position 0 is not a JSON object"):
        load(spark, tmp_path, "bad", "a bigint", payload="json").collect()


def test_avro_messages_become_columns(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    fields = [{"name": "user", "type": "string"}, {"name": "cost", "type": ["null", "double"]}]
    schema: Any = {"type": "record", "name": "click", "fields": fields}

    def encoded(record: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, record)
        return buffer.getvalue()

    with world.producer("avro") as producer:
        producer.send_many([encoded({"user": f"u{number}", "cost": number / 2}) for number in range(20)])
        producer.send(b"\x99\x99")
    options = {"payload": "avro", "avroSchema": json.dumps(schema), "malformed": "null"}
    frame = load(spark, tmp_path, "avro", "cost double, user string", **options)
    rows = {(row.user, row.cost) for row in frame.collect()}
    assert rows == {(f"u{number}", number / 2) for number in range(20)} | {(None, None)}


def test_a_stream_is_followed_in_batches_of_the_size_that_was_asked(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    with world.producer("followed", shards=2) as producer:
        producer.send_many([b"%05d" % number + bytes(95) for number in range(600)], shard=0)
        producer.send_many([b"%05d" % number + bytes(95) for number in range(100)], shard=1)

    def run() -> list[int]:
        reading = spark.readStream.format("tailrace").option("world", str(tmp_path / "world"))
        reading = reading.option("stream", "followed").option("maxBytesPerTrigger", "20000")
        frame = reading.option("checkpoint", "spark").load()
        writing = frame.writeStream.format("parquet").option("path", str(tmp_path / "out"))
        query = writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [progress["numInputRows"] for progress in query.recentProgress]

    assert run() == [200, 200, 200, 100]
    told = world.checkpoints("followed")["spark"]
    assert told[0] + told[1] >= 40_000, "how far it is, one batch late, for retention"
    assert sum(run()) == 0, "there was nothing new"
    with world.producer("followed") as producer:
        producer.send_many([b"new"] * 50, shard=1)
    assert sum(run()) == 50
    offsets = sorted((tmp_path / "checkpoint" / "offsets").glob("[0-9]*"))
    assert json.loads(offsets[-1].read_text().splitlines()[-1]) == {"0": 60000, "1": 10150}
    out = spark.read.parquet(str(tmp_path / "out"))
    assert (out.count(), out.select("shard", "position").distinct().count()) == (750, 750)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stream": "nothing"}, "there is no stream 'nothing'"),
        ({"stream": "../x"}, "is not a stream name"),
        ({"start": "yesterday"}, "'earliest', 'latest', a time"),
        ({"start": "2026-01-01T00:00:00"}, "has no time zone"),
        ({"shards": "7"}, "has shards 0 to 0"),
        ({"shard": "7"}, "no option shard"),
        ({"columns": "value,offset"}, "name some of key, value"),
        ({"partitionBytes": "many"}, "a number of bytes"),
        ({"world": "/nowhere/at/all"}, "no such folder"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, world: tailrace.World, tmp_path: Path, options: dict[str, str], words: str
) -> None:
    with world.producer("one") as producer:
        producer.send(b"x")
    reading = spark.read.format("tailrace").options(**{"world": str(tmp_path / "world"), "stream": "one", **options})
    with pytest.raises(PySparkException, match=words):
        reading.load().collect()


def test_a_column_that_is_not_there_is_said(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    with world.producer("one") as producer:
        producer.send(b"x")
    with pytest.raises(PySparkException, match="there is no column user"):
        load(spark, tmp_path, "one", "user string").collect()
    with pytest.raises(PySparkException, match="the column position is bigint"):
        load(spark, tmp_path, "one", "position string").collect()
