"""Batches of messages as the rows that a query asked for. No work per message in Python, but for Avro.

The columns key, value, timestamp, shard and position are there by themselves. Any other column of the query's schema is
a field of the payload, which is then decoded here, in the task: what is not asked for never crosses to the JVM.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from ...errors import ConfigError
from ...streams import Batch
from .options import COLUMNS, SourceOptions

if TYPE_CHECKING:
    import pyarrow

_KINDS: dict[str, tuple[type[spark.DataType], ...]] = {
    "key": (spark.BinaryType, spark.StringType),
    "value": (spark.BinaryType, spark.StringType),
    "timestamp": (spark.TimestampType,),
    "shard": (spark.IntegerType, spark.LongType),
    "position": (spark.LongType,),
}
_FIELDS = {
    "key": spark.StructField("key", spark.BinaryType()),
    "value": spark.StructField("value", spark.BinaryType()),
    "timestamp": spark.StructField("timestamp", spark.TimestampType(), nullable=False),
    "shard": spark.StructField("shard", spark.IntegerType(), nullable=False),
    "position": spark.StructField("position", spark.LongType(), nullable=False),
}


def default_schema(options: SourceOptions) -> spark.StructType:
    return spark.StructType([_FIELDS[name] for name in options.columns])


class Rows:
    def __init__(self, options: SourceOptions, schema: spark.StructType) -> None:
        self._names = [field.name for field in schema.fields]
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._decode: Callable[[pyarrow.Array, Batch], pyarrow.RecordBatch] | None = None
        decoded = [field for field in schema.fields if field.name not in COLUMNS]
        for field in schema.fields:
            kinds = _KINDS.get(field.name)
            if kinds is not None and not isinstance(field.dataType, kinds):
                allowed = " or ".join(kind().simpleString() for kind in kinds)
                raise ConfigError(f"the column {field.name} is {allowed}, not {field.dataType.simpleString()}")
        if decoded and options.payload is None:
            raise ConfigError(
                f"there is no column {decoded[0].name}; a stream has {', '.join(COLUMNS)}. If it is a field of the "
                "messages, say how they are encoded: option('payload', 'json')"
            )
        if decoded:
            wanted = to_arrow_schema(spark.StructType(decoded), timezone="UTC")
            if options.payload == "json":
                from .json_payload import JsonPayload

                self._decode = JsonPayload(wanted, fails=options.fails_on_malformed)
            else:
                from .avro_payload import AvroPayload

                self._decode = AvroPayload(options.avro_schema or "", wanted, fails=options.fails_on_malformed)

    def of(self, batch: Batch) -> "pyarrow.RecordBatch":
        import pyarrow as pa

        plain = batch.to_record_batch()
        decoded = None if self._decode is None else self._decode(plain.column("value"), batch)
        columns: list[Any] = []
        for name, field in zip(self._names, self._schema, strict=True):
            column = plain.column(name) if name in COLUMNS or decoded is None else decoded.column(name)
            if column.type != field.type:
                column = column.view(field.type) if pa.types.is_string(field.type) else column.cast(field.type)
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)
