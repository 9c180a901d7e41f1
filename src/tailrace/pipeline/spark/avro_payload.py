"""Avro messages as columns: each message is one value in Avro's binary encoding, all of one schema.

Unlike all else in the source this works message by message, in compiled code of the package fastavro.
"""

import io
import json
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, Corrupt
from ...streams import Batch

if TYPE_CHECKING:
    import pyarrow


class AvroPayload:
    def __init__(self, avro_schema: str, schema: "pyarrow.Schema", *, fails: bool) -> None:
        """`fails`: a message that does not fit the schema ends the query; else its columns are null."""
        try:
            import fastavro
        except ImportError as missing:
            raise ConfigError(
                "payload=avro needs a package: pip install 'tailrace[avro]'. Nothing was read"
            ) from missing
        try:
            self._avro: Any = fastavro.parse_schema(json.loads(avro_schema))
        except (ValueError, fastavro.schema.SchemaParseException) as wrong:
            raise ConfigError(f"avroSchema is not an Avro schema: {wrong!r}. Nothing was read") from None
        self._schema, self._fails = schema, fails

    def __call__(self, values: "pyarrow.Array", batch: Batch) -> "pyarrow.RecordBatch":
        import pyarrow as pa

        rows = [
            {} if value is None else self._decode(value, number, batch)
            for number, value in enumerate(values.to_pylist())
        ]
        return pa.RecordBatch.from_pylist(rows, schema=self._schema)

    def _decode(self, value: bytes, number: int, batch: Batch) -> dict[str, Any]:
        import fastavro

        content = io.BytesIO(value)
        try:
            row = fastavro.schemaless_reader(content, self._avro, None)
            if isinstance(row, dict) and content.tell() == len(value):
                return row
        except Exception as wrong:  # hostile bytes make it raise anything
            problem = repr(wrong)
        else:
            problem = "bytes are left over, or it is no record"
        if self._fails:
            position = batch.messages()[number].position
            raise Corrupt(
                f"{batch.stream}/{batch.shard}: the message at position {position} does not fit the Avro schema: "
                f"{problem}. Use option('malformed', 'null') to get nulls for such messages, or read the bytes",
                shard=batch.shard,
                position=position,
            )
        return {}
