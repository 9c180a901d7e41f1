"""The files that `tailrace produce` is given: what they are, and their bytes as they come."""

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath
from types import TracebackType
from typing import Self

from ..report import BadInput

_STDIN = 0
_EXTENSIONS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}


class InputFormat(StrEnum):
    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


def guess_format(path: str) -> InputFormat:
    """
    >>> guess_format("a/prices.CSV"), guess_format("-"), guess_format("notes.txt")
    (<InputFormat.CSV: 'csv'>, <InputFormat.LINES: 'lines'>, <InputFormat.LINES: 'lines'>)
    """
    return InputFormat(_EXTENSIONS.get(PurePath(path).suffix.lower(), "lines"))


def check_files(paths: Sequence[str]) -> int | None:
    """How many bytes they have together, None if nobody can know; BadInput before anything is sent if one is not there.

    They are not opened: a pipe can be opened once only.
    """
    total: int | None = 0
    for path in paths:
        try:
            status = os.fstat(_STDIN) if path == "-" else os.stat(path)
        except (OSError, ValueError) as seen:
            raise BadInput(
                f"{'stdin' if path == '-' else path}: {getattr(seen, 'strerror', None) or seen}. Nothing was sent"
            ) from None
        if stat.S_ISDIR(status.st_mode):
            raise BadInput(f"{path} is a folder; name the files in it. Nothing was sent")
        total = total + status.st_size if total is not None and stat.S_ISREG(status.st_mode) else None
    return total


@dataclass(slots=True)
class InputFile:
    """The bytes of a file, or of stdin for `-`, in pieces as they come: a slow pipe is never waited for to fill one."""

    path: str
    waiting: Callable[[], AbstractContextManager[None]]  # around every call that may wait for somebody else
    on_read: Callable[[int], None]
    _handle: int = -1

    @property
    def name(self) -> str:
        return "stdin" if self.path == "-" else self.path

    def __enter__(self) -> Self:
        try:
            with self.waiting():
                self._handle = _STDIN if self.path == "-" else os.open(self.path, os.O_RDONLY)
        except (OSError, ValueError) as seen:
            raise BadInput(f"{self.name} cannot be read: {getattr(seen, 'strerror', None) or seen}") from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.path != "-":
            os.close(self._handle)

    def read(self, size: int) -> bytes:
        """Some bytes; none at the end."""
        try:
            with self.waiting():
                piece = os.read(self._handle, size)
        except OSError as seen:
            raise BadInput(f"{self.name} cannot be read on: {seen.strerror or seen}") from None
        self.on_read(len(piece))
        return piece
