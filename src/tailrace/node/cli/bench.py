"""`tailrace bench`: measure this machine. What is measured, and how, is decided in `tailrace.node.bench`."""

import importlib
import inspect
import os
import sys
import tempfile
from typing import Annotated, Any

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
    repeats: Annotated[int, typer.Option("--repeats", metavar="N", min=1, help="Runs of each measurement.")] = 3,
    seconds: Annotated[
        float | None,
        typer.Option("--seconds", metavar="S", min=0.1, help="About how long each run lasts.", show_default=False),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option("--directory", metavar="DIR", help="Where the files go: the disk to measure.", show_default=False),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Measure producers and consumers here."""
    with reported(as_json=json, debug=debug):
        run, table = load("tailrace.node.bench.streams", "run"), load("tailrace.node.bench", "table")
        more = {} if seconds is None else {"seconds": seconds}
        if more and "seconds" not in inspect.signature(run).parameters:
            raise ConfigError("--seconds: this measurement has a fixed size; leave it out, or use --repeats")
        where = directory or tempfile.gettempdir()
        if not os.path.isdir(where):
            raise ConfigError(f"--directory: there is no folder {where!r}; make it, or name another")
        result = run(repeats=repeats, directory=where, progress=say, **more)
        if json:
            show_json(result)
            return
        from rich.console import Console

        # A file has no width: give every column the room it needs.
        console = Console(width=None if sys.stdout.isatty() else _WIDE)
        with stdout_told():
            console.print(table(result))


def load(module: str, name: str) -> Any:
    """Something that is loaded only when it is asked for, and that an installation may lack."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not module.startswith(missing.name):
            raise
        raise ConfigError(f"this installation has no {module}; install all of Tailrace to use this command") from None
