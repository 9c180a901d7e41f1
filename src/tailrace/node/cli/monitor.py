"""`tailrace monitor`: follow streams as a consumer does, and say how late messages come and whether they are right."""

import time
from contextlib import ExitStack
from typing import Annotated, Any

import typer

from ...errors import ConfigError
from ...streams import Monitor
from ..metrics import MetricsDoor, text_of
from ..world import World
from .hops import watch_hops
from .interrupt import Interrupt
from .options import DEFAULT_WORLD, Debug, Json, WorldFolder, duration, examples
from .report import DAMAGED, open_existing, reported, say, show, show_json, table_lines
from .units import show_duration, show_size

EPILOG = examples(
    "tailrace monitor prices",
    "tailrace monitor prices --for 10s --json",
    "tailrace monitor prices clicks --listen 127.0.0.1:9464",
    "tailrace monitor --world-file world.toml --listen 127.0.0.1:9464",
)
_STEP_S = 0.2


def monitor(
    streams: Annotated[
        list[str] | None, typer.Argument(metavar="STREAM…", help="The streams to follow.", show_default=False)
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option("--for", metavar="TIME", parser=duration, help="End after this time.", show_default=False),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", metavar="TIME", parser=duration, help="How often to show it.")
    ] = "2s",  # type: ignore[assignment]  # parsed
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Read everything from the files, too, and compare.")
    ] = True,
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Serve /metrics for Prometheus here.", show_default=False),
    ] = None,
    world_file: Annotated[
        str | None,
        typer.Option(
            "--world-file", metavar="FILE", help="Watch the hops of this world's copy trees.", show_default=False
        ),
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Follow streams from now on, and show for each shard how late messages come, where their bytes come from, whether
    they equal the durable bytes, and what is the matter if none come.

    Ends with exit code 1 if any bytes differed.

    With --world-file: follow the streams in every cluster of a world, and show what each hop of their copy trees adds,
    how far it is behind, and where a stream is stuck if it is: at a hop, or because its producer is silent.
    """
    if world_file is not None:
        with reported(as_json=json, debug=debug):
            watch_hops(world_file, streams or [], seconds, every, listen, as_json=json)
        return
    unequal = False
    with (
        reported(as_json=json, debug=debug),
        _with_streams(world, streams) as opened,
        Interrupt() as interrupt,
        opened.monitor(*(streams or ()), compare=compare) as watching,
        ExitStack() as stack,
    ):
        latest: dict[str, Any] = watching.report()
        if listen is not None:
            door = MetricsDoor(listen, lambda: text_of(latest))
            stack.callback(door.close)
            say(f"metrics at http://{door.address}/metrics")
        end_s = None if seconds is None else time.monotonic() + seconds
        while not interrupt.asked and (end_s is None or time.monotonic() < end_s):
            _watch(watching, interrupt, every if end_s is None else min(every, end_s - time.monotonic()))
            latest = watching.report()
            if not json:
                show("\n".join(_lines(latest)))
        unequal = latest["unequal_bytes"] > 0
        if json:
            show_json(latest)
    if unequal:
        raise typer.Exit(DAMAGED)


def _with_streams(world: str, streams: list[str] | None) -> World:
    if not streams:
        raise ConfigError("name the streams to follow, or a world's file with --world-file")
    return open_existing(world)


def _watch(watching: Monitor, interrupt: Interrupt, seconds: float) -> None:
    end_s = time.monotonic() + seconds
    while not interrupt.asked and (left_s := end_s - time.monotonic()) > 0:
        watching.step(min(left_s, _STEP_S))


def _lines(report: dict[str, Any]) -> list[str]:
    rows = [
        [
            f"{one['stream']}/{one['shard']}",
            one["state"],
            f"{one['messages']:,}",
            f"{show_size(int(one['bytes_per_s']))}/s",
            *(f"{one[name]:.1f}" for name in one if name.startswith("delay_")),
            show_size(max(0, one["durable_end"] - one["position"])),
            "-" if one["producer_silent_s"] is None else show_duration(one["producer_silent_s"]),
            "-" if not one["compared_bytes"] else "equal" if not one["unequal_bytes"] else "UNEQUAL",
        ]
        for one in report["shards"]
    ]
    head = ["SHARD", "STATE", "MESSAGES", "RATE", "P50 MS", "P99", "P99.9", "P99.99", "BEHIND", "SILENT", "BYTES"]
    sources = ", ".join(f"{show_size(count)} {source}" for source, count in report["bytes_from"].items() if count)
    return [*table_lines(head, rows), f"from: {sources or 'the files alone'}", ""]
