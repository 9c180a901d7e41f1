"""What the benchmark of the copy tree found, as tables for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..report import goals_table, shown
from .run import AT_MOST, FIGURES

if TYPE_CHECKING:
    from rich.table import Table

#: Which of the two is better, of what both have.
_BOTH = ("hop_p50_ms", "hop_p99_ms", "pair_mb_per_s", "cpu_s_per_gb")


def tables(result: Mapping[str, Any]) -> "list[Table]":
    found = [goals_table("Copy tree", result["figures"], result, at_most=AT_MOST, disturbed=False)]
    for peer, figures in result.get("peers", {}).items():
        found.append(_beside(peer, figures, result["summary"]))
    return found


def _beside(peer: str, figures: Mapping[str, Any], ours: Mapping[str, float]) -> "Table":
    from rich.table import Table

    if "left_out" in figures:
        return Table(title=f"{peer} is left out: {figures['left_out']}", title_justify="left")
    rows = Table(title=f"Beside {peer}, in the same run", title_justify="left")
    for heading in ("figure", "ours", peer, "times", "unit"):
        rows.add_column(heading, justify="left" if heading in ("figure", "unit") else "right")
    units = {figure.name: figure.unit for figure in FIGURES}
    for name in _BOTH:
        less = name != "pair_mb_per_s"
        times = figures[name] / ours[name] if less else ours[name] / figures[name]
        rows.add_row(name, shown(ours[name]), shown(figures[name]), f"{times:.3g}", units[name])
    return rows
