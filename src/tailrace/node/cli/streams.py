"""`tailrace streams …`: make, look at, change and delete streams."""

import sys
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from ...config import Retention, encode
from ...errors import ConfigError, TailraceError
from .options import DEFAULT_WORLD, Debug, Json, StreamName, WorldFolder, count, duration, examples, or_none, size
from .report import open_existing, open_or_make, reported, say, show, show_json, show_table
from .standing import describe_shards, describe_stream, show_stream
from .units import show_size

app = typer.Typer(
    help="Make, look at, change and delete streams.",
    epilog=examples(
        "tailrace streams create prices --shards 4", "tailrace streams list", "tailrace streams show prices"
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)

RetainAge = Annotated[
    Any,
    typer.Option(
        "--retain-age",
        parser=or_none(duration),
        metavar="DURATION",
        help="Files may go when they are older than this; `none`: age does not matter.",
        show_default=False,
    ),
]
RetainBytes = Annotated[
    Any,
    typer.Option(
        "--retain-bytes",
        parser=or_none(size),
        metavar="SIZE",
        help="Files may go while a shard holds more than this; `none`: size does not matter.",
        show_default=False,
    ),
]
RetainFor = Annotated[
    list[str] | None,
    typer.Option(
        "--retain-for",
        metavar="CHECKPOINT",
        help="Keep what this checkpoint has not passed. Repeat it for several; `none`: wait for nobody.",
        show_default=False,
    ),
]

RetainSnapshots = Annotated[
    Any,
    typer.Option(
        "--retain-snapshots",
        parser=or_none(count),
        metavar="N",
        help="Keep so many snapshots a shard, and what they need; `none`: snapshots do not matter.",
        show_default=False,
    ),
]


@app.command(
    epilog=examples(
        "tailrace streams create prices --shards 4",
        "tailrace streams create rates --retain-snapshots 2",
        "tailrace streams create clicks --file-bytes 64MiB --retain-age 7d --retain-for billing",
    )
)
def create(
    stream: StreamName,
    shards: Annotated[
        int | None, typer.Option("--shards", metavar="N", help="Fixed for the stream's life.", show_default=False)
    ] = None,
    file_bytes: Annotated[
        int | None,
        typer.Option(
            "--file-bytes", parser=size, metavar="SIZE", help="A new file after this many bytes.", show_default=False
        ),
    ] = None,
    file_age: Annotated[
        float | None,
        typer.Option(
            "--file-age", parser=duration, metavar="DURATION", help="A new file after this time.", show_default=False
        ),
    ] = None,
    message_bytes_max: Annotated[
        int | None,
        typer.Option(
            "--message-bytes-max", parser=size, metavar="SIZE", help="The largest message taken.", show_default=False
        ),
    ] = None,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_for: RetainFor = None,
    retain_snapshots: RetainSnapshots = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a stream. What is not said comes from tailrace.toml in the world's folder, if there is one."""
    with reported(as_json=json, debug=debug), open_or_make(world) as opened:
        said = {"shards": shards, "file_bytes": file_bytes, "file_s": file_age, "message_bytes_max": message_bytes_max}
        settings: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        base = opened.config.stream(stream).retention
        kept = _retention(base, retain_age, retain_bytes, retain_for, retain_snapshots)
        config = opened.create_stream(stream, **settings, retention=kept)
        if json:
            show_json({"stream": stream, "settings": encode(config)})
        else:
            show(f"made the stream {stream} with {config.shards} {'shard' if config.shards == 1 else 'shards'}")


@app.command("list", epilog=examples("tailrace streams list", "tailrace streams list --world /srv/prices --json"))
def list_(world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False) -> None:
    """List the streams and how much each holds."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        rows: list[dict[str, Any]] = []
        for name in opened.streams():
            try:
                shards = opened.stream_status(name)
            except TailraceError as problem:  # one that is damaged must not hide the others
                say(f"tailrace: {problem}")
                rows.append({"stream": name, "problem": str(problem)})
                continue
            rows.append({"stream": name, "shards": len(shards), **describe_shards(shards)})
        if json:
            show_json({"streams": rows})
        elif rows:
            show_table(
                ["STREAM", "SHARDS", "MESSAGES", "BYTES"],
                [
                    [row["stream"], "?", "?", "?"]
                    if "problem" in row
                    else [row["stream"], str(row["shards"]), f"{row['messages']:,}", show_size(row["size_bytes"])]
                    for row in rows
                ],
            )
        else:
            say("no streams yet")


@app.command("show", epilog=examples("tailrace streams show prices", "tailrace streams show prices --json"))
def show_(stream: StreamName, world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False) -> None:
    """Show a stream's settings, what each shard holds, and how far its checkpoints have come."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        described = describe_stream(opened, stream)
        if json:
            show_json(described)
        else:
            show_stream(described)


@app.command(
    "set",
    epilog=examples(
        "tailrace streams set prices --retain-age 7d",
        "tailrace streams set prices --retain-bytes 10GB --retain-for billing --retain-for audit",
        "tailrace streams set prices --retain-snapshots 2",
        "tailrace streams set prices --retain-age none --retain-bytes none --retain-for none --retain-snapshots none",
    ),
)
def set_(
    stream: StreamName,
    retain_age: RetainAge = None,
    retain_bytes: RetainBytes = None,
    retain_for: RetainFor = None,
    retain_snapshots: RetainSnapshots = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Change how long a stream keeps its messages. What is not said stays as it is."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        if retain_age is None and retain_bytes is None and retain_for is None and retain_snapshots is None:
            raise ConfigError("nothing to set: use --retain-age, --retain-bytes, --retain-for or --retain-snapshots")
        before = opened.stream_config(stream).retention
        kept = _retention(before, retain_age, retain_bytes, retain_for, retain_snapshots)
        config = opened.set_retention(stream, kept)
        if json:
            show_json({"stream": stream, "settings": encode(config)})
        else:
            show(f"set; in force for {stream} from the next new file or `tailrace streams trim {stream}` on")


@app.command(epilog=examples("tailrace streams trim prices"))
def trim(stream: StreamName, world: WorldFolder = DEFAULT_WORLD, json: Json = False, debug: Debug = False) -> None:
    """Delete the files that the stream's retention lets go, now. Producers do it whenever they begin a new file."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        collected = opened.trim(stream)
        files, size_bytes = sum(one.segments for one in collected), sum(one.size_bytes for one in collected)
        old = sum(one.snapshots for one in collected)
        if json:
            shards = [{"shard": shard, **asdict(one)} for shard, one in enumerate(collected)]
            totals = {"files": files, "size_bytes": size_bytes, "snapshots": old}
            show_json({"stream": stream, **totals, "shards": shards})
        else:
            also = f", and {_counted(old, 'snapshot')}" if old else ""
            show(f"deleted {_counted(files, 'file')}, {show_size(size_bytes)}{also}")


@app.command(
    epilog=examples("tailrace streams snapshot prices", "tailrace streams snapshot prices --shard 0 --json"),
)
def snapshot(
    stream: StreamName,
    shard: Annotated[
        int | None, typer.Option("--shard", metavar="N", help="Only this shard.", show_default=False)
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a snapshot of each shard: the last value of each key, up to now. Views load it and follow from there.

    Run it now and then, for example by cron; with --retain-snapshots, files that no snapshot needs then go.
    """
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        taken = opened.snapshot(stream, shard)
        if json:
            show_json({"stream": stream, "snapshots": [asdict(one) for one in taken]})
        else:
            show_table(
                ["SHARD", "POSITION", "KEYS", "BYTES", ""],
                [
                    [
                        str(one.shard),
                        str(one.position),
                        f"{one.keys:,}",
                        show_size(one.size_bytes),
                        "" if one.fresh else "nothing new since it was made",
                    ]
                    for one in taken
                ],
            )


def _counted(number: int, word: str) -> str:
    return f"{number} {word if number == 1 else word + 's'}"


@app.command(epilog=examples("tailrace streams delete prices", "tailrace streams delete prices --yes"))
def delete(
    stream: StreamName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Delete a stream with all its messages and checkpoints. There is no way back."""
    with reported(as_json=json, debug=debug), open_existing(world) as opened:
        opened.stream_config(stream)
        if not yes:
            if json or not sys.stdin.isatty():
                raise ConfigError(f"deleting {stream!r} takes all its messages with it; say --yes if you mean it")
            if not typer.confirm(f"Delete the stream {stream} with all its messages and checkpoints?", err=True):
                say("nothing was deleted")
                return
        opened.delete_stream(stream)
        if json:
            show_json({"stream": stream, "deleted": True})
        else:
            show(f"deleted the stream {stream}")


def _retention(base: Retention, age_s: Any, size_bytes: Any, waits_for: list[str] | None, snapshots: Any) -> Retention:
    """`base` with what was said on the command line: None was not said, `none` takes it away."""
    said: dict[str, Any] = {}
    if age_s is not None:
        said["age_s"] = None if age_s == "none" else age_s
    if size_bytes is not None:
        said["size_bytes"] = None if size_bytes == "none" else size_bytes
    if waits_for:
        said["waits_for"] = () if waits_for == ["none"] else tuple(dict.fromkeys(waits_for))
    if snapshots is not None:
        said["keeps_snapshots"] = None if snapshots == "none" else snapshots
    return replace(base, **said)
