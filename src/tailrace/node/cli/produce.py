"""`tailrace produce`: send the rows of files, or of stdin, into a stream."""

from contextlib import ExitStack
from typing import Annotated, Any

import typer

from ...errors import ConfigError, TailraceError
from .inputs import Fields, InputFile, InputFormat, check_files, guess_format, rows_of
from .interrupt import Interrupt
from .meter import Meter
from .options import DEFAULT_WORLD, Debug, Json, StreamName, WorldFolder, duration, examples, separator
from .report import INTERRUPTED, open_or_make, reported, say, show_json
from .sender import Sender
from .units import show_duration, show_size

EPILOG = examples(
    "printf 'hello\\nworld\\n' | tailrace produce greetings",
    "tailrace produce prices --shards 4 --key-separator '\\t' prices.tsv",
    "tailrace produce prices prices.jsonl --key sku",
    "tailrace produce prices prices.parquet --key sku --value price",
    "tail -f app.log | tailrace produce logs --buffer 10ms",
)


def produce(
    stream: StreamName,
    files: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Files to send; - is stdin.")] = None,
    format_: Annotated[
        InputFormat | None,
        typer.Option("--format", help="What the files are; guessed from their extension.", show_default=False),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", metavar="FIELD", help="The column or field with the key.", show_default=False),
    ] = None,
    value: Annotated[
        str | None,
        typer.Option(
            "--value",
            metavar="FIELD",
            help="The column or field with the value; without it, the whole row as JSON.",
            show_default=False,
        ),
    ] = None,
    key_separator: Annotated[
        bytes | None,
        typer.Option(
            "--key-separator",
            parser=separator,
            metavar="TEXT",
            help="In lines: the key ends and the value begins at the first of these. \\t is a tab.",
            show_default=False,
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            "--shards", metavar="N", help="Make the stream with so many, if it is not there yet.", show_default=False
        ),
    ] = None,
    shard: Annotated[
        int | None, typer.Option("--shard", metavar="N", help="Send everything to this shard.", show_default=False)
    ] = None,
    buffer: Annotated[
        float | None,
        typer.Option(
            "--buffer",
            parser=duration,
            metavar="DURATION",
            help="Make messages durable and visible after this time at the latest, by default 100ms.",
            show_default=False,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Count rows that cannot be sent, and go on.")] = False,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Send lines or rows to a stream.

    The stream is made on first use. Each line of stdin, or each row of a file, is a message. In lines, only the newline
    is taken away: an empty line is an empty message, and all other bytes pass as they are.

    A key decides a message's shard. Without keys, groups of messages take turns over the shards; order holds within a
    shard. When the command ends with exit code 0, everything is durable.
    """
    interrupted = False
    with reported(as_json=json, debug=debug), ExitStack() as stack:
        paths = files or ["-"]
        formats = [format_ or guess_format(path) for path in paths]
        fields = _fields(formats, key, value, key_separator)
        total_bytes = check_files(paths)
        settings: dict[str, Any] = {} if buffer is None else {"buffer_s": buffer}
        opened = stack.enter_context(open_or_make(world))
        producer = opened.producer(stream, shards=shards, only=None if shard is None else [shard], **settings)
        message_bytes_max = opened.stream_config(stream).message_bytes_max
        sender = Sender(producer, shard, skip_bad)
        interrupt = stack.enter_context(Interrupt())
        meter = Meter(f"to {stream}", total_bytes)
        try:
            with meter:
                try:
                    for path, kind in zip(paths, formats, strict=True):
                        with InputFile(path, interrupt.waiting, meter.add) as file:
                            for rows in rows_of(file, kind, fields, message_bytes_max):
                                sender.take(file.name, rows)
                                meter.add(0, sender.messages - meter.messages)
                                interrupt.check()
                except KeyboardInterrupt:
                    interrupted = True
                finally:
                    producer.close()
        except TailraceError as problem:
            _tell_how_far(problem, sender, producer.flushed_count)
            raise
        _summary(stream, sender, meter.seconds, interrupted, json)
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def _fields(formats: list[InputFormat], key: str | None, value: str | None, separator: bytes | None) -> Fields:
    lines = InputFormat.LINES in formats
    if lines and (key is not None or value is not None):
        raise ConfigError("--key and --value name columns, and lines have none; use --key-separator, or --format")
    if separator is not None and set(formats) != {InputFormat.LINES}:
        raise ConfigError("--key-separator is for lines; use --key and --value with other formats")
    if separator == b"" or separator == b"\n":
        raise ConfigError("--key-separator: use at least one character that is not a newline")
    return Fields(key, value, separator)


def _tell_how_far(problem: TailraceError, sender: Sender, durable: int) -> None:
    if sender.messages:
        problem.took_effect = True if durable == sender.messages else None
        problem.add_note(f"{sender.messages:,} messages were taken before it, of which {durable:,} are durable.")


def _summary(stream: str, sender: Sender, seconds: float, interrupted: bool, as_json: bool) -> None:
    rate = sender.messages / max(seconds, 1e-9)
    say(
        f"{'interrupted: ' if interrupted else ''}{sender.messages:,} messages, {show_size(sender.size_bytes)} to "
        f"{stream} in {show_duration(seconds)}: {rate:,.0f} messages/s, "
        f"{show_size(sender.size_bytes / max(seconds, 1e-9))}/s"
        + (f"; {sender.skipped:,} bad rows skipped" if sender.skipped else "")
    )
    if as_json:
        show_json(
            {
                "stream": stream,
                "messages": sender.messages,
                "size_bytes": sender.size_bytes,
                "skipped": sender.skipped,
                "seconds": round(seconds, 6),
                "messages_per_s": round(rate, 3),
                "interrupted": interrupted,
            }
        )
