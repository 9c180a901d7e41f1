"""`tailrace demo`: the whole story on one machine. What it shows is decided in `tailrace.node.demo`."""

from typing import Annotated

import typer

from .options import Debug, Json, examples
from .report import reported

EPILOG = examples("tailrace demo", "tailrace demo --chapter clusters", "tailrace demo --seconds 10 --no-view --json")


def demo(
    seconds: Annotated[float, typer.Option("--seconds", metavar="S", min=1.0, help="How long a chapter runs.")] = 10.0,
    chapters: Annotated[
        list[str] | None, typer.Option("--chapter", metavar="NAME", help="Only this one, and others named so.")
    ] = None,
    view: Annotated[bool, typer.Option("--view/--no-view", help="Show it live in the terminal.")] = True,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the whole story on this machine.

    It produces, consumes, breaks things, and checks that nothing was lost; if something was, it ends with exit code 1.
    """
    with reported(as_json=json, debug=debug):
        from ..demo import run

        code = run(seconds=seconds, view=view and not json, json=json, only=chapters or ())
    raise typer.Exit(code)
