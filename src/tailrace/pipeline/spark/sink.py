"""The sink: rows into the shards of a stream, exactly once, for batch writes and streaming queries.

A task stages its rows (`streams.Stage`) and hands Spark what it brings; nothing of it can be seen. The driver hands
what all tasks bring to `streams.Transactions`, which makes it visible as a whole, once for each query and batch. So
tasks may be tried again or run twice, and a driver that starts again may bring a batch again: it changes nothing.
"""

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql import datasource as spark
from pyspark.sql import types
from pyspark.sql.types import StructType

from ...config import StreamConfig
from ...env import SystemClock
from ...errors import ConfigError
from ...files.lengths import hint_slot
from ...native.hints import Hints
from ...streams import Output, Stage, TransactionName, Transactions, discard
from .options import SinkOptions
from .place import WorldFolder, settle_memory

if TYPE_CHECKING:
    import pyarrow

_COLUMNS: dict[str, tuple[type[types.DataType], ...]] = {
    "value": (types.BinaryType, types.StringType),
    "key": (types.BinaryType, types.StringType),
    "shard": (types.IntegerType, types.LongType, types.ShortType),
}
_QUERY, _BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # what Spark calls them in a task


@dataclass
class CommitOutput(spark.WriterCommitMessage):
    """What a task brings, on its way to the driver."""

    output: Output


class _Target:
    """The stream that is written. Travels to the tasks, which open the world anew."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError(
                f"a stream is only ever appended to: use mode('append') for {options.stream}. Nothing was written"
            )
        _check_columns(schema)
        self.options = options
        world = WorldFolder(options.world, make=True)
        self.config: StreamConfig = world.catalog.open(options.stream, world.settings(options.stream), options.shards)

    def stage(self, name: TransactionName, batches: "Iterator[pyarrow.RecordBatch]") -> CommitOutput:
        settle_memory()
        task = TaskContext.get()
        stage = Stage(
            WorldFolder(self.options.world).files,
            self.options.stream,
            name,
            shards=self.config.shards,
            message_bytes_max=self.config.message_bytes_max,
            file_bytes=self.config.file_bytes,
            turn=task.partitionId() if task is not None else 0,
        )
        try:
            for batch in batches:
                _add(stage, batch)
            return CommitOutput(stage.finish())
        except BaseException:
            stage.discard()
            raise

    def commit(self, name: TransactionName, messages: Sequence[spark.WriterCommitMessage | None], once: bool) -> None:
        outputs = [message.output for message in messages if isinstance(message, CommitOutput)]
        if len(outputs) != len(messages):
            missing = len(messages) - len(outputs)
            raise ConfigError(f"{name}: the output of {missing} tasks is missing. Nothing was written")
        world = WorldFolder(self.options.world, owner=f"Spark {name.app}")
        key = world.path, self.options.stream, name.app
        transactions = _open.get(key)
        if transactions is None:
            transactions = Transactions(
                world.files,
                world.clock,
                self.options.stream,
                self.config,
                name.app,
                once=once,
                on_roll=lambda shard: world.trim(self.options.stream, shard),
            )
        try:
            transactions.commit(name.batch, outputs)
        except BaseException:
            _open.pop(key, None)
            raise
        if once:
            transactions.close()
        else:
            _open[key] = transactions
        _wake(world, self.options.stream)


#: Spark commits in a process that lives on, so that one batch can go on in the files of the one before.
_open: dict[tuple[str, str, str], Transactions] = {}


class BatchSink(spark.DataSourceArrowWriter):
    """`df.write`. With txnApp and txnVersion it may be tried again; without them every write is one of its own."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        self._target = _Target(options, schema, overwrite=overwrite)
        self._once = options.transaction is None
        if options.transaction is not None:
            self._name = TransactionName(*options.transaction)
        else:
            self._name = TransactionName.for_once(SystemClock().time_us(), secrets.token_hex(8))

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> CommitOutput:
        return self._target.stage(self._name, iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        self._target.commit(self._name, messages, self._once)

    def abort(self, messages: list[spark.WriterCommitMessage | None]) -> None:
        """Nothing can be seen of it; what was staged is not needed any more."""
        discard(WorldFolder(self._target.options.world).files, self._target.options.stream, self._name)


class StreamSink(spark.DataSourceStreamArrowWriter):
    """`df.writeStream`. The query's id, which its checkpoint keeps, and the batch's number name the transaction."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        if options.transaction is not None:
            raise ConfigError("txnApp and txnVersion belong to batch writes; a streaming query has a name of its own")
        self._target = _Target(options, schema, overwrite=overwrite)

    def write(self, iterator: "Iterator[pyarrow.RecordBatch]") -> CommitOutput:
        task: Any = TaskContext.get()
        query, batch = task.getLocalProperty(_QUERY), task.getLocalProperty(_BATCH)
        if query is None or batch is None:
            raise ConfigError("Spark does not tell this task which query and batch it belongs to. Nothing was written")
        return self._target.stage(TransactionName(query, int(batch)), iterator)

    def commit(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        named = next((message.output.name for message in messages if isinstance(message, CommitOutput)), None)
        if named is not None:  # else there was no task, hence nothing to write
            self._target.commit(TransactionName(named.app, batchId), messages, once=False)

    def abort(self, messages: list[spark.WriterCommitMessage | None], batchId: int) -> None:
        """Nothing can be seen of it. What is left is deleted with the next batch."""


def _add(stage: Stage, batch: "pyarrow.RecordBatch") -> None:
    import pyarrow.compute as pc

    names = batch.schema.names
    values, keys = batch.column("value"), batch.column("key") if "key" in names else None
    if "shard" not in names:
        stage.add(values, keys)
        return
    shards = batch.column("shard")
    for shard in pc.unique(shards).to_pylist():
        mine = pc.is_null(shards) if shard is None else pc.fill_null(pc.equal(shards, shard), False)
        stage.add(values.filter(mine), None if keys is None else keys.filter(mine), shard=shard)


def _check_columns(schema: StructType) -> None:
    for field in schema.fields:
        kinds = _COLUMNS.get(field.name)
        if kinds is None:
            raise ConfigError(
                f"a stream takes the columns {', '.join(_COLUMNS)}, not {field.name}. Select them, as in "
                "df.selectExpr('id AS key', 'to_json(struct(*)) AS value'). Nothing was written"
            )
        if not isinstance(field.dataType, kinds):
            allowed = " or ".join(kind().simpleString() for kind in kinds)
            raise ConfigError(
                f"the column {field.name} must be {allowed}, not {field.dataType.simpleString()}: cast it, or use "
                "to_json. Nothing was written"
            )
    if "value" not in schema.names:
        raise ConfigError("there is no column value; name the one that holds the messages so. Nothing was written")


def _wake(world: WorldFolder, stream: str) -> None:
    """Those who wait for news of the stream on this machine."""
    with suppress(OSError):
        Hints(os.path.join(world.path, "hints"), make=True).raise_(hint_slot(world.catalog.incarnation(stream)))
