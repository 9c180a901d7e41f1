"""Extract, compact and carry as Spark jobs: a task for each shard does all of it and returns a row (A69, A70)."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from ...env import SystemClock
from ...errors import ConfigError
from ...files import PosixFiles
from ...native import shard_of
from ...streams import Catalog, Snapshots
from ..keyed import Brought, Carried, KeyedStream

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Extracted:
    shards: int
    in_snapshots: int
    updated: int
    deleted: int
    unchanged: int


@dataclass(frozen=True, slots=True)
class Compacted:
    shard: int
    position: int
    keys: int
    size_bytes: int
    fresh: bool  # else there was nothing new since the last one


def extract(
    spark: SparkSession,
    table: DataFrame,
    root: str,
    stream: str,
    *,
    key: str,
    value: str | None = None,
    shards: int | None = None,
) -> Extracted:
    """Bring a table into a keyed stream: as snapshots the first time, then as updates, all of them visible together.
    `value`: the column that holds it; else a message is the row as JSON."""
    for name in (key, value):
        if name is not None and name not in table.columns:
            raise ConfigError(f"the table has the columns {', '.join(table.columns)}, but not {name}. Nothing was sent")
    target = KeyedStream(root, stream, shards=shards, make=True)
    count, batch = target.config.shards, SystemClock().time_us()
    content = f.col(value).cast("binary") if value is not None else f.to_json(f.struct("*")).cast("binary")
    rows = table.select(f.col(key).cast("string").cast("binary").alias("key"), content.alias("value"))

    def with_shard(batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow as pa

        for one in batches:
            places = [None if each is None else shard_of(each, count) for each in one.column("key").to_pylist()]
            if None in places:
                raise ConfigError("a row has no key; leave such rows out. Nothing was sent")
            yield pa.RecordBatch.from_arrays([pa.array(places, pa.int32()), *one.columns], ["shard", "key", "value"])

    def bring(found: "pyarrow.Table") -> "pyarrow.Table":
        import pyarrow as pa

        shard = found.column("shard")[0].as_py()
        rows = found.filter(pa.compute.is_valid(found.column("key"))).select(["key", "value"])
        brought = KeyedStream(root, stream).bring(shard, rows, batch)
        return pa.table({"brought": pa.array([pickle.dumps(brought)], pa.binary())})

    schema = "shard int, key binary, value binary"
    # A row for each shard, so that one whose keys are all gone is looked at, too.
    every = spark.range(0, count, 1, 1).selectExpr("CAST(id AS int) AS shard", "CAST(NULL AS binary) AS key")
    every = every.selectExpr("shard", "key", "CAST(NULL AS binary) AS value")
    placed = rows.mapInArrow(with_shard, schema).unionByName(every)
    results = placed.groupBy("shard").applyInArrow(bring, "brought binary").collect()
    brought: list[Brought] = [pickle.loads(row["brought"]) for row in results]
    target.commit(batch, brought)
    return Extracted(
        count,
        sum(one.in_snapshot for one in brought),
        sum(one.updated for one in brought),
        sum(one.deleted for one in brought),
        sum(one.unchanged for one in brought),
    )


def compact(spark: SparkSession, root: str, stream: str) -> list[Compacted]:
    """Fold the updates of each shard into a new snapshot. Retention then collects what that covers."""
    count = Catalog(PosixFiles(root)).config(stream).shards

    def fold(batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow as pa

        files = PosixFiles(root)
        for one in batches:
            for shard in one.column("id").to_pylist():
                made = Snapshots(files, SystemClock(), Catalog(files), stream).take(shard)
                found: dict[str, Any] = {
                    "shard": shard,
                    "position": made.position,
                    "keys": made.keys,
                    "size_bytes": made.size_bytes,
                    "fresh": made.fresh,
                }
                yield pa.RecordBatch.from_pylist([found], schema=_schema())

    frame = spark.range(0, count, 1, count)  # a task for each
    rows = frame.mapInArrow(fold, "shard bigint, position bigint, keys bigint, size_bytes bigint, fresh boolean")
    return sorted((Compacted(**row.asDict()) for row in rows.collect()), key=lambda one: one.shard)


def carry(spark: SparkSession, root: str, stream: str, targets: Sequence[str]) -> list[Carried]:
    """Bring the newest snapshot of each shard to other clusters, by their folders: what serves them begins there, and
    goes on with the messages that the copy tree brings. May be run at any time, as often as one likes."""
    count = KeyedStream(root, stream).config.shards
    places = list(targets)

    def bring(batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow as pa

        for one in batches:
            for number in one.column("id").to_pylist():
                made = KeyedStream(root, stream).carry(number % count, places[number // count])
                yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(made)], pa.binary())], ["carried"])

    if not places:
        return []
    tasks = count * len(places)
    rows = spark.range(0, tasks, 1, tasks).mapInArrow(bring, "carried binary").collect()
    return sorted((pickle.loads(row["carried"]) for row in rows), key=lambda one: (one.target, one.shard))


def _schema() -> "pyarrow.Schema":
    import pyarrow as pa

    numbers = [pa.field(name, pa.int64()) for name in ("shard", "position", "keys", "size_bytes")]
    return pa.schema([*numbers, pa.field("fresh", pa.bool_())])
