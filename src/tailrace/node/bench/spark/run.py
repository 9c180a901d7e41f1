"""The whole of `tailrace bench spark`: its parts, one after the other, and one result.

source   source and sink beside Parquet, text and Kafka            contest.py
pipeline a pipeline beside a plain Spark job, and what it adds     pipelines.py
sites    two sites beside one, and sites that are killed           sites.py
state    what the state store has to do and to hold                state_store.py
outages  three sites of which one goes out, in several ways        outages.py
kills    a query whose driver is killed again and again            kills.py
"""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

from ....errors import ConfigError
from ..fanout.peers.install import Installer
from ..report import machine
from . import kills, outages, pipelines, sites, state_store
from .contest import SHARDS, Cell, Contest, Progress, ratios

PARTS = ("source", "pipeline", "sites", "state", "outages", "kills")
FIGURES = [*pipelines.FIGURES, *sites.FIGURES, *state_store.FIGURES, *outages.FIGURES]
SOURCE_GOALS = {"source_vs_kafka": 2.0, "source_vs_parquet": 0.8, "source_vs_text": 0.45}
_WARM_UPS = 5
_FAST = 3  # scans of files are repeated so many times more often than what takes long
_FULL_BYTES, _QUICK_BYTES = 250_000_000, 400_000


def run(
    peers_folder: str,
    *,
    repeats: int = 3,
    directory: str | None = None,
    progress: Progress = lambda line: None,
    quick: bool = False,
    kill_count: int = 5,
    parts: Sequence[str] = PARTS,
) -> dict[str, Any]:
    """`quick` shrinks every amount, kills hardly anything and fetches nothing: good only to see that it runs."""
    if unknown := [part for part in parts if part not in PARTS]:
        raise ConfigError(f"there is no part {unknown[0]!r} of this; there are: {', '.join(PARTS)}")
    if find_spec("pyspark") is None:
        raise ConfigError("this measures Spark, which is not installed here: pip install 'tailrace[spark]'")
    rounds = 1 if quick else repeats
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="tailrace-spark-", dir=directory)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        acts: dict[str, Callable[[str], Mapping[str, Any]]] = {
            "source": lambda place: _source(place, peers_folder, rounds, quick, progress),
            "pipeline": lambda place: _figures(
                pipelines.measure(
                    place,
                    rounds=rounds,
                    lines=20_000 if quick else 2_000_000,
                    live_s=1.0 if quick else 3.0,
                    units=16 if quick else 64,
                    progress=progress,
                )
            ),
            "sites": lambda place: _figures(
                sites.measure(
                    place,
                    rounds=rounds,
                    lines=20_000 if quick else 4_000_000,  # some seconds: how they begin must not decide
                    kill_count=2 if quick else kill_count,
                    progress=progress,
                )
            ),
            "state": lambda place: _figures(
                state_store.measure(place, units=20 if quick else 100, progress=progress),
            ),
            "outages": lambda place: _outages(place, 1.5 if quick else 10.0, progress),
            "kills": lambda place: _kills(place, 0 if quick else kill_count, progress),
        }
        found: dict[str, Mapping[str, Any]] = {}
        for part in PARTS:
            if part in parts:
                place = os.path.join(folder, part)
                os.makedirs(place)
                found[part] = acts[part](place)
                shutil.rmtree(place, ignore_errors=True)
    return assembled(found, {"repeats": rounds, "quick": quick, "parts": [part for part in PARTS if part in parts]})


def assembled(found: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """One result of what the parts came to."""
    result: dict[str, Any] = {"summary": {}, "spread": {}, "goals": {}, "rows": [], "kills": None, "missing": []}
    for part in found.values():
        for name, value in part.items():
            if isinstance(result.get(name), dict):
                result[name] |= value
            else:
                result[name] = value
    # Killed drivers of queries and killed sites of pipelines: none counts unless all came out exact.
    survived = found.get("kills", {}).get("kills")
    by_driver = survived["kills"] if survived and not survived["missing"] and not survived["surplus"] else 0
    if "sites" in found or "kills" in found:
        result["summary"]["exactly_once_kills"] = by_driver + int(result["summary"].get("pipeline_kills", 0))
    return {**result, "settings": dict(settings), "machine": machine()}


def _source(folder: str, peers_folder: str, rounds: int, quick: bool, progress: Progress) -> Mapping[str, Any]:
    with ExitStack() as stack:
        installer = Installer(peers_folder, fetch=not quick, progress=progress)
        contest = Contest(folder, installer, stack, progress, _QUICK_BYTES if quick else _FULL_BYTES)
        stack.callback(contest.spark.stop)
        for number in range(1 if quick else _WARM_UPS):
            progress(f"warm-up {number + 1}, not counted")
            contest.round(slow=number == 0)
        taken, count = [], rounds if quick else rounds * _FAST
        for number in range(count):
            progress(f"round {number + 1} of {count}")
            taken.append(contest.round(slow=quick or number % _FAST == 0))
        return compared(taken, contest.counts) | {"missing": contest.missing}


def compared(taken: Sequence[dict[Cell, float]], counts: Mapping[int, int]) -> dict[str, Any]:
    """What rounds in seconds say. `counts`: rows by the size of a message. The summary has the least of the ratios over
    all sizes and kinds."""
    summary: dict[str, float] = {}
    spread: dict[str, list[float]] = {}
    for name, peer, writes in (
        ("source_vs_kafka", "kafka", False),
        ("source_vs_parquet", "parquet", False),
        ("source_vs_text", "text", False),
        ("source_vs_ceiling", "ceiling", False),
        ("sink_vs_parquet", "parquet", True),
    ):
        if found := ratios(taken, peer, writes=writes):
            least = min(found.values(), key=statistics.median)
            summary[name] = _rounded(statistics.median(least))
            spread[name] = [_rounded(min(least)), _rounded(max(least))]
    rows = []
    for cell in sorted(
        {cell for one in taken for cell in one}, key=lambda cell: (cell.message_bytes, cell.what, cell.who)
    ):
        rates = [counts[cell.message_bytes] / one[cell] for one in taken if cell in one]
        rows.append(
            {
                "who": cell.who,
                "what": cell.what,
                "message_bytes": cell.message_bytes,
                "rows_per_s": round(statistics.median(rates)),
                "mb_per_s": round(statistics.median(rates) * cell.message_bytes / 1e6, 1),
                "spread": [round(min(rates)), round(max(rates))],
            }
        )
    return {
        "summary": summary,
        "spread": spread,
        "goals": {name: goal for name, goal in SOURCE_GOALS.items() if name in summary},
        "rows": rows,
        "sizes": {"shards": SHARDS, "messages": dict(counts)},
    }


def _figures(values: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    return {
        "summary": {name: _rounded(statistics.median(some)) for name, some in values.items()},
        "spread": {name: [_rounded(min(some)), _rounded(max(some))] for name, some in values.items()},
        "goals": {figure.name: figure.goal for figure in FIGURES if figure.goal is not None and figure.name in values},
    }


def _outages(folder: str, phase_s: float, progress: Progress) -> dict[str, Any]:
    told = outages.measure(folder, phase_s=phase_s, progress=progress)
    return {**_figures({name: [value] for name, value in told.pop("summary").items()}), "outages": told}


def _kills(folder: str, count: int, progress: Progress) -> dict[str, Any]:
    if not count:
        return {}
    progress(f"killing a query's driver {count} times")
    survived = kills.run(folder, kills=count, messages=60_000, bytes_per_batch=200_000)
    progress(f"{survived.kills} kills, {survived.missing} messages missing, {survived.surplus} too many")
    return {"kills": asdict(survived)}


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
