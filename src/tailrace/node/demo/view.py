"""How the demo looks: a live table on a terminal, a line a second elsewhere."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Group


class Shown(Protocol):
    """All that is to be seen at a moment: as one line, or as something for a terminal."""

    elapsed_s: float
    notes: list[str]

    def line(self) -> str: ...

    def render(self) -> "Group": ...


@dataclass(slots=True)
class Row:
    name: str
    pid: int = 0
    state: str = "starting"
    total: int = 0
    rate: float = 0.0
    p50_ms: float | None = None
    p99_ms: float | None = None


@dataclass(slots=True)
class Picture:
    """Processes and how fast they are."""

    elapsed_s: float = 0.0
    rows: list[Row] = field(default_factory=list)
    flushed: int = 0
    notes: list[str] = field(default_factory=list)

    def line(self) -> str:
        parts = [f"{self.elapsed_s:5.1f} s", f"flushed {self.flushed:,}"]
        for row in self.rows:
            delay = "" if row.p99_ms is None else f" p50 {row.p50_ms:.0f} ms p99 {row.p99_ms:.0f} ms"
            parts.append(
                f"{row.name} {row.rate:,.0f}/s{delay}" if row.state == "running" else f"{row.name} {row.state}"
            )
        return "  ".join(parts)

    def render(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=f"Tailrace, {self.elapsed_s:.1f} s: {self.flushed:,} messages flushed", title_justify="left"
        )
        for heading in ("process", "pid", "state", "messages", "messages/s", "delay p50", "delay p99"):
            table.add_column(heading, justify="left" if heading in ("process", "state") else "right")
        for row in self.rows:
            style = "" if row.state == "running" else "bold red" if "killed" in row.state else "dim"
            delays = ("", "") if row.p50_ms is None else (f"{row.p50_ms:.1f} ms", f"{row.p99_ms:.1f} ms")
            table.add_row(row.name, str(row.pid), row.state, f"{row.total:,}", f"{row.rate:,.0f}", *delays, style=style)
        return Group(table, *(Text(note) for note in self.notes))


class View:
    """Shows pictures. On a terminal in place; else one line a second, and each note once."""

    def __init__(self, live: bool, write: Callable[[str], None]) -> None:
        self._write, self._noted, self._shown_s = write, 0, -1.0
        self._live = None
        if live:
            from rich.live import Live

            self._live = Live(refresh_per_second=8)
            self._live.start()

    def show(self, picture: Shown) -> None:
        if self._live is not None:
            self._live.update(picture.render())
            return
        for note in picture.notes[self._noted :]:
            self._write(note)
        self._noted = len(picture.notes)
        if picture.elapsed_s - self._shown_s >= 1.0:
            self._shown_s = picture.elapsed_s
            self._write(picture.line())

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
