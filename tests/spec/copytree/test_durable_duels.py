"""Two durable operations for one shard: what the newer one has made, the older one cannot touch, whatever it still has
on its way."""

import json
from collections.abc import Callable

import pytest

from tailrace.config import encode
from tailrace.copytree import DurableTarget, StreamSettings
from tailrace.copytree.settings import adopt
from tailrace.errors import Superseded
from tailrace.files import Claim, PosixFiles
from tailrace.model.segment import Segment
from tailrace.testing import ManualClock, SeededRandomness, SimulatedDisk
from tailrace.wire import Batch, Opening, Operation, Piece, Standing
from worlds import STREAM, small_config

SETTINGS = json.dumps({"version": 1, "incarnation": "i", **encode(small_config())}).encode()
OPENING = Opening(operation=Operation(STREAM, 0, "durable", "west"), source="east", origin="east", settings=SETTINGS)
FIRST, SECOND = Segment(1_000_000, 0, 0), Segment(2_000_000, 40, 72)
FOLDER = f"streams/{STREAM}/00000"


def pieces(segment: Segment, data: bytes, index: bytes) -> Batch:
    return Batch(segment=segment, pieces=(Piece("data", 0, data), Piece("index", 0, index)), oldest_us=1_000_000)


def taken(target: DurableTarget, batch: Batch) -> Standing:
    target.take(batch)
    return target.settle()


WHOLE = pieces(FIRST, b"d" * 40, b"i" * 72)


class World:
    def __init__(self) -> None:
        self.disk = SimulatedDisk()
        self.files = self.process(0)
        adopt(self.files, STREAM, "east", StreamSettings.parse(SETTINGS, STREAM))

    def process(self, seed: int) -> PosixFiles:
        return PosixFiles(
            "/root",
            disk=self.disk.process(),
            clock=ManualClock(),
            randomness=SeededRandomness(seed),
            owner=f"writer {seed}",
        )

    def content(self) -> dict[str, bytes]:
        return {name: self.files.read(f"{FOLDER}/{name}") for name in self.files.list(FOLDER)}


def test_the_older_one_cannot_begin_a_file_that_the_newer_one_has_finished() -> None:
    """Its batch was long on its way. It would take the file for half of a pair that a crash left, and begin it anew."""
    world = World()
    older, newer = DurableTarget(world.process(1), OPENING), DurableTarget(world.process(2), OPENING)
    older.begin()
    taken(older, WHOLE)
    newer.begin()
    taken(newer, pieces(SECOND, b"e" * 30, b"j" * 50))
    before = world.content()
    with pytest.raises(Superseded):
        taken(older, pieces(SECOND, b"e" * 10, b"j" * 20))
    assert world.content() == before
    taken(newer, Batch(segment=SECOND, pieces=(Piece("data", 30, b"f" * 5),)))
    assert newer.standing.data_length == 35


def test_the_older_one_cannot_retire_what_the_newer_one_keeps() -> None:
    world = World()
    older, newer = DurableTarget(world.process(1), OPENING), DurableTarget(world.process(2), OPENING)
    older.begin()
    taken(older, pieces(FIRST, b"d" * 10, b"i" * 24))
    newer.begin()
    taken(newer, Batch(segment=FIRST, pieces=(Piece("data", 10, b"d" * 30), Piece("index", 24, b"i" * 48))))
    before = world.content()
    late = Batch(segment=SECOND, pieces=(Piece("data", 0, b"e"),), oldest_us=SECOND.created_us)
    with pytest.raises(Superseded):
        taken(older, late)
    assert world.content() == before


class Slow(PosixFiles):
    """Something happens right after the folder was claimed."""

    meanwhile: Callable[[], object] = staticmethod(lambda: None)

    def claim(self, folder: str) -> Claim:
        claim = super().claim(folder)
        self.meanwhile()
        return claim


def test_one_that_was_displaced_while_it_began_cuts_nothing() -> None:
    world = World()
    begun = DurableTarget(world.process(1), OPENING)
    begun.begin()
    taken(begun, pieces(FIRST, b"d" * 10, b"i" * 24))
    newer = DurableTarget(world.process(3), OPENING)

    def overtake() -> None:
        newer.begin()
        taken(newer, Batch(segment=FIRST, pieces=(Piece("data", 10, b"d" * 30), Piece("index", 24, b"i" * 48))))

    files = Slow("/root", disk=world.disk.process(), clock=ManualClock(), randomness=SeededRandomness(2), owner="slow")
    files.meanwhile = overtake  # type: ignore[method-assign]
    with pytest.raises(Superseded):
        DurableTarget(files, OPENING).begin()
    assert sorted(map(len, world.content().values())) == [40, 72]
    taken(newer, Batch())  # it goes on
