"""`tailrace bench`: measure this machine. What is measured, and how, is decided in `tailrace.node.bench`."""

import os
import sys
import tempfile
from typing import Annotated

import typer

from ...errors import ConfigError
from .options import Debug, Json, examples
from .report import reported, say, show_json, stdout_told

_WIDE = 240

app = typer.Typer(
    help="Measure how fast this machine is.",
    epilog=examples("tailrace bench streams", "tailrace bench streams --repeats 5 --json > bench.json"),
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
        from rich.console import Console

        # A file has no width: give every column the room it needs.
        console = Console(width=None if sys.stdout.isatty() else _WIDE)
        with stdout_told():
            console.print(table(result))
