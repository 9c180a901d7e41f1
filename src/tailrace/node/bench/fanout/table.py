"""The fan-out figures for people: the goals first, then a line for every system at every number of consumers."""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..report import goals_table, shown
from ..score import OTHERS, OTHERS_MAX
from .memcpy import Memcpy
from .ours import AMBASSADOR, READ, TCP, WIRE, Ours
from .score import AT_MOST, named
from .wake import Wake

if TYPE_CHECKING:
    from rich.table import Table

_COLUMNS = {
    "delivered MB/s": "mb_per_s",
    "producer MB/s": "producer_mb_per_s",
    "producer MB/s, consumers yield": "producer_first_mb_per_s",
    "p50 ms": "p50_ms",
    "p99 ms": "p99_ms",
    "p99.9 ms": "p999_ms",
    "lost": "lost",
    "p50 ms, busy": "busy_p50_ms",
    "p99 ms, busy": "busy_p99_ms",
    "MB/s, producer held": "held_mb_per_s",
    "server CPU s/GB": "server_cpu_s_per_gb",
    "client CPU s/GB": "client_cpu_s_per_gb",
}
_CELL = re.compile(r"n(\d+)_")


def tables(result: Mapping[str, Any]) -> "list[Table]":
    compared = [figure for figure in result["figures"] if not _CELL.match(figure["name"])]
    disturbed = result["summary"][OTHERS.name] > OTHERS_MAX
    goals = goals_table("Fan-out", compared, result, at_most=AT_MOST, disturbed=disturbed)
    for problem in [*result["missing"], *result["failed"]]:
        goals.add_row("", "", "", "", "", "", problem)
    return [goals, _cells(result)]


def _cells(result: Mapping[str, Any]) -> "Table":
    from rich.table import Table

    summary, versions = result["summary"], result["summary"]["peers"]
    rows = Table(title="One stream of 1 KB messages, more and more consumers", title_justify="left")
    for heading in ("consumers", "system", *_COLUMNS):
        rows.add_column(heading, justify="left" if heading == "system" else "right")
    numbers = sorted({int(found[1]) for figure in result["figures"] if (found := _CELL.match(figure["name"]))})
    for consumers in numbers:
        for system in (Memcpy.name, Wake.name, Ours.name, READ, TCP, WIRE, AMBASSADOR, *versions):
            values = [summary.get(named(consumers, system, measure)) for measure in _COLUMNS.values()]
            if any(value is not None for value in values):
                label = f"{system} {versions[system]}" if system in versions else system
                rows.add_row(str(consumers), label, *("" if value is None else shown(value) for value in values))
        rows.add_section()
    return rows
