"""Processes that write and read one cell, with values that say themselves what they are."""

import struct
import zlib
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from tailrace.native.cell import CellView, Outcome

from .places import small_cell

KEYS = [b"hot key %d" % number for number in range(6)]
PASSING = 43  # with these the index is as full as it gets, so that keys keep moving between their buckets
SAYS = struct.Struct("<QIII")  # the version, and the sum of the rest


def describe(key: bytes, version: tuple[int, int, int], size: int) -> bytes:
    body = key + Random(version[0]).randbytes(1) * size
    return SAYS.pack(*version, zlib.crc32(body)) + body


def is_true(key: bytes, version: tuple[int, int, int], value: bytes) -> bool:
    *said, total = SAYS.unpack_from(value)
    body = value[SAYS.size :]
    return tuple(said) == version and body.startswith(key) and zlib.crc32(body) == total


def write(path: Path, channel: Connection, seed: int, erasing: bool) -> None:
    """Set the keys once, say so, and go on until told to stop or killed. Sizes vary, to keep slots and slabs moving."""
    draw = Random(seed)
    cell, clock, passing = small_cell(path, slabs=16, buckets=1), 0, 0
    while not channel.poll():
        for key in KEYS:
            clock += 1
            size = draw.choice([0, 100, 4096, 20_000])
            assert cell.set(key, describe(key, (clock, seed, 0), size), (clock, seed, 0)) == Outcome.APPLIED
        if clock == len(KEYS):
            channel.send("ready")
        if erasing:
            cell.erase(draw.choice(KEYS), (clock + 1, seed, 0))
            clock += 1
            passing += 1
            cell.set(b"passing %d" % passing, bytes(draw.choice([10, 50_000])), (clock, seed, 1))
            cell.erase(b"passing %d" % (passing - PASSING), (clock, seed, 2))
    channel.send(cell.stats())


def read(path: Path, channel: Connection, calls: int) -> None:
    """A fixed number of calls; then what was seen, as counts."""
    view, latest = CellView(path), dict.fromkeys(KEYS, (0, 0, 0))
    seen = {"true": 0, "wrong": 0, "backwards": 0}
    room = bytearray(1 << 16)
    for number in range(calls):
        for key, answer in zip(KEYS, view.get_many(KEYS, 0), strict=True):
            if answer is None:
                continue
            value, version = answer
            seen["true" if is_true(key, version, value) else "wrong"] += 1
            seen["backwards"] += version < latest[key]
            latest[key] = version
        key = KEYS[number % len(KEYS)]
        size = view.get_into(key, room, 0)
        if size is not None:
            version = SAYS.unpack_from(room)[:3]
            seen["true" if is_true(key, version, bytes(room[:size])) else "wrong"] += 1
    channel.send(seen | view.stats())
