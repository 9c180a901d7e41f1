"""Text to stdout or to a file, written out after each batch."""

import os
import select
import stat
import sys
from typing import BinaryIO, Literal

from ....streams import Batch
from ..render import Render
from ..report import OutputProblem, stdout_told


class TextOutput:
    """A file is begun anew, or, with `durable`, gone on with: who asks for that commits, and reads nothing twice."""

    lasting = True

    def __init__(self, render: Render, path: str | None, *, durable: bool) -> None:
        self._render, self._path = render, path
        try:
            goes_on = durable and path is not None and os.path.isfile(path)
            self._file: BinaryIO = sys.stdout.buffer if path is None else _open(path, "r+b" if goes_on else "wb")
            self._durable = durable and path is not None and os.path.isfile(path)  # a pipe or a device is not
            if goes_on:
                self._end_last_line()
        except OSError as seen:
            raise OutputProblem(f"{path} cannot be written: {seen.strerror or seen}. Nothing was read") from None

    def write(self, batch: Batch, count: int) -> None:
        messages = batch.messages()
        content = self._render(messages if count == len(messages) else messages[:count])
        if self._path is None:
            with stdout_told():
                self._file.write(content)
                self._file.flush()
            return
        try:
            self._file.write(content)
            self._file.flush()
            if self._durable:
                os.fsync(self._file.fileno())
        except OSError as seen:
            problem = OutputProblem(f"{self._path} cannot be written on: {seen.strerror or seen}. Its end is missing")
            problem.took_effect = None
            raise problem from None

    def abandoned(self) -> bool:
        """A pipe whose other end has gone would only tell at the next write, and that may be far away."""
        if self._path is not None or not stat.S_ISFIFO(os.fstat(self._file.fileno()).st_mode):
            return False
        look = select.poll()
        look.register(self._file.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in look.poll(0))

    def finish(self) -> None:
        if self._path is not None:
            self._file.close()

    def discard(self) -> None:
        self.finish()

    def _end_last_line(self) -> None:
        """A run that was killed may have left half a line: what comes now must not become its other half."""
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")


def _open(path: str, mode: Literal["r+b", "wb"]) -> BinaryIO:
    return open(path, mode)
