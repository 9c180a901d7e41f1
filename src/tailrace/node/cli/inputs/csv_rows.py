"""CSV with a header line. Cells are bytes for keys and values, and text when a whole row becomes JSON."""

import csv
from collections.abc import Callable, Iterator

from ..report import BadInput
from .json_lines import to_json
from .lines import Lines
from .rows import BATCH_BYTES, BadRow, Draft, Rows

_Message = Callable[[list[str]], tuple[bytes, bytes | None]]


class _Feed:
    """Lines for the csv module, which asks for them one by one and may take several for one row."""

    def __init__(self, blocks: Iterator[Lines | BadRow]) -> None:
        self._blocks = blocks
        self._lines: Iterator[bytes] = iter(())
        self.left = 0  # lines that are there already, so that asking for the next one does not wait
        self.taken = 0

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            if isinstance(block, BadRow):
                raise _LineTooLong(block.why)
            self.left = len(block.content)
            for line in block.content:
                self.left -= 1
                self.taken += 1
                if self.taken == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                # Bytes that are not UTF-8 survive the way through the csv module as lone surrogates.
                yield line.decode(errors="surrogateescape") + "\n"


class _LineTooLong(Exception):
    pass


def csv_rows(
    blocks: Iterator[Lines | BadRow], name: str, key: str | None, value: str | None, cell_bytes_max: int
) -> Iterator[Rows | BadRow]:
    csv.field_size_limit(cell_bytes_max)  # of the process; an open quote would else take in the rest of the file
    feed = _Feed(blocks)
    reader = csv.reader(feed, strict=True)
    draft = Draft(keyed=key is not None)
    message: _Message | None = None
    while True:
        line = feed.taken + 1
        try:
            cells = next(reader)
            if not cells:
                continue
            if message is None:
                message = _message(_header(cells, name, key, value), key, value)
                continue
            draft.add(line, *message(cells))
        except StopIteration:
            break
        except _LineTooLong as wrong:
            yield from draft.take()
            raise BadInput(f"{name} line {line}: {wrong}. There may be a quote that nobody closed before it") from None
        except (csv.Error, ValueError) as wrong:
            if message is None:
                raise BadInput(f"{name} line {line}: not a CSV header: {wrong}. Nothing of it was sent") from None
            yield from draft.take()
            yield BadRow(line, str(wrong))
        if feed.left == 0 or draft.size_bytes >= BATCH_BYTES:
            yield from draft.take()
    yield from draft.take()


def _header(cells: list[str], name: str, key: str | None, value: str | None) -> list[str]:
    if len(set(cells)) < len(cells):
        raise BadInput(f"{name}: two columns have one name: {', '.join(cells)}. Nothing of it was sent")
    for wanted in (key, value):
        if wanted is not None and wanted not in cells:
            raise BadInput(
                f"{name} has the columns {', '.join(cells)}, but none named {wanted!r}. Nothing of it was sent"
            )
    return cells


def _message(header: list[str], key: str | None, value: str | None) -> _Message:
    """Value and key of a row. An empty cell is no key: CSV cannot tell the two apart."""
    key_at = None if key is None else header.index(key)
    value_at = None if value is None else header.index(value)

    def message(cells: list[str]) -> tuple[bytes, bytes | None]:
        if len(cells) != len(header):
            raise ValueError(f"{len(cells)} cells under a header of {len(header)}")
        found = None if key_at is None else _bytes(cells[key_at]) or None
        if value_at is not None:
            return _bytes(cells[value_at]), found
        try:
            return to_json(dict(zip(header, cells, strict=True))), found
        except UnicodeEncodeError:
            raise ValueError("not UTF-8, which JSON cannot hold; --value sends a column as it is") from None

    return message


def _bytes(cell: str) -> bytes:
    return cell.encode(errors="surrogateescape")
