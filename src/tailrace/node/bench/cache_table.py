"""The cache's figures for people: the goals first, then a line for every system in every case."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .report import goals_table, shown
from .score import AT_MOST, OTHERS, OTHERS_MAX

if TYPE_CHECKING:
    from rich.table import Table

_MEASURES = (
    "p50_us",
    "p99_us",
    "server_cpu_us_per_op",
    "cpu_us_per_op",
    "vs_best_peer",
    "vs_ideal_client",
    "of_memcpy",
)
_PEERS, _OURS = ("memcached", "redis"), ("shm", "tcp", "shm_r32", "tcp_r32")


def tables(result: Mapping[str, Any]) -> "list[Table]":
    return [_goals(result), _cases(result)]


def _goals(result: Mapping[str, Any]) -> "Table":
    cases = tuple(f"{case}_" for case in result["tried"])
    compared = [figure for figure in result["figures"] if not figure["name"].startswith(cases)]
    disturbed = result["summary"][OTHERS.name] > OTHERS_MAX
    rows = goals_table("Cache", compared, result, at_most=AT_MOST, disturbed=disturbed)
    for missing in result["missing"]:
        rows.add_row("", "", "", "", "", "", missing)
    return rows


def _cases(result: Mapping[str, Any]) -> "Table":
    from rich.table import Table

    rows = Table(title="Keys per second of one client thread; call times and CPU time", title_justify="left")
    headings = ("case", "system", "keys/s", "lowest", "highest", "p50 us", "p99 us", "server CPU us/key", "CPU us/key")
    for heading in (*headings, "x best peer", "x ideal client", "of memcpy", "client that counted most often"):
        rows.add_column(
            heading, justify="left" if heading in ("case", "system", "client that counted most often") else "right"
        )
    for case in result["tried"]:
        for system in _systems(result, case):
            name = f"{case}_{system}"
            rate = f"{name}_ops_per_s"
            counted = result["counted"][case].get(system, [])
            rows.add_row(
                case,
                system,
                *(_shown(value) for value in (result["summary"][rate], *result["spread"][rate])),
                *(_shown(result["summary"].get(f"{name}_{measure}")) for measure in _MEASURES),
                max(counted, key=counted.count) if counted else "",
                end_section=system == "memcpy",
            )
    return rows


def _systems(result: Mapping[str, Any], case: str) -> Iterator[str]:
    names = [name for peer in _PEERS for name in (peer, f"{peer}_tcp", f"{peer}_ideal")]
    return (name for name in (*names, *_OURS, "loopback", "memcpy") if f"{case}_{name}_ops_per_s" in result["summary"])


def _shown(value: float | None) -> str:
    return "" if value is None else shown(value)
