"""The source: a stream as rows, for batch and streaming queries. Partitions are byte ranges of shards.

Invariants:
- Planning looks at the ends of shards and no more; where a partition begins and ends is arithmetic (`bounds.dealt`).
- What a partition reads is a function of its range alone, so a task may run as often as Spark likes.
- Offsets name their shards in the order of their numbers: Spark compares them as text.
"""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as spark
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from ...errors import ConfigError
from ...streams import find_position, next_cut, read_range
from .bounds import Bounds, ShardRange, dealt, shares, tasks
from .options import Place, SourceOptions
from .place import WorldFolder, settle_memory
from .rows import Rows

if TYPE_CHECKING:
    import pyarrow

_BATCH_BYTES = 4 << 20
_RELATIONS = {"EqualTo": "=", "GreaterThan": ">", "GreaterThanOrEqual": ">=", "LessThan": "<", "LessThanOrEqual": "<="}


@dataclass
class RangePartition(spark.InputPartition):
    """The messages of some ranges: of one, or of several small ones, since each task has its price."""

    ranges: tuple[ShardRange, ...]


class _Stream:
    """A stream as options describe it. Travels to the tasks, which open the world anew."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options, self.rows = options, Rows(options, schema)

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "rows": self.rows}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @cached_property
    def world(self) -> WorldFolder:
        return WorldFolder(self.options.world)

    @cached_property
    def shards(self) -> list[int]:
        count = self.world.config(self.options.stream).shards
        wanted = list(range(count)) if self.options.shards is None else list(self.options.shards)
        for place in (self.options.start, self.options.end):
            if isinstance(place, Mapping):
                wanted = [shard for shard in wanted if shard in place]
        if not wanted or wanted[-1] >= count:
            raise ConfigError(
                f"shards={self.options.shards or wanted}: {self.options.stream} has shards 0 to {count - 1}, and start "
                "and end must name those that are to be read. Nothing was read"
            )
        return wanted

    def find(self, shard: int, place: Place) -> int:
        start = place[shard] if isinstance(place, Mapping) else place
        return start if isinstance(start, int) else self._find(shard, start)

    def _find(self, shard: int, start: Any) -> int:
        return find_position(self.world.files, self.world.clock, self.options.stream, shard, start)

    def find_time(self, shard: int, time: datetime) -> int:
        return self._find(shard, time)

    def read(self, partition: spark.InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        settle_memory()
        if not isinstance(partition, RangePartition):  # what Spark makes of an empty list of partitions
            return
        world = WorldFolder(self.options.world)
        for one in partition.ranges:
            batches = read_range(
                world.files,
                world.clock,
                self.options.stream,
                one.shard,
                one.begin,
                one.end,
                batch_bytes=_BATCH_BYTES,
            )
            for batch in batches:
                yield self.rows.of(batch)


class BatchSource(spark.DataSourceReader):
    """`spark.read`. What the stream holds is looked up once, when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._stream, self._bounds = _Stream(options, schema), Bounds()

    def partitions(self) -> Sequence[spark.InputPartition]:
        stream, bounds = self._stream, self._bounds
        ranges = []
        for shard in stream.shards:
            if bounds.wants(shard):
                whole = ShardRange(
                    shard, stream.find(shard, stream.options.start), stream.find(shard, stream.options.end)
                )
                ranges.append(bounds.narrow(whole, stream.find_time))
        return _partitions(ranges, stream.options.partition_bytes)

    def read(self, partition: spark.InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        return self._stream.read(partition)


class PushdownSource(BatchSource):
    """The same, where Spark pushes filters down. It refuses a source that could take them while its setting
    `spark.sql.python.filterPushdown.enabled` is off, hence two classes."""

    def pushFilters(self, filters: "list[spark.Filter]") -> "Iterable[spark.Filter]":
        for one in filters:
            if not self._takes(one):
                yield one

    def _takes(self, one: spark.Filter) -> bool:
        attribute: tuple[str, ...] = getattr(one, "attribute", ())
        if len(attribute) != 1:
            return False
        column = attribute[0]
        if isinstance(one, spark.IsNotNull):
            return column in ("shard", "position", "timestamp")
        if isinstance(one, spark.In):
            return self._bounds.restrict(column, "in", list(one.value))
        relation = _RELATIONS.get(type(one).__name__)
        return relation is not None and self._bounds.restrict(column, relation, getattr(one, "value", None))


def batch_source(options: SourceOptions, schema: StructType) -> BatchSource:
    return (PushdownSource if _is_pushing_down() else BatchSource)(options, schema)


def _is_pushing_down() -> bool:
    """Whether this is the process in which Spark pushes filters down: it runs a module of its own."""
    name = "pyspark.sql.worker.data_source_pushdown_filters"
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    return name in sys.modules or (main is not None and main.name == name)


class StreamSource(spark.DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`. An offset is {shard: position}."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._stream = _Stream(options, schema)
        self._ceiling: dict[int, int] | None = None  # where everything ended when an availableNow query began

    def initialOffset(self) -> dict[str, int]:
        stream = self._stream
        begins = {shard: stream.find(shard, stream.options.start) for shard in stream.shards}
        if (name := stream.options.checkpoint) is not None:
            stream.world.checkpoints.declare(stream.world.incarnation(stream.options.stream), name, begins)
        return _offset(begins)

    def getDefaultReadLimit(self) -> ReadLimit:
        limit = self._stream.options.bytes_per_batch
        return ReadAllAvailable() if limit is None else ReadMaxBytes(limit)

    def prepareForTriggerAvailableNow(self) -> None:
        self._ceiling = self._ends()

    def reportLatestOffset(self) -> dict[str, int]:
        return _offset(self._ends())

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> dict[str, int]:
        begins = {int(shard): position for shard, position in start.items()}
        ends = self._ceiling or self._ends()
        # A shard that ends before the offset was deleted and made anew; reading it says so.
        ends = {shard: max(ends.get(shard, begin), begin) for shard, begin in begins.items()}
        if isinstance(limit, ReadMaxBytes):
            parts = shares([ends[shard] - begins[shard] for shard in begins], limit.max_bytes)
            ends = {
                shard: self._cut(shard, begin, part, ends[shard])
                for (shard, begin), part in zip(begins.items(), parts, strict=True)
            }
        return _offset(ends)

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[spark.InputPartition]:
        ranges = [ShardRange(int(shard), start[shard], end[shard]) for shard in end]
        return _partitions(ranges, self._stream.options.partition_bytes)

    def read(self, partition: spark.InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        return self._stream.read(partition)

    def commit(self, end: Mapping[str, int]) -> None:
        """Tell how far the query is, under the name of a checkpoint, for retention that waits for it. Spark says so one
        batch late, which is on the safe side. The query itself begins where Spark's own checkpoint stands."""
        stream = self._stream
        if (name := stream.options.checkpoint) is not None:
            incarnation = stream.world.incarnation(stream.options.stream)
            stream.world.checkpoints.commit({(incarnation, int(shard)): at for shard, at in end.items()}, name)

    def stop(self) -> None:
        pass

    def _ends(self) -> dict[int, int]:
        return {shard: self._stream.find(shard, "latest") for shard in self._stream.shards}

    def _cut(self, shard: int, begin: int, size: int, end: int) -> int:
        """Up to where so many bytes go: to the end of a message, and one at least."""
        if not size or begin + size >= end:
            return end if size else begin
        stream = self._stream
        cut = next_cut(stream.world.files, stream.options.stream, shard, begin, size)
        return end if cut is None else min(cut, end)


def _offset(positions: Mapping[int, int]) -> dict[str, int]:
    return {str(shard): positions[shard] for shard in sorted(positions)}


def _partitions(ranges: Iterable[ShardRange], bytes_max: int) -> list[spark.InputPartition]:
    """Of what is to be read, one for each task. As many cores as this machine has are counted on; a cluster with more
    has them for what is larger."""
    ranges = list(ranges)
    total = sum(max(0, one.end - one.begin) for one in ranges)
    return [RangePartition(some) for some in dealt(ranges, tasks(total, bytes_max, len(os.sched_getaffinity(0))))]
