"""The machine goes down, or the disk fails, at every call of taking a snapshot and collecting behind it. Whoever loads
afterwards gets the right state, from whole snapshots only."""

import errno
from contextlib import suppress
from typing import Literal

import pytest

from tailrace.config import Retention
from tailrace.env import Disk
from tailrace.errors import TailraceError
from tailrace.streams import Catalog, Snapshots, collect
from tailrace.streams.snapshot import fold
from tailrace.testing import Fault, FaultyDisk, ManualClock, SimulatedCrash, SimulatedDisk
from worlds import STREAM, SimulatedWorld, small_config

Keep = Literal["nothing", "everything", "random"]
CONFIG = small_config(retention=Retention(keeps_snapshots=1))


def set_up(disk: Disk, clock: ManualClock) -> SimulatedWorld:
    """Several files, a snapshot in the middle of them, and updates behind it."""
    world = SimulatedWorld(disk, clock, CONFIG, seed=1)
    Catalog(world.files).create(STREAM, CONFIG)
    produce(world, 0)
    snapshots(world).take(0)
    produce(world, 1)
    return world


def produce(world: SimulatedWorld, round_: int) -> None:
    producer = world.producer()
    for number in range(8):
        producer.send(None if number == round_ else b"value %d of round %d" % (number, round_), key=b"%d" % number)
        producer.flush()
        world.clock.advance(1.0)
    producer.close()


def snapshots(world: SimulatedWorld) -> Snapshots:
    return Snapshots(world.files, world.clock, Catalog(world.files), STREAM)


def loaded(world: SimulatedWorld) -> dict[bytes, bytes]:
    """As a view loads: the newest snapshot, then the messages behind it."""
    base = snapshots(world).load(0)
    assert base.notes == (), "a snapshot that is visible is whole"
    batches = [batch.to_arrow() for batch in world.consumer(base.position)]
    rows = fold(base.table, batches).to_pylist()
    return {row["key"]: row["value"] for row in rows}


EXPECTED = {b"%d" % number: b"value %d of round 1" % number for number in range(8) if number != 1}


def take_and_collect(world: SimulatedWorld) -> None:
    snapshots(world).take(0)
    collect(world.files, STREAM, 0, CONFIG.retention, world.clock.time_us(), [])


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_the_machine_goes_down_at_every_call(keep: Keep, effect: Literal["none", "half", "whole"]) -> None:
    for at in range(1, 10_000):
        disk, clock = SimulatedDisk(seed=at), ManualClock()
        set_up(disk.process(), clock)
        faulty = FaultyDisk(disk.process(), Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            take_and_collect(SimulatedWorld(faulty, clock, CONFIG, seed=2))
        disk.crash(keep)
        world = SimulatedWorld(disk.process(), clock, CONFIG, seed=3)
        assert loaded(world) == EXPECTED, at
        take_and_collect(world)
        assert loaded(world) == EXPECTED, at
        assert len(snapshots(world).status(0)) == 1, at
        if not faulty.fired:
            assert at > 50, "the sweep ended suspiciously early"
            return


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_a_call_fails_and_the_next_try_succeeds(code: int, effect: Literal["none", "half", "whole"]) -> None:
    for at in range(1, 10_000):
        disk, clock = SimulatedDisk(), ManualClock()
        set_up(disk.process(), clock)
        world = SimulatedWorld(disk.process(), clock, CONFIG, seed=2)
        world.files._disk = faulty = FaultyDisk(
            world.files._disk, Fault(at=at, kind="error", errno=code, effect=effect)
        )
        with suppress(TailraceError):
            take_and_collect(world)
        assert loaded(SimulatedWorld(disk.process(), clock, CONFIG, seed=3)) == EXPECTED, at
        if not faulty.fired:
            return
        take_and_collect(world)
        assert loaded(world) == EXPECTED, at
    pytest.fail("the sweep did not end")


def test_drafts_that_a_crash_left_are_swept_up_a_day_later() -> None:
    for at in range(1, 10_000):
        disk, clock = SimulatedDisk(), ManualClock()
        set_up(disk.process(), clock)
        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash"))
        with suppress(SimulatedCrash):
            snapshots(SimulatedWorld(faulty, clock, CONFIG, seed=2)).take(0)
        folder = f"/root/streams/{STREAM}/snapshots/00000"
        left = [name for name in process.list(folder) if name.startswith(".")]
        world = SimulatedWorld(process, clock, CONFIG, seed=3)
        clock.advance(2 * 86_400.0)
        produce(world, 1)
        snapshots(world).take(0)
        assert not [name for name in process.list(folder) if name.startswith(".")]
        if left:
            return
    pytest.fail("no crash left a draft behind")
