"""Processes around one cell: a backend that never rests, with or without an engine, and clients with links to it.

A value says itself what it is, as in the cell's own tests: whoever reads it can tell a true one from any other.
"""

from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tailrace.native.cell import SLAB_BYTES, Cell, Outcome
from tailrace.native.engine import Engine, Link, State

from ..cell.actors import describe, is_true

KEYS = [b"hot key %d" % number for number in range(24)]
PASSING = [b"passing %d" % number for number in range(400)]


def busy_backend(path: Path, channel: Connection, seed: int, clock: int = 0) -> None:
    """Sets, erases, expires, evicts and grows until told to stop, or killed. Says "ready" when all keys are there."""
    draw = Random(seed)
    cell = Cell(path, 64 * SLAB_BYTES, 12 * SLAB_BYTES, 2)
    told = False
    while not channel.poll():
        for key in KEYS:
            clock += 1
            value = describe(key, (clock, seed, 0), draw.choice([0, 100, 4096, 20_000, 100_000]))
            assert cell.set(key, value, (clock, seed, 0)) == Outcome.APPLIED
        if not told:
            channel.send("ready")
            told = True
        for _ in range(5):
            clock += 1
            name = draw.choice(PASSING)
            value = describe(name, (clock, seed, 0), draw.choice([10, 3000]))
            cell.set(name, value, (clock, seed, 0), expiry_s=draw.choice([0, 5]), now_s=1)
        cell.erase(draw.choice(KEYS), (clock + 1, seed, 0))
        clock += 1
        cell.collect(draw.choice([1, 6]), 20)
    channel.send(cell.stats())


def busy_client(address: tuple[str, int], channel: Connection, ticket: bytes, calls: int) -> None:
    """A number of calls of each kind; then what was seen, as counts."""
    latest: dict[bytes, tuple[int, int, int]] = {}
    draw = Random(calls)
    seen = {"true": 0, "wrong": 0, "backwards": 0} | {state.name: 0 for state in State}
    with Link(*address, ticket, 60.0) as link:
        for number in range(calls):
            keys = draw.sample(KEYS, 16) + draw.sample(PASSING, 16)
            answers = link.read(keys, 0) if number % 4 == 3 else link.scan(keys, 0, draw.choice([0, 5000, 1 << 20]))
            for key, (state, value, version) in zip(keys, answers, strict=True):
                seen[state.name] += 1
                if version is None:
                    continue
                seen["backwards"] += version < latest.get(key, (0, 0, 0))
                latest[key] = version
                if value is not None:
                    seen["true" if is_true(key, version, value) else "wrong"] += 1
        seen |= {"changed_hands": link.stats()["changed_hands"], "unproven": link.stats()["unproven"]}
    channel.send(seen)


def calm_backend(path: Path, channel: Connection, keys: int, size: int, settings: dict[str, int | float]) -> None:
    """A cell that is filled once, and its engine, in a process that then waits for its channel, holding the lock."""
    cell = Cell(path, 256 * SLAB_BYTES, 200 * SLAB_BYTES, 1 << 14)
    for number in range(keys):
        cell.set(b"key %d" % number, bytes([number % 251]) * size, (number + 1, 0, 0))
    with Engine(path, **settings) as engine:  # type: ignore[arg-type]
        while True:
            channel.send(engine.address)
            engine.admit(channel.recv(), 60.0)
