"""Spark as a pipeline's worker.

A `transform` runs in Spark's slots, which take units one after the other (slots.py): a unit is read, transformed and
staged there, and its receipt comes back. Nothing of the messages crosses into the JVM, which is what makes it fast.

A pipeline with a `frame` instead gets the messages of a unit as a DataFrame: slower, but all of SQL.
"""

import base64
import json
import os
import pickle
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING

from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from ...errors import ConfigError
from ..code import app_module
from ..failure import Failure
from ..ranges import ByteRange
from ..staging import Footer
from ..work import Cost, Done, Failed, Performer, Result, Task, as_table, told
from ..workers.crew import drive
from ..workers.interface import Next
from .session import session
from .slots import NoSlot, Slots, cause, own_name

if TYPE_CHECKING:
    from ..pipeline import Pipeline

_DEATHS_MAX = 1_000_000  # of one slot: units end their processes, and what becomes of them is not Spark's to decide
#: For slots: the JVM starts processes and little else, so the second compiler, which takes half of its start, is not
#: worth it.
_FOR_SLOTS = {
    "spark.task.maxFailures": str(_DEATHS_MAX),
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
}


class SparkWorker:
    def __init__(self, pipeline: "Pipeline", root: str, *, master: str | None = None, slots: int | None = None) -> None:
        cores = slots or len(os.sched_getaffinity(0))
        self._pipeline, self._root = pipeline, os.path.abspath(root)
        where = master or f"local[{cores}]"
        settings: dict[str, str] = {}
        if pipeline.transform is not None:
            where, settings = _tireless(where), _FOR_SLOTS
        self.spark: SparkSession = session(f"tailrace pipeline {pipeline.name}", master=where, settings=settings)
        self.spark.sparkContext.setLogLevel("OFF")  # what goes wrong with a unit is told, in one line
        self.slots = slots or _parallelism(self.spark)
        self._staging = pipeline.staging(root)
        self._slots: Slots | None = None
        if pipeline.transform is not None:
            host = None if where.startswith("local") else self.spark.conf.get("spark.driver.host")
            self._slots = Slots(self.spark, self.slots, _Load(_packed(pipeline, root)), host)

    def run(self, next_task: Next) -> Iterator[Result]:
        if (first := next_task()) is None:
            return
        if self._slots is None:
            yield from map(self._frame, chain([first], iter(next_task, None)))
            return
        try:
            self._slots.wait()
        except NoSlot as problem:
            yield Failed(first.unit, Failure(str(problem), everywhere=True))
            return
        waiting = [first]
        yield from drive(
            self._slots, lambda: waiting.pop() if waiting else next_task(), self._pipeline.config.site_eta_s
        )

    def begin(self) -> None:
        """Have Spark's slots before there is work. NoSlot if it gives none."""
        if self._slots is not None:
            self._slots.wait()

    def rest(self) -> None:
        """Let Spark's slots go until there is work again, as they do by themselves after some seconds."""
        if self._slots is not None:
            self._slots.rest()

    def close(self) -> None:
        if self._slots is not None:
            self._slots.close()
        self.spark.stop()

    # ---- a frame: one job for each unit

    def _frame(self, task: Task) -> Result:
        began_s = time.perf_counter()
        return replace(self._framed(task), cost=Cost(wall_s=time.perf_counter() - began_s))  # the JVM tells no more

    def _framed(self, task: Task) -> Result:
        assert self._pipeline.frame is not None
        try:
            rows = as_table(self._pipeline.frame(self._messages(task.ranges)).toArrow())
            footer = Footer(self._pipeline.name, task.unit, task.ranges)
            receipt = self._staging.write(own_name(task).name, rows, footer)
            return Done(task.unit, receipt, 0, sum(one.size for one in task.ranges))
        except ConfigError as problem:
            return Failed(task.unit, Failure(told(problem)))
        except Exception as problem:  # whatever Spark raises
            return Failed(task.unit, Failure(cause(problem)))

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


class _Load:
    """Makes a performer, where this came to. The job travels as bytes: whoever cannot load it says so in a result."""

    def __init__(self, packed: str) -> None:
        self._packed = packed

    def __call__(self) -> Performer:
        job, transform = pickle.loads(base64.b64decode(self._packed))
        return Performer(job, transform)


def _packed(pipeline: "Pipeline", root: str) -> str:
    assert pipeline.transform is not None
    if (module := app_module(pipeline.transform)) is not None:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    job = cloudpickle.dumps((pipeline.job_without_code(root), pipeline.transform))  # type: ignore[no-untyped-call]
    return base64.b64encode(job).decode()


def _tireless(master: str) -> str:
    """On one machine the number of tries is part of the master's name.

    >>> _tireless("local[2]"), _tireless("spark://10.0.0.1:7077")
    ('local[2,1000000]', 'spark://10.0.0.1:7077')
    """
    found = re.fullmatch(r"local(?:\[([^,\]]+)\])?", master)
    return f"local[{found[1] or 1},{_DEATHS_MAX}]" if found else master


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
