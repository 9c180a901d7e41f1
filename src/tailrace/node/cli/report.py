"""What the command line says and with which code it ends. One place, so that every command speaks alike.

Results go to stdout, everything else to stderr. An error that we expect is one line and advice, never a traceback.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

from ...errors import (
    CacheExists,
    CacheMissing,
    ConfigError,
    NameRefused,
    StreamExists,
    StreamMissing,
    TailraceError,
)
from ..world import World, open_world

DAMAGED, USAGE, REFUSED, INTERRUPTED = 1, 2, 3, 130

_WORLD_MARKS = ("coordination.db", "streams", "tailrace.toml")


class BadInput(TailraceError):
    """What was to be sent cannot be: a file that is not there, a row that is not what it should be."""


class OutputProblem(TailraceError):
    """What was read cannot be put where it should go."""


_USAGE_ERRORS = (ConfigError, NameRefused, StreamMissing, StreamExists, CacheMissing, CacheExists, BadInput)


@contextmanager
def stdout_told() -> Iterator[None]:
    """Around writing to stdout. What it did not take is given up; Python would else try again at exit, and complain."""
    try:
        yield
    except OSError as seen:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(seen, BrokenPipeError):
            raise
        problem = OutputProblem(f"stdout cannot be written: {seen.strerror or seen}. Some of the output is missing")
        problem.took_effect = True  # whatever was to be told has happened
        raise problem from None


def say(text: str) -> None:
    """A line for the person at the terminal."""
    print(text, file=sys.stderr, flush=True)


def show(text: str) -> None:
    """A line of the result."""
    with stdout_told():
        print(text, flush=True)


def show_json(result: Any) -> None:
    show(json.dumps(result, ensure_ascii=False, allow_nan=False))


def show_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Columns side by side, never wrapped or cut: they are read by people and by awk."""
    for line in table_lines(head, rows):
        show(line)


def table_lines(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """
    >>> table_lines(["NAME", "BYTES"], [["a", "10 B"], ["longer", "2.0 KiB"]])
    ['NAME    BYTES', 'a       10 B', 'longer  2.0 KiB']
    """
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def exit_code(problem: TailraceError) -> int:
    return USAGE if isinstance(problem, _USAGE_ERRORS) else REFUSED


def describe(problem: TailraceError) -> dict[str, Any]:
    """An error as --json shows it."""
    told = {"kind": type(problem).__name__, "message": str(problem), "took_effect": problem.took_effect}
    notes = getattr(problem, "__notes__", [])
    return {"error": told | ({"notes": notes} if notes else {})}


@contextmanager
def reported(*, as_json: bool, debug: bool) -> Iterator[None]:
    """Run a command's body; what goes wrong in it is told, and decides the exit code."""
    try:
        try:
            yield
        except TailraceError as problem:
            if debug:
                traceback.print_exc()
            say(f"tailrace: {problem}")
            for note in getattr(problem, "__notes__", []):
                say(note)
            if problem.took_effect is None:
                say("It may have taken effect.")
            elif not problem.took_effect:
                say("It did not take effect.")
            if as_json:
                show_json(describe(problem))
            raise typer.Exit(exit_code(problem)) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None  # whoever read our output has seen enough


def open_or_make(folder: str) -> World:
    """The world in a folder, made if it is not there."""
    return open_world(folder)


def open_existing(folder: str) -> World:
    """The world in a folder. Looking at a world never makes one: a mistyped name should say so."""
    if not any(os.path.lexists(os.path.join(folder, mark)) for mark in _WORLD_MARKS):
        raise ConfigError(
            f"there is no world in {folder!r}. Name its folder with --world or TAILRACE_WORLD; "
            "`tailrace streams create` and `tailrace produce` make one"
        )
    return open_world(folder)
