"""A Parquet file that appears whole or not at all: written beside its place, flushed, then renamed."""

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ....streams import Batch, arrow_schema
from ..report import OutputProblem

if TYPE_CHECKING:
    import pyarrow

_GROUP_BYTES, _GROUP_ROWS = 64 << 20, 1 << 20  # a row group is written when this much waits


class ParquetOutput:
    """Columns stream, shard, position, timestamp, key, value."""

    lasting = False

    def __init__(self, path: str) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        if os.path.exists(path) and not os.path.isfile(path):
            raise OutputProblem(f"{path} is no plain file, and this would take its place; use another name")
        self._path = path = os.path.realpath(path)
        folder, name = os.path.split(path)
        self._draft = os.path.join(folder, f".{name}.{os.getpid()}.draft")
        self._waiting: list[pyarrow.Table] = []
        self._waiting_bytes = self._waiting_rows = 0
        found = arrow_schema()
        order = ("shard", "position", "timestamp", "key", "value")
        stream = pa.field("stream", pa.dictionary(pa.int32(), pa.string()), nullable=False)
        self._schema = pa.schema([stream, *(found.field(column) for column in order)])
        self._problems = (OSError, pa.ArrowException)
        try:
            self._file: Any = pq.ParquetWriter(self._draft, self._schema, compression="zstd")
        except self._problems as seen:
            self._clear()
            raise OutputProblem(f"{path} cannot be written: {seen}. Nothing was read") from None

    def write(self, batch: Batch, count: int) -> None:
        import pyarrow as pa

        table = batch.to_arrow().slice(0, count)
        name = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count), pa.array([batch.stream]))
        columns = {"stream": name, **{column: table.column(column) for column in table.column_names}}
        self._waiting.append(pa.table([columns[field.name] for field in self._schema], schema=self._schema))
        self._waiting_bytes += batch.end - batch.start
        self._waiting_rows += count
        if self._waiting_bytes >= _GROUP_BYTES or self._waiting_rows >= _GROUP_ROWS:
            self._write_group()

    def abandoned(self) -> bool:
        return False

    def finish(self) -> None:
        self._write_group()
        try:
            self._file.close()
            _sync(self._draft)
            os.replace(self._draft, self._path)
            _sync(os.path.dirname(self._path))
        except self._problems as seen:
            raise self._failed(seen) from None
        self._file = None

    def discard(self) -> None:
        if self._file is not None:
            with suppress(*self._problems):
                self._file.close()
            self._file = None
            self._clear()

    def _write_group(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        table = pa.concat_tables(self._waiting).unify_dictionaries()
        self._waiting, self._waiting_bytes, self._waiting_rows = [], 0, 0
        try:
            self._file.write_table(table, row_group_size=max(1, table.num_rows))
        except self._problems as seen:
            raise self._failed(seen) from None

    def _failed(self, seen: Exception) -> OutputProblem:
        return OutputProblem(f"{self._path} could not be written: {seen}. There is no part of it")

    def _clear(self) -> None:
        with suppress(OSError):
            os.unlink(self._draft)


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
