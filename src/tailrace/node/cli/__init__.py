"""The command line: `tailrace …`. Commands are thin: they parse, call the rooms below, and say what came of it.

Loading it must stay quick, so pyarrow and rich are imported inside the functions that use them.
"""

from importlib import metadata
from typing import Annotated

import typer

from . import (
    bench,
    cache,
    consume,
    demo,
    monitor,
    node,
    pipeline,
    produce,
    rollout,
    streams,
    topology,
    up,
    verify,
    view,
)
from .options import examples

__all__ = ["app", "main"]

app = typer.Typer(
    name="tailrace",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=examples(
        "tailrace streams create prices --shards 4",
        "printf 'sku-1\\t9.99\\n' | tailrace produce prices --key-separator '\\t'",
        "tailrace consume prices",
        "tailrace verify",
    ),
)


def _version(asked: bool) -> None:
    if asked:
        print(f"tailrace {metadata.version('tailrace')}")
        raise typer.Exit


@app.callback()
def tailrace(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Ordered messages from a few producers to thousands of consumers, through plain files.

    Everything of a world lies in one folder: name it with --world on each command, or once in TAILRACE_WORLD.

    \b
    Exit codes:
      0    done
      1    damage was found, or the demo failed
      2    wrong usage or settings
      3    the world refused: disk full, shut out by a newer producer, …
      130  interrupted
    """


app.command("produce", epilog=produce.EPILOG)(produce.produce)
app.command("consume", epilog=consume.EPILOG)(consume.consume)
app.command("view", epilog=view.EPILOG)(view.view)
app.add_typer(streams.app, name="streams")
app.add_typer(pipeline.app, name="pipeline")
app.command("monitor", epilog=monitor.EPILOG)(monitor.monitor)
app.command("verify", epilog=verify.EPILOG)(verify.verify)
app.add_typer(cache.app, name="cache")
app.command("node", epilog=node.EPILOG)(node.node)
app.command("up", epilog=up.EPILOG)(up.up)
app.command("rollout", epilog=rollout.EPILOG)(rollout.rollout)
app.add_typer(topology.app, name="topology")
app.add_typer(bench.app, name="bench")
app.command("demo", epilog=demo.EPILOG)(demo.demo)


def main() -> None:
    app(prog_name="tailrace")
