"""Spark as a pipeline's worker: each task of a job reads, transforms and stages one unit, and returns its receipt.

Nothing of the messages crosses into the JVM, which is what makes it fast (docs/decisions/pipeline.md). A task that
fails says so in its result; the job goes on. A task that takes its process with it fails the whole job, and then the
units of the job are tried one by one, to see which of them it was.

A pipeline with a `frame` instead of a `transform` gets the messages of a unit as a DataFrame: slower, but all of SQL.
"""

import base64
import json
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import datasource as spark

from ...errors import ConfigError
from ..code import app_module
from ..failure import Failure
from ..ranges import ByteRange
from ..staging import Footer
from ..work import Done, Failed, Job, Performer, Result, Task, as_table, told
from ..workers.interface import Next
from .place import settle_memory
from .session import session

if TYPE_CHECKING:
    import pyarrow

    from ..pipeline import Pipeline

FORMAT = "tailrace-units"
_TASKS_PER_SLOT = 4  # of one job: more would keep finished units waiting for the slowest


class UnitPartition(spark.InputPartition):
    def __init__(self, task: Task) -> None:
        super().__init__(task.unit)
        self.task = task


class UnitsDataSource(spark.DataSource):
    """`spark.read.format("tailrace-units")`, for the worker below only: rows are results."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return "unit string, result binary"

    def reader(self, schema: Any) -> "UnitsSource":
        return UnitsSource(self.options["job"], self.options["tasks"])


class UnitsSource(spark.DataSourceReader):
    def __init__(self, job: str, tasks: str) -> None:
        self._job, self._tasks = job, tasks

    def partitions(self) -> Sequence[spark.InputPartition]:
        return [UnitPartition(task) for task in pickle.loads(base64.b64decode(self._tasks))]

    def read(self, partition: spark.InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        import pyarrow as pa

        settle_memory()
        assert isinstance(partition, UnitPartition)
        try:
            performer = _performer(self._job)
        except Exception as problem:
            result: Result = Failed(
                partition.task.unit, Failure(f"the transform cannot be loaded: {told(problem)}", everywhere=True)
            )
        else:
            result = performer.perform(_own_name(partition.task))
        schema = pa.schema([("unit", pa.string()), ("result", pa.binary())])
        yield pa.RecordBatch.from_arrays(
            [pa.array([result.unit]), pa.array([pickle.dumps(result)], pa.binary())], schema=schema
        )


_performers: dict[str, Performer] = {}


def _performer(packed: str) -> Performer:
    """Made once for each process that Spark keeps."""
    if packed not in _performers:
        _performers.clear()
        job, transform = pickle.loads(base64.b64decode(packed))
        _performers[packed] = Performer(job, transform)
    return _performers[packed]


def _own_name(task: Task) -> Task:
    """Spark may run a task twice, even at once: each writes a file of its own, and only one comes into the receipt."""
    return replace(task, name=task.name.removesuffix(".parquet") + f"-{os.getpid()}-{os.urandom(3).hex()}.parquet")


class SparkWorker:
    def __init__(self, pipeline: "Pipeline", root: str, *, master: str | None = None, slots: int | None = None) -> None:
        cores = slots or len(os.sched_getaffinity(0))
        self._pipeline, self._root = pipeline, os.path.abspath(root)
        self.spark: SparkSession = session(f"tailrace pipeline {pipeline.name}", master=master or f"local[{cores}]")
        self.spark.dataSource.register(UnitsDataSource)
        self.spark.sparkContext.setLogLevel("OFF")  # what goes wrong with a unit is told, in one line
        self.slots = slots or _parallelism(self.spark)
        self._staging = pipeline.staging(root)
        self._job = ""
        if pipeline.transform is not None:
            job: Job = pipeline.job_without_code(root)
            if (module := app_module(pipeline.transform)) is not None:
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
            self._job = base64.b64encode(cloudpickle.dumps((job, pipeline.transform))).decode()  # type: ignore[no-untyped-call]

    def run(self, next_task: Next) -> Iterator[Result]:
        while True:
            tasks: list[Task] = []
            while len(tasks) < self.slots * _TASKS_PER_SLOT and (task := next_task()) is not None:
                tasks.append(task)
            if not tasks:
                return
            if self._pipeline.frame is not None:
                for task in tasks:
                    yield self._frame(task)
            else:
                yield from self._units(tasks)

    def close(self) -> None:
        self.spark.stop()

    # ---- a transform: one task for each unit

    def _units(self, tasks: Sequence[Task]) -> Iterator[Result]:
        try:
            results = self._run(tasks)
        except Exception as problem:  # whatever Spark raises
            if len(tasks) > 1:
                for task in tasks:
                    yield from self._units([task])
            else:
                yield Failed(tasks[0].unit, _failure(problem))
            return
        for task in tasks:
            yield results.get(task.unit) or Failed(task.unit, Failure("Spark returned no result for it"))

    def _run(self, tasks: Sequence[Task]) -> dict[str, Result]:
        packed = base64.b64encode(pickle.dumps(list(tasks))).decode()
        frame = self.spark.read.format(FORMAT).option("job", self._job).option("tasks", packed).load()
        found = [pickle.loads(row["result"]) for row in frame.collect()]
        return {result.unit: result for result in found}

    # ---- a frame: one job for each unit

    def _frame(self, task: Task) -> Result:
        assert self._pipeline.frame is not None
        try:
            rows = as_table(self._pipeline.frame(self._messages(task.ranges)).toArrow())
            footer = Footer(self._pipeline.name, task.unit, task.ranges)
            receipt = self._staging.write(_own_name(task).name, rows, footer)
            return Done(task.unit, receipt, 0, sum(one.size for one in task.ranges))
        except Exception as problem:
            return Failed(task.unit, Failure(_cause(problem)))

    def _messages(self, ranges: Sequence[ByteRange]) -> DataFrame:
        """The messages of a unit; of several streams, with a column that tells which."""
        from pyspark.sql.functions import lit

        frames = []
        for stream, layer in _layers(ranges):
            place = {"start": {one.shard: one.begin for one in layer}, "end": {one.shard: one.end for one in layer}}
            frame = self.spark.read.format("tailrace").option("world", self._root).option("stream", stream)
            for name, positions in place.items():
                frame = frame.option(name, json.dumps({str(shard): at for shard, at in sorted(positions.items())}))
            found = frame.load()
            frames.append(found.withColumn("stream", lit(stream)) if len(self._pipeline.source.streams) > 1 else found)
        return reduce(DataFrame.unionByName, frames)


def _layers(ranges: Sequence[ByteRange]) -> list[tuple[str, list[ByteRange]]]:
    """Ranges that one read can take: of one stream, each shard once. Neighbours of a shard are joined."""
    joined: list[ByteRange] = []
    for one in sorted(ranges):
        if joined and (joined[-1].stream, joined[-1].shard, joined[-1].end) == (one.stream, one.shard, one.begin):
            joined[-1] = replace(joined[-1], end=one.end)
        else:
            joined.append(one)
    layers: list[tuple[str, list[ByteRange]]] = []
    for one in joined:
        for stream, layer in layers:
            if stream == one.stream and all(other.shard != one.shard for other in layer):
                layer.append(one)
                break
        else:
            layers.append((one.stream, [one]))
    return layers


def _parallelism(session: SparkSession) -> int:
    try:
        return int(session.sparkContext.defaultParallelism)
    except (PySparkException, AttributeError):  # Spark Connect does not tell
        return len(os.sched_getaffinity(0))


def _failure(problem: BaseException) -> Failure:
    """Of a job. If a process died, the data may be the cause; else it is Spark's trouble, and no message's."""
    cause, whole = _cause(problem), str(problem)
    died = any(words in whole for words in ("exited unexpectedly", "Connection reset", "EOFException", "ExecutorLost"))
    return Failure(f"in Spark: {cause}", everywhere=not died)


def _cause(problem: BaseException) -> str:
    """The line that says it, out of Spark's pages."""
    if isinstance(problem, ConfigError):
        return told(problem)
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if any("exited unexpectedly" in line for line in lines):
        return "its Python process died"
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or [type(problem).__name__])[0][:400]
