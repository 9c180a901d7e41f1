"""Arrow columns on their way into the packer: values and keys as binary with 64-bit offsets."""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Buffer


@dataclass(frozen=True, slots=True)
class Columns:
    values: Any  # pyarrow.LargeBinaryArray, one piece
    keys: Any | None
    count: int

    @classmethod
    def from_arrow(cls, values: Any, keys: Any) -> "Columns | None":
        """None when it is not Arrow. TypeError or ValueError when it is, but of another shape."""
        if "pyarrow" not in sys.modules:  # whoever holds an Arrow object has loaded it
            return None
        import pyarrow as pa

        if isinstance(values, pa.Table | pa.RecordBatch):
            if keys is not None:
                raise ValueError("a table brings its keys in the column `key`. Nothing was sent")
            names = values.schema.names
            if "value" not in names:
                raise ValueError(
                    f"the table has the columns {', '.join(names)}, but none named `value`. Nothing was sent"
                )
            keys = values.column("key") if "key" in names else None
            values = values.column("value")
        if not isinstance(values, pa.Array | pa.ChunkedArray):
            return None
        if keys is not None and len(keys) != len(values):
            raise ValueError(f"{len(values)} values with {len(keys)} keys. Nothing was sent")
        return cls(_binary(values, "value"), None if keys is None else _binary(keys, "key"), len(values))

    def buffers(self) -> "tuple[Buffer, Buffer, Buffer | None, Buffer | None, Buffer | None, Buffer | None]":
        """(values, offsets, bitmap, keys, offsets, bitmap), as `Packer.add_columns` takes them."""
        return *_buffers(self.values), *((None, None, None) if self.keys is None else _buffers(self.keys))


def _binary(column: Any, what: str) -> Any:
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if not isinstance(column, pa.Array):
        column = pa.array(column, pa.large_binary())
    kind = column.type
    textual = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    if not (
        textual or pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind)
    ):
        raise TypeError(f"the {what} column is of type {kind}; use binary or string. Nothing was sent")
    column = column.cast(pa.large_binary())
    # A slice keeps its parent's buffers and an offset in bits; bring it to the front so that rows count from 0.
    return column if column.offset == 0 else pa.concat_arrays([column, pa.array([], pa.large_binary())])


def _buffers(column: Any) -> "tuple[Buffer, Buffer, Buffer | None]":
    bitmap, offsets, content = column.buffers()
    return content or b"", offsets or bytes(8), bitmap if column.null_count else None
