"""A batch: consecutive messages of one shard, checked, as bytes, as messages or as Arrow."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..native import Message, Records

if TYPE_CHECKING:
    import pyarrow


class Batch(Records):
    """`stream`, `shard`, `start` and `end` (positions), `count`, and three ways to the content:

    - `for message in batch`, or `batch.messages()`
    - `batch.to_arrow()`: a table with the columns key, value, timestamp, shard, position
    - `batch.data`: the raw bytes, keys and values as they lie in the file, not copied again; the batch itself is a
      buffer of them, too: `file.write(batch)`
    """

    __slots__ = ()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages())

    def __repr__(self) -> str:
        return f"<Batch {self.stream}/{self.shard} positions {self.start} to {self.end}, {self.count} messages>"

    def to_arrow(self) -> "pyarrow.Table":
        """All messages as one table; no work per message in Python, and values without keys are not even copied."""
        import pyarrow as pa  # here, not above: a process that never asks for Arrow does not wait for it

        return pa.Table.from_batches([self.to_record_batch()])

    def to_record_batch(self, names: Sequence[str] | None = None) -> "pyarrow.RecordBatch":
        """The same as one record batch, with all columns of `arrow_schema`, or those that are named, in their order."""
        import pyarrow as pa

        keys, key_ends, key_bits, no_key, values, value_ends, value_bits, no_value, times, positions, shards = (
            self.columns()
        )

        def binary(ends: object, content: object, bits: object, absent: int) -> "pyarrow.Array":
            buffers = [None if bits is None else pa.py_buffer(bits), pa.py_buffer(ends), pa.py_buffer(content)]
            return pa.Array.from_buffers(pa.binary(), self.count, buffers, absent)

        def numbers(kind: "pyarrow.DataType", content: object) -> "pyarrow.Array":
            return pa.Array.from_buffers(kind, self.count, [None, pa.py_buffer(content)], 0)

        schema = arrow_schema()
        columns = [
            binary(key_ends, keys, key_bits, no_key),
            binary(value_ends, values, value_bits, no_value),
            numbers(schema.field("timestamp").type, times),
            numbers(pa.int32(), shards),
            numbers(pa.int64(), positions),
        ]
        if names is not None:
            places = [schema.get_field_index(name) for name in names]
            return pa.RecordBatch.from_arrays(
                [columns[place] for place in places], schema=pa.schema([schema.field(place) for place in places])
            )
        return pa.RecordBatch.from_arrays(columns, schema=schema)


def arrow_schema() -> "pyarrow.Schema":
    """The columns of `Batch.to_arrow`."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("key", pa.binary()),
            pa.field("value", pa.binary()),
            pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("shard", pa.int32(), nullable=False),
            pa.field("position", pa.int64(), nullable=False),
        ]
    )
