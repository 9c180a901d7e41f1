"""A cell with an engine, in this process or in one of its own, and tickets for it."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from conftest import freeze
from tailrace.native._cell import _weaken_hash as weaken_cell
from tailrace.native._engine import _weaken_hash as weaken_link
from tailrace.native.cell import SLAB_BYTES, Cell
from tailrace.native.engine import TICKET_BYTES, Engine, Link

from ..cell.places import folder
from .frames import Peer

SPAWN = multiprocessing.get_context("spawn")


def ticket_for(engine: Engine, valid_s: float = 60.0) -> bytes:
    ticket = os.urandom(TICKET_BYTES)
    engine.admit(ticket, valid_s)
    return ticket


def link_to(engine: Engine, deadline_s: float = 60.0) -> Link:
    return Link(*engine.address, ticket_for(engine), deadline_s)


def peer_of(engine: Engine, **more: Any) -> Peer:
    return Peer(engine.address, ticket_for(engine), **more)


def roomy_cell(path: Path, **more: Any) -> Cell:
    settings: dict[str, Any] = {"reserve_bytes": 256 * SLAB_BYTES, "capacity_bytes": 128 * SLAB_BYTES, "buckets": 64}
    return Cell(path, **(settings | more))


@contextmanager
def served(buckets: int = 64, **more: Any) -> Iterator[tuple[Cell, Engine]]:
    with folder() as path:
        cell = roomy_cell(path, buckets=buckets)
        with Engine(path, **more) as engine:
            yield cell, engine
        cell.close()


@contextmanager
def weak_hash(**masks: int) -> Iterator[None]:
    """Of keys in cells and in links alike."""
    weaken_cell(**masks)
    weaken_link(**masks)
    try:
        yield
    finally:
        weaken_cell()
        weaken_link()


class EngineProcess:
    """An engine whose process does nothing else. Its calls are made there."""

    def __init__(self, path: Path, files_max: int | None = None, **settings: Any) -> None:
        self.channel, theirs = SPAWN.Pipe()
        self.process = SPAWN.Process(target=_serve, args=(path, theirs, files_max, settings))
        self.process.start()
        theirs.close()
        self.address: tuple[str, int] = self._answer()

    def _answer(self) -> Any:
        assert self.channel.poll(60), "no answer from the engine's process"
        return self.channel.recv()

    def call(self, name: str, *arguments: Any) -> Any:
        self.channel.send((name, arguments))
        return self._answer()

    def admit(self, ticket: bytes, valid_s: float) -> None:
        self.call("admit", ticket, valid_s)

    def stats(self) -> dict[str, int]:
        result: dict[str, int] = self.call("stats")
        return result

    def anonymous_bytes(self) -> int:
        """Memory of its own: without the cell's, which it maps."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        (line,) = [line for line in text.splitlines() if line.startswith("RssAnon:")]
        return int(line.split()[1]) * 1024

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Nothing of it runs until `go_on`, or to the end."""
        assert self.process.pid is not None
        freeze(self.process.pid)
        try:
            yield
        finally:
            self.go_on()

    def go_on(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.join()


def _serve(path: Path, channel: Connection, files_max: int | None, settings: dict[str, Any]) -> None:
    import resource

    if files_max is not None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files_max, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with Engine(path, **settings) as engine:
        channel.send(engine.address)
        while True:
            name, arguments = channel.recv()
            channel.send(getattr(engine, name)(*arguments))
