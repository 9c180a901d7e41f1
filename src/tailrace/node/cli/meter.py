"""Progress on stderr while something long runs: only when a person looks at it, and rich is loaded only then."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from .units import show_size

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Meter:
    """Counts bytes and messages, and shows both with their rates."""

    def __init__(self, what: str, total_bytes: int | None, *, shown: bool | None = None) -> None:
        self._what, self._total_bytes = what, total_bytes
        self._shown = sys.stderr.isatty() if shown is None else shown
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._began_s = time.monotonic()
        self.count_bytes = self.messages = 0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began_s

    def add(self, count_bytes: int, messages: int = 0) -> None:
        self.count_bytes += count_bytes
        self.messages += messages
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self.count_bytes, said=self._said())

    def __enter__(self) -> Self:
        if self._shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[said]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=False,  # results go where the caller sent them
                redirect_stderr=False,
            )
            self._task = self._progress.add_task(self._what, total=self._total_bytes, said="")
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Out of the way while something else is written."""
        if self._progress is not None:
            self._progress.stop()
        yield
        if self._progress is not None:
            self._progress.start()

    def _said(self) -> str:
        rate = self.count_bytes / max(self.seconds, 1e-9)
        messages = f"{self.messages:,} messages  " if self.messages else ""
        return f"{show_size(self.count_bytes)}  {messages}{show_size(rate)}/s"
