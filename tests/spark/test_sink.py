"""The sink: rows become messages exactly once, whatever fails on the way."""

import shutil
from collections import Counter
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import udf
from pyspark.sql.streaming import StreamingQuery

import tailrace
from tailrace.native import shard_of
from tailrace.streams import Checked, verify_shard


def save(frame: DataFrame, folder: Path, stream: str, mode: str = "append", **options: object) -> None:
    writing = frame.write.format("tailrace").option("world", str(folder / "world")).option("stream", stream)
    for name, value in options.items():
        writing = writing.option(name, str(value))
    writing.mode(mode).save()


def values(world: tailrace.World, stream: str) -> list[bytes | None]:
    with world.consumer(stream, start="earliest", follow=False) as consumer:
        return [message.value for batch in consumer for message in batch]


def numbers(spark: SparkSession, count: int, tasks: int = 4) -> DataFrame:
    return spark.range(0, count, 1, tasks).selectExpr("concat('k', id % 10) AS key", "cast(id AS string) AS value")


def test_rows_go_to_the_shards_of_their_keys_in_their_order(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    save(numbers(spark, 1000), tmp_path, "keyed", shards=3)
    with world.consumer("keyed", start="earliest", follow=False) as consumer:
        messages = [message for batch in consumer for message in batch]
    assert Counter(message.value for message in messages) == Counter(b"%d" % number for number in range(1000))
    for message in messages:
        assert message.key is not None
        assert message.value is not None
        assert message.key == b"k%d" % (int(message.value) % 10)
        assert message.shard == shard_of(message.key, 3), "as a producer has it"
    for shard in range(3):
        for task in range(4):  # a task has a quarter of the numbers
            mine = [
                int(one.value or 0) for one in messages if one.shard == shard and int(one.value or 0) // 250 == task
            ]
            assert mine == sorted(mine)
            assert mine


def test_rows_name_their_shards_or_take_turns(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    frame = spark.range(0, 90, 1, 3).selectExpr("cast(id AS string) AS value", "cast(id % 3 AS int) AS shard")
    save(frame, tmp_path, "named", shards=3)
    assert [status.messages for status in world.stream_status("named")] == [30, 30, 30]
    save(frame.select("value"), tmp_path, "turns", shards=3)
    assert [status.messages for status in world.stream_status("turns")] == [30, 30, 30]
    gone = spark.createDataFrame([("a", None), ("b", "x")], "key string, value string")
    save(gone, tmp_path, "gone")
    assert Counter(values(world, "gone")) == Counter([None, b"x"])


def test_large_writes_become_files_of_their_own_and_all_is_sound(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    with world.producer("large", shards=2) as producer:
        producer.send(b"before", key=b"k")
    frame = spark.range(0, 60_000, 1, 2).selectExpr("cast(id AS string) AS key", "repeat('x', 400) AS value")
    save(frame, tmp_path, "large")
    with world.producer("large") as producer:
        producer.send(b"after", key=b"k")
    found = Counter(values(world, "large"))
    assert found == Counter({b"x" * 400: 60_000, b"before": 1, b"after": 1})
    for shard in range(2):
        checked = Checked()
        assert list(verify_shard(world.files, "large", shard, checked)) == []
    assert world.files.list("streams/large/transactions/staged") == []


def test_a_write_that_is_tried_again_is_made_once(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    frame = numbers(spark, 100)
    for version in (1, 1, 2, 1, 2):
        save(frame, tmp_path, "again", txnApp="job", txnVersion=version)
    assert len(values(world, "again")) == 200
    save(frame, tmp_path, "again")
    save(frame, tmp_path, "again")
    assert len(values(world, "again")) == 400, "without a name every write is one of its own"


def test_tasks_that_fail_and_are_tried_again_leave_nothing_behind(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def fail_once(value: str) -> str:
        """The first attempt of each task fails after it has had most of its rows."""
        if value.endswith("9990") and not (marks / value).exists():
            (marks / value).touch()
            raise RuntimeError("on purpose")
        return value

    frame = numbers(spark, 40_000).select("key", udf(fail_once, "string")("value").alias("value"))
    save(frame, tmp_path, "retried", shards=2)
    assert len(list(marks.iterdir())) == 4
    assert Counter(values(world, "retried")) == Counter(b"%d" % number for number in range(40_000))


def start(spark: SparkSession, folder: Path, source: str, target: str) -> StreamingQuery:
    reading = spark.readStream.format("tailrace").option("world", str(folder / "world")).option("stream", source)
    frame = reading.option("maxBytesPerTrigger", "3000").load().select("key", "value")
    writing = frame.writeStream.format("tailrace").option("world", str(folder / "world")).option("stream", target)
    checkpoint = str(folder / "checkpoint")
    return writing.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def test_a_batch_that_is_replayed_changes_nothing(spark: SparkSession, world: tailrace.World, tmp_path: Path) -> None:
    """The driver died after the sink had committed and before Spark wrote that down."""
    with world.producer("in", shards=2) as producer:
        producer.send_many([b"%d" % number for number in range(2000)], [b"%d" % number for number in range(2000)])
    world.create_stream("out", shards=2)
    assert start(spark, tmp_path, "in", "out").awaitTermination(120)
    before = values(world, "out")
    assert Counter(before) == Counter(b"%d" % number for number in range(2000))
    commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    assert len(commits) >= 3
    commits[-1].unlink()
    (commits[-1].parent / f".{commits[-1].name}.crc").unlink(missing_ok=True)
    assert start(spark, tmp_path, "in", "out").awaitTermination(120)
    assert commits[-1].exists(), "the batch was run again"
    assert values(world, "out") == before


def test_a_query_that_begins_anew_with_another_checkpoint_is_another_one(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    with world.producer("in") as producer:
        producer.send_many([b"%d" % number for number in range(100)])
    for _ in range(2):
        assert start(spark, tmp_path, "in", "out").awaitTermination(120)
        shutil.rmtree(tmp_path / "checkpoint")
    assert Counter(values(world, "out")) == Counter([b"%d" % number for number in range(100)] * 2)


@pytest.mark.parametrize(
    ("columns", "mode", "words"),
    [
        (["id AS value"], "append", "must be binary or string, not bigint"),
        (["cast(id AS string) AS text"], "append", "not text"),
        (["cast(id AS string) AS key"], "append", "no column value"),
        (["cast(id AS string) AS value"], "overwrite", "only ever appended to"),
    ],
)
def test_what_is_wrong_is_said(
    spark: SparkSession, world: tailrace.World, tmp_path: Path, columns: list[str], mode: str, words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        save(spark.range(3).selectExpr(*columns), tmp_path, "wrong", mode)


def test_a_message_that_is_too_large_is_said_and_nothing_is_written(
    spark: SparkSession, world: tailrace.World, tmp_path: Path
) -> None:
    world.create_stream("small", message_bytes_max=10)
    with pytest.raises(PySparkException, match="message_bytes_max=10"):
        save(spark.sql("SELECT 'x' AS value UNION ALL SELECT repeat('x', 11)"), tmp_path, "small")
    assert values(world, "small") == []
    assert world.files.list("streams/small/transactions/staged") == []
