"""JSON messages as columns, decoded many at a time.

Invariant: row n comes from message n. All messages of a batch are parsed as one text, one object behind the other; only
messages that look like an object are put in, so each gives at least one row, and as many rows as messages means one
each. Where that fails, the batch is halved until the message is found that is no object.
"""

from typing import TYPE_CHECKING, Any

from ...errors import Corrupt
from ...streams import Batch

if TYPE_CHECKING:
    import pyarrow

_OBJECT = r"^\s*\{(?s:.*)\}\s*$"


class JsonPayload:
    def __init__(self, schema: "pyarrow.Schema", *, fails: bool) -> None:
        """`fails`: a message that is no such object ends the query; else its columns are null."""
        self._schema, self._fails = schema, fails

    def __call__(self, values: "pyarrow.Array", batch: Batch) -> "pyarrow.RecordBatch":
        import pyarrow as pa
        import pyarrow.compute as pc

        # A tombstone has no value, hence no fields.
        alike = pc.fill_null(pc.match_substring_regex(values, _OBJECT), True)
        if not pc.all(alike, min_count=0).as_py():
            self._malformed(batch, pc.index(alike, False).as_py())
            values = pc.if_else(alike, values, pa.scalar(None, values.type))
        parts = self._parse(pc.fill_null(values, b"{}"), batch, 0)
        return pa.Table.from_batches(parts, schema=self._schema).combine_chunks().to_batches()[0]

    def _parse(self, values: Any, batch: Batch, first: int) -> "list[pyarrow.RecordBatch]":
        import pyarrow as pa

        try:
            table = self._parse_at_once(values)
            if table.num_rows == len(values):
                return list(table.combine_chunks().to_batches())
        except pa.ArrowInvalid:
            pass
        if len(values) == 1:
            self._malformed(batch, first)
            nothing = [pa.nulls(1, field.type) for field in self._schema]
            return [pa.RecordBatch.from_arrays(nothing, schema=self._schema)]
        half = len(values) // 2
        return self._parse(values[:half], batch, first) + self._parse(values[half:], batch, first + half)

    def _parse_at_once(self, values: Any) -> "pyarrow.Table":
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.json as pj

        together = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        text = pc.binary_join(together, b"\n")[0].as_buffer()
        return pj.read_json(
            pa.BufferReader(text),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(text.size + 1, 1 << 16)),
            parse_options=pj.ParseOptions(explicit_schema=self._schema, unexpected_field_behavior="ignore"),
        ).select(self._schema.names)

    def _malformed(self, batch: Batch, number: int) -> None:
        if self._fails:
            message = batch.messages()[number]
            raise Corrupt(
                f"{batch.stream}/{batch.shard}: the message at position {message.position} is not a JSON object with "
                f"the columns asked for: {(message.value or b'')[:80]!r}. Use option('malformed', 'null') to get nulls "
                "for such messages, or read the bytes",
                shard=batch.shard,
                position=message.position,
            )
