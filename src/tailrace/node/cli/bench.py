"""`tailrace bench`: measure this machine. What is measured, and how, is decided in `tailrace.node.bench`."""

import os
import sys
import tempfile
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import ConfigError
from .options import Debug, Json, examples
from .report import reported, say, show_json, stdout_told

if TYPE_CHECKING:
    from rich.table import Table

_WIDE = 240
Directory = Annotated[
    str | None,
    typer.Option("--directory", metavar="DIR", help="Where streams lie: the disk to measure.", show_default=False),
]
PeersFolder = Annotated[
    str | None,
    typer.Option(
        "--peers-folder",
        metavar="DIR",
        help="Where peers that can be fetched are kept.  [default: tailrace/peers in the user's cache folder]",
        show_default=False,
    ),
]
Quick = Annotated[
    bool, typer.Option("--quick", help="Tiny amounts, and nothing is fetched: shows that it runs, not how fast.")
]

app = typer.Typer(
    help="Measure how fast this machine is.",
    epilog=examples(
        "tailrace bench streams",
        "tailrace bench cache",
        "tailrace bench fanout",
        "tailrace bench spark",
        "tailrace bench copytree",
        "tailrace bench streams --json > bench.json",
    ),
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def bench() -> None:
    """Measure how fast this machine is."""


@app.command(
    epilog=examples(
        "tailrace bench streams",
        "tailrace bench streams --repeats 5 --json > bench.json",
        "tailrace bench streams --directory /mnt/fast",
    )
)
def streams(
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each measurement.")] = 5,
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="DIR", help="Where the files go: the disk to measure.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A fiftieth of the amounts: shows that it runs, not how fast.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure producers and consumers here."""
    with reported(as_json=json, debug=debug):
        from ..bench import streams as measurement
        from ..bench import table

        where = directory or tempfile.gettempdir()
        if not os.path.isdir(where):
            raise ConfigError(f"--directory: there is no folder {where!r}; make it, or name another")
        result = measurement.run(repeats=repeats, directory=where, progress=say, scale=0.02 if quick else 1.0)
        if json:
            show_json(result)
            return
        _print([table(result)])


@app.command(
    epilog=examples("tailrace bench cache", "tailrace bench cache --repeats 9 --json > bench.json"),
)
def cache(
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each measurement.")] = 5,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny amounts: shows that it runs, not how fast.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure the cache beside memcached and Redis, as far as they are installed here."""
    with reported(as_json=json, debug=debug):
        from ..bench import cache as measurement
        from ..bench.cache_table import tables

        result = measurement.run(repeats=repeats, progress=say, quick=quick)
        if json:
            show_json(result)
            return
        _print(tables(result))


@app.command(
    epilog=examples(
        "tailrace bench fanout",
        "tailrace bench fanout --consumers 1,16,64 --repeats 3 --json > bench.json",
    ),
)
def fanout(
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each measurement; each takes minutes.")
    ] = 1,
    consumers: Annotated[
        str | None,
        typer.Option(
            "--consumers", metavar="N,…", help="Numbers of consumers.  [default: 1,4,16,64,256]", show_default=False
        ),
    ] = None,
    directory: Directory = None,
    peers_folder: PeersFolder = None,
    quick: Quick = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure one stream with many consumers beside Kafka, NATS, RabbitMQ and Redis, as far as they can be had."""
    with reported(as_json=json, debug=debug):
        from ..bench.fanout import run as measurement
        from ..bench.fanout.table import tables

        if directory is not None and not os.path.isdir(directory):
            raise ConfigError(f"--directory: there is no folder {directory!r}; make it, or name another")
        numbers: tuple[int, ...] = measurement.CONSUMERS_QUICK if quick else measurement.CONSUMERS
        if consumers is not None:
            numbers = _numbers(consumers, measurement.CONSUMERS_MAX)
        result = measurement.run(
            peers_folder or _peers_folder(),
            repeats=repeats,
            consumers=numbers,
            directory=directory,
            progress=say,
            quick=quick,
        )
        if json:
            show_json(result)
            return
        _print(tables(result))


@app.command(
    epilog=examples(
        "tailrace bench spark",
        "tailrace bench spark --only source,pipeline",
        "tailrace bench spark --repeats 9 --kills 20 --json > bench.json",
    ),
)
def spark(
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each measurement.")] = 3,
    only: Annotated[
        str | None,
        typer.Option(
            "--only",
            metavar="PARTS",
            help="Some of source, pipeline, sites, state, outages, kills.",
            show_default=False,
        ),
    ] = None,
    kills: Annotated[
        int, typer.Option("--kills", metavar="N", min=0, help="How often a driver is killed, and a site; 20 s each.")
    ] = 5,
    directory: Directory = None,
    peers_folder: PeersFolder = None,
    quick: Quick = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure Spark's source, sink and pipelines beside its own formats and Kafka, and kill drivers and sites."""
    with reported(as_json=json, debug=debug):
        from ..bench.spark import run as measurement
        from ..bench.spark.table import tables

        if directory is not None and not os.path.isdir(directory):
            raise ConfigError(f"--directory: there is no folder {directory!r}; make it, or name another")
        result = measurement.run(
            peers_folder or _peers_folder(),
            repeats=repeats,
            directory=directory,
            progress=say,
            quick=quick,
            kill_count=kills,
            parts=measurement.PARTS if only is None else [part.strip() for part in only.split(",")],
        )
        if json:
            show_json(result)
            return
        _print(tables(result))


@app.command(
    epilog=examples("tailrace bench copytree", "tailrace bench copytree --wan 40 --peers --json > bench.json"),
)
def copytree(
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs; each takes a minute.")] = 1,
    wan: Annotated[
        float, typer.Option("--wan", metavar="MS", min=0, help="Delay between clusters, one way; it is subtracted.")
    ] = 10.0,
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="DIR", help="Where clusters lie: the disk to measure.", show_default=False),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Beside Kafka with MirrorMaker 2, if it can be had; minutes more.")
    ] = False,
    peers_folder: PeersFolder = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny amounts: shows that it runs, not how fast.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure copies between clusters: what a hop adds, what a pair of workers carries, how soon a world heals."""
    with reported(as_json=json, debug=debug):
        from ..bench.copytree import run as measurement
        from ..bench.copytree.table import tables

        where = directory or tempfile.gettempdir()
        if not os.path.isdir(where):
            raise ConfigError(f"--directory: there is no folder {where!r}; make it, or name another")
        result = measurement.run(
            repeats=repeats,
            directory=where,
            wan_s=wan / 1000,
            progress=say,
            quick=quick,
            peers_folder=(peers_folder or _peers_folder()) if peers else None,
        )
        if json:
            show_json(result)
            return
        _print(tables(result))


def _numbers(text: str, most: int) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= most for number in numbers):
        raise ConfigError(
            f"--consumers {text!r}: use numbers from 1 to {most} with commas between them, as in 1,16,256"
        )
    return numbers


def _print(tables: "list[Table]") -> None:
    from rich.console import Console

    # A file has no width: give every column the room it needs.
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    with stdout_told():
        for table in tables:
            console.print(table)


def _peers_folder() -> str:
    cache_folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return os.path.join(cache_folder, "tailrace", "peers")
