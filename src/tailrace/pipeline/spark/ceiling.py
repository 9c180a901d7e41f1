"""The ceiling of any source in Python: one batch, made once, is sent again and again; no file is read.

What is left is Spark's own: the way from Python to the JVM, and from Arrow to rows there. Beside it one sees what our
source adds. The format is `tailrace_ceiling`, with the options rows, partitions and valueBytes, and columns as ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import datasource as spark
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from .options import SourceOptions
from .place import settle_memory
from .rows import default_schema

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 16384


@dataclass
class Share(spark.InputPartition):
    rows: int


class CeilingDataSource(spark.DataSource):
    @classmethod
    def name(cls) -> str:
        return "tailrace_ceiling"

    def schema(self) -> StructType:
        wanted = {"columns": self.options["columns"]} if "columns" in self.options else {}
        return default_schema(SourceOptions.parse({"world": ".", "stream": "none", **wanted}, streaming=False))

    def reader(self, schema: StructType) -> "CeilingSource":
        rows, partitions = int(self.options["rows"]), int(self.options["partitions"])
        return CeilingSource(schema, rows, partitions, int(self.options["valuebytes"]))


class CeilingSource(spark.DataSourceReader):
    def __init__(self, schema: StructType, rows: int, partitions: int, value_bytes: int) -> None:
        self._schema, self._value_bytes = schema, value_bytes
        self._shares = [rows * (place + 1) // partitions - rows * place // partitions for place in range(partitions)]

    def partitions(self) -> Sequence[spark.InputPartition]:
        return [Share(rows) for rows in self._shares]

    def read(self, partition: spark.InputPartition) -> "Iterator[pyarrow.RecordBatch]":
        assert isinstance(partition, Share), partition
        settle_memory()
        batch, left = self._batch(), partition.rows
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows

    def _batch(self) -> "pyarrow.RecordBatch":
        import pyarrow as pa

        numbers = pa.array(range(_BATCH_ROWS), pa.int64())
        made = {
            "key": lambda: pa.nulls(_BATCH_ROWS, pa.binary()),
            "value": lambda: pa.array([b"." * self._value_bytes] * _BATCH_ROWS, pa.binary()),
            "timestamp": lambda: numbers.cast(pa.timestamp("us", tz="UTC")),
            "shard": lambda: numbers.cast(pa.int32()),
            "position": lambda: numbers,
        }
        schema = to_arrow_schema(self._schema, timezone="UTC")
        return pa.RecordBatch.from_arrays([made[name]() for name in schema.names], schema=schema)
