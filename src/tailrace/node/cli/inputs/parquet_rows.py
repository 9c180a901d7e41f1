"""Parquet: columns go to the producer as Arrow arrays, without work per row; whole rows become JSON."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..report import BadInput
from .json_lines import to_bytes, to_json
from .rows import BadRow, Draft, Rows

if TYPE_CHECKING:
    import pyarrow

_ROWS_MAX, _ROWS_BYTES = 16384, 4 << 20  # how much is decoded at a time
_READ_BYTES = 1 << 20


def parquet_rows(
    path: str, key: str | None, value: str | None, on_read: Callable[[int], None]
) -> Iterator[Rows | BadRow]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    done = 0  # rows
    try:
        with pq.ParquetFile(path, buffer_size=_READ_BYTES) as file:
            names = file.schema_arrow.names
            for wanted in (key, value):
                if wanted is not None and wanted not in names:
                    raise BadInput(
                        f"{path} has the columns {', '.join(names)}, but none named {wanted!r}. Nothing of it was sent"
                    )
            columns = None if value is None else [name for name in (value, key) if name is not None]
            for group in range(file.num_row_groups):
                about = file.metadata.row_group(group)
                packed_bytes = sum(about.column(i).total_compressed_size for i in range(about.num_columns))
                rows = min(_ROWS_MAX, max(1, about.num_rows * _ROWS_BYTES // max(1, about.total_byte_size)))
                for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=columns):
                    yield from _columns(batch, key, value, done) if value else _objects(batch, key, done)
                    done += batch.num_rows
                    on_read(packed_bytes * batch.num_rows // about.num_rows)
    except (pa.ArrowException, OSError) as wrong:
        raise BadInput(f"{path} cannot be read as Parquet after row {done}: {wrong}") from None


def _columns(batch: "pyarrow.RecordBatch", key: str | None, value: str, done: int) -> Iterator[Rows]:
    values = as_binary(batch.column(value))
    keys = None if key is None else as_binary(batch.column(key))
    lines = range(done + 1, done + 1 + batch.num_rows)
    yield Rows(values, keys, lines, _size(values) + (0 if keys is None else _size(keys)))


def _objects(batch: "pyarrow.RecordBatch", key: str | None, done: int) -> Iterator[Rows | BadRow]:
    import pyarrow as pa

    names = batch.schema.names
    columns = [as_text(column) if _needs_text(column.type) else column for column in batch.columns]
    keys = [None] * batch.num_rows if key is None else as_binary(batch.column(key)).to_pylist()
    draft = Draft(keyed=key is not None)
    for line, row in enumerate(pa.RecordBatch.from_arrays(columns, names=names).to_pylist(), done + 1):
        try:
            draft.add(line, to_json(row), _as_bytes(keys[line - done - 1]))
        except ValueError as wrong:
            yield from draft.take()
            yield BadRow(line, str(wrong))
    yield from draft.take()


def as_binary(column: "pyarrow.Array") -> "pyarrow.Array":
    """A column as the producer takes it: bytes and text as they are, numbers and times as text, the rest as JSON."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_dictionary(kind):
        return as_binary(column.dictionary_decode())
    if (
        pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    ):
        return column
    if pa.types.is_nested(kind):
        return pa.array([to_bytes(item) for item in column.to_pylist()], pa.large_binary())
    return as_text(column)


def as_text(column: "pyarrow.Array") -> "pyarrow.Array":
    import pyarrow as pa

    return column.cast(pa.large_binary() if "binary" in str(column.type) else pa.large_string())


def _needs_text(kind: "pyarrow.DataType") -> bool:
    """Times finer than Python's."""
    import pyarrow as pa

    return bool(pa.types.is_temporal(kind) and getattr(kind, "unit", "") == "ns")


def _as_bytes(key: Any) -> bytes | None:
    return key.encode() if isinstance(key, str) else key


def _size(column: "pyarrow.Array") -> int:
    import pyarrow.compute as pc

    return pc.sum(pc.binary_length(column)).as_py() or 0
