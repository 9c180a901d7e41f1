"""The machine, or the process, of a writer goes down at the first disk call, at the second, … until it does not. Then
consumers of the copy see a part of the source and nothing wrong, and the next writer makes it whole."""

import json
from contextlib import suppress
from typing import Literal

import pytest

from tailrace.config import StreamConfig, encode
from tailrace.copytree import DurableSource, DurableTarget, StreamSettings
from tailrace.copytree.settings import adopt
from tailrace.env import Disk
from tailrace.errors import StreamMissing
from tailrace.files import PosixFiles
from tailrace.model.segment import segments_of
from tailrace.testing import Fault, FaultyDisk, ManualClock, SeededRandomness, SimulatedCrash, SimulatedDisk
from tailrace.wire import Opening, Operation
from worlds import STREAM, SimulatedWorld, small_config, values

CONFIG = small_config()
SETTINGS = json.dumps({"version": 1, "incarnation": "i", **encode(CONFIG)}).encode()
OPERATION = Operation(STREAM, 0, "durable", "west")
OPENING = Opening(operation=OPERATION, source="east", origin="east", settings=SETTINGS)


def make_source(clock: ManualClock) -> tuple[PosixFiles, list[bytes | None]]:
    """Several segments, of several producers."""
    disk = SimulatedDisk()
    world = SimulatedWorld(disk.process(), clock, CONFIG)
    world.files.make_folder(f"streams/{STREAM}")
    world.files.publish(f"streams/{STREAM}/stream.json", SETTINGS)
    for _ in range(2):
        producer = world.producer()
        for number in range(2):
            producer.send(b"message %d " % number * 7)
            producer.flush()
        producer.close()
    return world.files, values(world.read())


def copy(source: PosixFiles, disk: Disk, clock: ManualClock, seed: int) -> None:
    files = PosixFiles("/root", disk=disk, clock=clock, randomness=SeededRandomness(seed), owner="writer")
    adopt(files, STREAM, "east", StreamSettings.parse(SETTINGS, STREAM))
    target = DurableTarget(files, OPENING)
    reading = DurableSource(source, clock, OPERATION, "i", piece_bytes=60)
    reading.begin(target.begin())
    turn = seed
    while (batch := reading.next_batch(1000)) is not None:
        target.take(batch)
        if (turn := turn + 1) % 2:  # the others come while a sync is under way
            target.settle()
    target.settle()
    reading.close()
    target.close()


def contents(files: PosixFiles) -> dict[str, bytes]:
    folder = f"streams/{STREAM}/00000"
    segments = segments_of(files.list(folder))
    names = [name for segment in segments for name in (segment.data_name, segment.index_name)]
    return {name: files.read(f"{folder}/{name}") for name in names}


@pytest.mark.parametrize(
    ("end", "effect"),
    [("process", "half"), ("process", "whole"), ("nothing", "none"), ("everything", "half"), ("random", "whole")],
)
def test_a_copy_is_made_whole_after_an_end_at_every_call(
    end: Literal["process", "nothing", "everything", "random"], effect: Literal["none", "half", "whole"]
) -> None:
    clock = ManualClock()
    source, sent = make_source(clock)
    for at in range(1, 100_000):
        disk = SimulatedDisk(seed=at)
        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            copy(source, faulty, clock, seed=1)
        if end == "process":
            process.kill()
        else:
            disk.crash(end)
        left = SimulatedWorld(disk.process(), clock, CONFIG, seed=2)
        seen = values(left.read())
        assert seen == sent[: len(seen)]
        # The next hop goes on copying from what is left, before any writer has put it right.
        behind = SimulatedDisk(seed=at)
        if left.files.list(f"streams/{STREAM}/00000"):
            with suppress(StreamMissing):  # settings that a crash took: there is nothing to copy yet
                copy(left.files, behind.process(), clock, seed=5)
                further = values(SimulatedWorld(behind.process(), clock, CONFIG, seed=6).read())
                assert further == sent[: len(further)]
        copy(source, disk.process(), clock, seed=3)
        again = SimulatedWorld(disk.process(), clock, CONFIG, seed=4)
        assert contents(again.files) == contents(source)
        assert values(again.read()) == sent
        if not faulty.fired:
            assert at > 50
            return


def test_settings_that_are_not_ours_do_not_count() -> None:
    assert StreamSettings.parse(SETTINGS, STREAM).config == StreamConfig(
        shards=1, file_bytes=CONFIG.file_bytes, message_bytes_max=CONFIG.message_bytes_max
    )
