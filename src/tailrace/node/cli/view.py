"""`tailrace view`: a stream as keys and values."""

import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Annotated

import typer

from ...streams import View
from .interrupt import Interrupt
from .options import DEFAULT_WORLD, Debug, Json, StreamName, WorldFolder, examples
from .render import json_text, printable
from .report import open_existing, reported, say, stdout_told

EPILOG = examples(
    "tailrace view prices",
    "tailrace view prices sku-1",
    "tailrace view prices sku-1 sku-2 --json",
    "tailrace view prices --follow",
)

_TICK_S = 0.1  # how soon a Ctrl-C is heard while nothing comes
_LINES = 1000  # written at a time
_WAITING_MAX = 10_000  # changes that wait for a slow terminal; then the view waits, too

Change = tuple[bytes, bytes | None]


def view(
    stream: StreamName,
    keys: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY…", help="Only these keys, as text; else all.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Then show changes as they come.")] = False,
    shards: Annotated[
        list[int] | None,
        typer.Option("--shard", metavar="N", help="Only this shard. Repeat it for several.", show_default=False),
    ] = None,
    world: WorldFolder = DEFAULT_WORLD,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show a stream as keys and values: the last message of each key, from the newest snapshot and the updates since.

    One key: its bytes as they are, and exit code 1 if it is not there. More, or all: a line each, or with --json an
    object each.
    """
    missing = False
    with (
        reported(as_json=json, debug=debug),
        open_existing(world) as opened,
        Interrupt() as interrupt,
        opened.view(stream, shards=shards) as seen,
    ):
        wanted = None if not keys else [key.encode() for key in dict.fromkeys(keys)]
        changes = _Changes(seen, wanted) if follow else None
        found = [(key, seen.get(key)) for key in wanted] if wanted else []
        missing = any(value is None for _, value in found)
        if wanted is not None and len(wanted) == 1 and not json and changes is None:
            _show_one(stream, *found[0])
        else:
            _show(found if wanted else seen.items(), as_json=json, interrupt=interrupt)
        if changes is not None:
            missing = False
            _show(changes.until(interrupt), as_json=json, interrupt=interrupt)
            changes.end()
    if missing:
        raise typer.Exit(1)


class _Changes:
    """Changes on their way from the view's thread to the terminal."""

    def __init__(self, seen: View, keys: list[bytes] | None) -> None:
        self._keys = None if keys is None else set(keys)
        self._waiting: queue.Queue[Change] = queue.Queue(_WAITING_MAX)
        self._over = threading.Event()
        self._unsubscribe = seen.on_change(self._heard)

    def _heard(self, key: bytes, value: bytes | None) -> None:
        while not self._over.is_set() and (self._keys is None or key in self._keys):
            try:
                self._waiting.put((key, value), timeout=_TICK_S)
                return
            except queue.Full:
                continue

    def until(self, interrupt: Interrupt) -> Iterator[Change | None]:
        """Each change; None when there is none for the moment."""
        while not interrupt.asked:
            try:
                yield self._waiting.get(timeout=_TICK_S)
            except queue.Empty:
                continue
            while not self._waiting.empty():
                yield self._waiting.get()
            yield None

    def end(self) -> None:
        self._over.set()
        self._unsubscribe()


def _show_one(stream: str, key: bytes, value: bytes | None) -> None:
    if value is None:
        say(f"{printable(key)} is not in {stream}")
        return
    with stdout_told():
        sys.stdout.buffer.write(value + (b"\n" if sys.stdout.isatty() else b""))
        sys.stdout.buffer.flush()


def _show(pairs: Iterable[Change | None], *, as_json: bool, interrupt: Interrupt) -> None:
    """Many lines at a time; None asks for what is waiting to be shown now."""
    render = _json_line if as_json else _line
    rest, lines = iter(pairs), ["…"]
    while lines and not interrupt.asked:
        lines = []
        for pair in islice(rest, _LINES):
            if pair is None:
                lines.append("")
                break
            lines.append(render(*pair))
        with stdout_told():
            sys.stdout.buffer.write("".join(lines).encode())
            sys.stdout.buffer.flush()


def _line(key: bytes, value: bytes | None) -> str:
    r"""
    >>> _line(b"sku-1", b"9.99"), _line(b"sku-1", None)
    ('sku-1\t9.99\n', 'sku-1\t(no value)\n')
    """
    return f"{printable(key)}\t{'(no value)' if value is None else printable(value)}\n"


def _json_line(key: bytes, value: bytes | None) -> str:
    r"""
    >>> _json_line(b"sku-1", None)
    '{"key":"sku-1","value":null}\n'
    """
    return f'{{"key":{json_text(key)},"value":{json_text(value)}}}\n'
