"""`tailrace monitor --world-file`: the hops of a world's copy trees, again and again."""

import time
from contextlib import ExitStack
from typing import Any

from ..hop_monitor import WorldMonitor, described
from ..metrics import MetricsDoor, hops_text_of
from .interrupt import Interrupt
from .report import say, show, show_json, table_lines
from .units import show_size

_LOOK_S = 0.5


def watch_hops(
    path: str, streams: list[str], seconds: float | None, every_s: float, listen: str | None, *, as_json: bool
) -> None:
    with Interrupt() as interrupt, WorldMonitor(path, streams) as watching, ExitStack() as stack:
        latest: dict[str, Any] = described(watching.look())
        if listen is not None:
            door = MetricsDoor(listen, lambda: hops_text_of(latest))
            stack.callback(door.close)
            say(f"metrics at http://{door.address}/metrics")
        now_s = time.monotonic()
        end_s, show_s = None if seconds is None else now_s + seconds, now_s + every_s
        while not interrupt.asked and (end_s is None or time.monotonic() < end_s):
            time.sleep(_LOOK_S if end_s is None else max(0.0, min(_LOOK_S, end_s - time.monotonic())))
            latest = described(watching.look())
            if not as_json and time.monotonic() >= show_s:
                show_s += every_s
                show("\n".join(_lines(latest)))
        if as_json:
            show_json(latest)


def _lines(report: dict[str, Any]) -> list[str]:
    rows = [
        [
            one["stream"],
            f"{hop['from']} > {hop['to']}",
            hop["state"],
            *("-" if hop[name] is None else f"{hop[name]:.1f}" for name in ("delay_p50_ms", "delay_p99_ms")),
            show_size(hop["behind_bytes"]),
        ]
        for one in report["streams"]
        for hop in one["hops"]
    ]
    told = [f"{one['stream']}: {one['trouble']}" for one in report["streams"] if one["trouble"]]
    return [*table_lines(["STREAM", "HOP", "STATE", "P50 MS", "P99", "BEHIND"], rows), *told, ""]
