"""`tailrace consume`: read messages of streams, to the terminal, to a program, or into a file."""

import os
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from ...errors import ConfigError
from ...streams import Consumer
from ..world import World
from . import render
from .interrupt import Interrupt
from .meter import Meter
from .options import DEFAULT_WORLD, Debug, WorldFolder, examples, position_or_time, rate
from .outputs import Output, ParquetOutput, TextOutput
from .pump import pump
from .report import INTERRUPTED, open_existing, reported, say
from .units import show_duration, show_size

EPILOG = examples(
    "tailrace consume prices",
    "tailrace consume prices --follow --from latest",
    "tailrace consume prices --checkpoint billing --limit 1000 --json",
    "tailrace consume prices --from 2026-03-01T12:00:00Z --format parquet --output prices.parquet",
    "tailrace consume prices --shard 0 --from 4096 --format raw | head",
)


class OutputFormat(StrEnum):
    HUMAN = "human"
    JSONL = "jsonl"
    RAW = "raw"
    PARQUET = "parquet"


def consume(
    streams: Annotated[list[str], typer.Argument(metavar="STREAM", help="One stream or several.")],
    start: Annotated[
        Any,
        typer.Option(
            "--from",
            parser=position_or_time,
            metavar="WHERE",
            help="Where to begin: earliest, latest, a time, or a position. A checkpoint that stands somewhere wins.",
        ),
    ] = "earliest",
    shards: Annotated[
        list[int] | None,
        typer.Option("--shard", metavar="N", help="Only this shard. Repeat it for several.", show_default=False),
    ] = None,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint",
            metavar="NAME",
            help="Begin where this checkpoint stands, and move it on as messages are written out.",
            show_default=False,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more at the end.")] = False,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="End after so many messages.", show_default=False)
    ] = None,
    format_: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="How messages are written, by default human.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write to this file, not to stdout.", show_default=False),
    ] = None,
    bytes_per_s: Annotated[
        float | None,
        typer.Option("--rate", parser=rate, metavar="SIZE/s", help="Read no faster than this.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="The same as --format jsonl; errors come as JSON too.")] = False,
    world: WorldFolder = DEFAULT_WORLD,
    debug: Debug = False,
) -> None:
    """Read the messages of streams.

    It reads what is there now and ends; with --follow, it waits for more. With --checkpoint, messages count as done
    once they are written out, so a run that was cut short repeats a few of them and loses none.
    """
    interrupted = False
    with reported(as_json=json, debug=debug), open_existing(world) as opened, Interrupt() as interrupt:
        kind = _format(format_, json)
        path = None if output == "-" else output
        _check_output(kind, path, checkpoint)
        settings = {} if bytes_per_s is None else _paced(opened, bytes_per_s)
        begin = _start(opened, streams, start, shards)
        with opened.consumer(
            *streams, start=begin, shards=shards, checkpoint=checkpoint, follow=follow, **settings
        ) as consumer:
            out = _output(kind, path, consumer, durable=checkpoint is not None)
            with Meter("reading", None, shown=None if path is not None else False) as meter:
                try:
                    pump(
                        opened,
                        consumer,
                        out,
                        interrupt,
                        meter.add,
                        follow=follow,
                        limit=limit,
                        commits=bool(checkpoint),
                    )
                except BaseException:
                    out.discard()
                    raise
        if path is not None:
            took = show_duration(meter.seconds)
            say(f"{meter.messages:,} messages, {show_size(meter.count_bytes)} to {path} in {took}")
        interrupted = interrupt.asked and not follow
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _format(format_: OutputFormat | None, as_json: bool) -> OutputFormat:
    if as_json and format_ not in (None, OutputFormat.JSONL):
        raise ConfigError(f"--json means --format jsonl; leave out one of --json and --format {format_}")
    return OutputFormat.JSONL if as_json else format_ or OutputFormat.HUMAN


def _check_output(kind: OutputFormat, path: str | None, checkpoint: str | None) -> None:
    if kind is OutputFormat.PARQUET and path is None:
        raise ConfigError("--format parquet needs a file: use --output FILE")
    if kind is OutputFormat.PARQUET and checkpoint is not None and path is not None and os.path.lexists(path):
        raise ConfigError(
            f"{path} is there already, and a checkpoint does not bring its messages again: use another name"
        )


def _start(world: World, streams: list[str], start: Any, shards: list[int] | None) -> Any:
    """A position belongs to one shard of one stream."""
    if not isinstance(start, int):
        return start
    if len(streams) > 1:
        raise ConfigError(f"--from {start}: a position belongs to one stream; name only that")
    wanted = list(range(world.stream_config(streams[0]).shards)) if shards is None else shards
    if len(wanted) > 1:
        raise ConfigError(f"--from {start}: a position belongs to one shard; name it with --shard N")
    return dict.fromkeys(wanted, start)


def _paced(world: World, bytes_per_s: float) -> dict[str, Any]:
    """Batches of a tenth of a second, so that a low rate does not come in gulps."""
    batch_bytes = max(1, min(world.config.consumer.near_batch_bytes, int(bytes_per_s / 10)))
    return {"bytes_per_s": bytes_per_s, "batch_bytes": batch_bytes}


def _output(kind: OutputFormat, path: str | None, consumer: Consumer, *, durable: bool) -> Output:
    if kind is OutputFormat.PARQUET:
        assert path is not None
        return ParquetOutput(path)
    several = len({stream for stream, _ in consumer.positions}) > 1
    renders: dict[OutputFormat, render.Render] = {
        OutputFormat.HUMAN: partial(render.human, with_stream=several),
        OutputFormat.JSONL: render.jsonl,
        OutputFormat.RAW: render.raw,
    }
    return TextOutput(renders[kind], path, durable=durable)
