"""The result of `tailrace bench spark` for people."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


AT_MOST = {
    "overhead_p90_s",
    "state_calls_growth",
    "state_bytes_growth",
    "full_outage_p90_vs_normal",
}  # figures whose goal is an upper bound


def tables(result: Mapping[str, Any]) -> "list[Table]":
    from rich.table import Table

    rates = Table(title=f"Rows per second: medians of {result['settings']['repeats']} repeats", title_justify="left")
    for heading in ("who", "what", "message", "rows/s", "MB/s", "lowest", "highest"):
        rates.add_column(heading, justify="left" if heading in ("who", "what") else "right")
    for row in sorted(result["rows"], key=lambda row: (row["message_bytes"], row["what"], -row["rows_per_s"])):
        low, high = row["spread"]
        size = f"{row['message_bytes']} B"
        rates.add_row(
            row["who"], row["what"], size, f"{row['rows_per_s']:,}", f"{row['mb_per_s']:,}", f"{low:,}", f"{high:,}"
        )
    summary = Table(title="Medians; of ratios the least over all sizes and kinds", title_justify="left")
    for heading in ("figure", "value", "lowest", "highest", "goal"):
        summary.add_column(heading, justify="left" if heading == "figure" else "right")
    for name, value in result["summary"].items():
        goal = result["goals"].get(name)
        met = goal is None or (value <= goal if name in AT_MOST else value >= goal)
        verdict = "" if goal is None else f"{goal:g} {'met' if met else 'missed'}"
        low, high = result["spread"].get(name, (value, value))
        summary.add_row(name, f"{value:,g}", f"{low:,g}", f"{high:,g}", verdict)
    return [*([rates] if result["rows"] else []), *_outages(result.get("outages")), summary]


def _outages(told: Mapping[str, Any] | None) -> "list[Table]":
    from rich.table import Table

    if told is None:
        return []
    table = Table(title=f"Outages of one site of three; the state on {told['state']}", title_justify="left")
    sites = list(told["phases"][0]["messages_per_s"])
    for heading in ("phase", *(f"{site}: messages/s" for site in sites), "p50 s", "p90 s", "longest s"):
        table.add_column(heading, justify="left" if heading == "phase" else "right")
    for one in told["phases"]:
        rates = [f"{one['messages_per_s'][site]:,.0f}" for site in sites]
        delays = [
            "-" if one[name] is None else f"{one[name]:.2f}" for name in ("delay_p50_s", "delay_p90_s", "delay_max_s")
        ]
        table.add_row(one["phase"], *rates, *delays)
    return [table]
