"""Figures, their medians and spreads, and how they are shown."""

import os
import platform
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: what is measured, in which unit, and what we want it to be (None: it is a limit or an extra)."""

    name: str
    unit: str
    what: str
    goal: float | None = None


def summarise(figures: Sequence[Figure], runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The medians."""
    return {figure.name: _rounded(statistics.median(run[figure.name] for run in runs)) for figure in figures}


def spread(figures: Sequence[Figure], runs: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """[lowest, highest] of the repeats."""
    return {
        figure.name: [_rounded(pick(run[figure.name] for run in runs)) for pick in (min, max)] for figure in figures
    }


def result(
    figures: Sequence[Figure], runs: Sequence[Mapping[str, float]], settings: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "summary": summarise(figures, runs),
        "spread": spread(figures, runs),
        "figures": [{"name": f.name, "unit": f.unit, "what": f.what, "goal": f.goal} for f in figures],
        "settings": dict(settings),
        "machine": machine(),
        "runs": [{name: _rounded(value) for name, value in run.items()} for run in runs],
    }


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def table(result: Mapping[str, Any]) -> "Table":
    """A result as a table for people."""
    from rich.table import Table

    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    rows = Table(title=f"Medians of {len(result['runs'])} repeats ({settings})", title_justify="left")
    for heading in ("figure", "median", "lowest", "highest", "unit", "goal", "what"):
        rows.add_column(heading, justify="right" if heading in ("median", "lowest", "highest", "goal") else "left")
    for figure in result["figures"]:
        name, goal = figure["name"], figure["goal"]
        low, high = result["spread"][name]
        median = result["summary"][name]
        mark = "" if goal is None else f"{shown(goal)} {'met' if median >= goal else 'missed'}"
        rows.add_row(name, shown(median), shown(low), shown(high), figure["unit"], mark, figure["what"])
    return rows


def goals_table(
    title: str,
    figures: Sequence[Mapping[str, Any]],
    result: Mapping[str, Any],
    *,
    at_most: Collection[str],
    disturbed: bool,
) -> "Table":
    """These figures with their goals, of which those in `at_most` are upper bounds. When others had disturbed the run,
    whether a goal is met is left open."""
    from rich.table import Table

    settings = ", ".join(f"{name} {value}" for name, value in result["settings"].items())
    rows = Table(title=f"{title}: medians of {len(result['runs'])} repeats ({settings})", title_justify="left")
    for heading in ("figure", "median", "lowest", "highest", "unit", "goal", "what"):
        rows.add_column(heading, justify="right" if heading in ("median", "lowest", "highest", "goal") else "left")
    for figure in figures:
        name, goal = figure["name"], figure["goal"]
        median, (low, high) = result["summary"][name], result["spread"][name]
        mark = ""
        if goal is not None:
            below = name in at_most
            met = median <= goal if below else median >= goal
            verdict = "unsure, disturbed" if disturbed else "met" if met else "missed"
            mark = f"{'at most ' if below else ''}{goal:g} {verdict}"
        rows.add_row(name, shown(median), shown(low), shown(high), figure["unit"], mark, figure["what"])
    return rows


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
