"""Which way the rows of an input take, by its format."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..report import BadInput
from .csv_rows import csv_rows
from .files import InputFile, InputFormat
from .json_lines import json_fields
from .lines import key_before, parsed_rows, plain_rows, split_lines
from .parquet_rows import parquet_rows
from .rows import BadRow, Rows

_ESCAPED = 6  # a byte of a message takes up to so many in JSON, as in \u0007
_AROUND_BYTES = 1 << 16  # … and the fields that are not sent take some too


@dataclass(frozen=True, slots=True)
class Fields:
    """Where key and value are: columns by name, or a separator between the two on a line."""

    key: str | None = None
    value: str | None = None
    separator: bytes | None = None


def rows_of(file: InputFile, format_: InputFormat, fields: Fields, message_bytes_max: int) -> Iterator[Rows | BadRow]:
    """The rows of one open input, in order."""
    if format_ is InputFormat.PARQUET:
        if file.path == "-":
            raise BadInput("Parquet is read from its end, which a pipe does not have: name a file. Nothing was sent")
        return parquet_rows(file.path, fields.key, fields.value, file.on_read)
    if format_ is InputFormat.LINES:
        lines = split_lines(file.read, message_bytes_max + len(fields.separator or b""))
        if fields.separator is None:
            return plain_rows(lines)
        return parsed_rows(lines, key_before(fields.separator), keyed=True)
    lines = split_lines(file.read, _ESCAPED * message_bytes_max + _AROUND_BYTES)
    if format_ is InputFormat.JSONL:
        return parsed_rows(lines, json_fields(fields.key, fields.value), keyed=fields.key is not None)
    return csv_rows(lines, file.name, fields.key, fields.value, cell_bytes_max=message_bytes_max)
