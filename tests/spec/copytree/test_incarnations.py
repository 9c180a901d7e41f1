"""A stream that is deleted and made anew: which of the two is the newer, here and where it is copied to."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.config import StreamConfig, encode
from tailrace.copytree import DurableTarget, StreamSettings
from tailrace.copytree.settings import adopt, read_settings
from tailrace.env import Disk, SystemClock
from tailrace.errors import Superseded
from tailrace.files import Files, PosixFiles
from tailrace.model.segment import Segment
from tailrace.streams import Catalog
from tailrace.testing import Fault, FaultyDisk, ManualClock, SeededRandomness, SimulatedCrash, SimulatedDisk
from tailrace.wire import Batch, Opening, Operation, Piece

STREAM = "prices"


def fresh_files() -> Files:
    return PosixFiles("/root", disk=SimulatedDisk().process(), clock=ManualClock(), randomness=SeededRandomness(0))


def made(files: Files, clock: ManualClock) -> str:
    catalog = Catalog(files, clock)
    catalog.create(STREAM, StreamConfig())
    return catalog.incarnation(STREAM)


def settings(incarnation: str) -> StreamSettings:
    table = {"version": 1, "incarnation": incarnation, **encode(StreamConfig())}
    return StreamSettings.parse(json.dumps(table).encode(), STREAM)


@pytest.mark.parametrize("back_us", [0, 1, 3_600_000_000])
def test_the_next_one_sorts_behind_the_last_whatever_the_clock_says(back_us: int) -> None:
    files, start_us = fresh_files(), 1_800_000_000_000_000
    names = [made(files, ManualClock(start_us))]
    for number in range(1, 5):
        Catalog(files).delete(STREAM)
        names.append(made(files, ManualClock(start_us - number * back_us)))
    assert names == sorted(names)
    assert len(set(names)) == 5


def test_an_older_stream_does_not_replace_the_copy_of_a_newer_one() -> None:
    files = fresh_files()
    old, new = settings("a1"), settings("a2")
    adopt(files, STREAM, "east", old)
    assert adopt(files, STREAM, "east", new) == new
    with pytest.raises(Superseded, match="made anew"):
        adopt(files, STREAM, "east", old)
    assert read_settings(files, STREAM) == new


SHARD = f"streams/{STREAM}/00000"
FIRST = Batch(segment=Segment(7, 0, 0), pieces=(Piece("data", 0, b"first bytes"),))


def target_of(files: Files, stream: StreamSettings) -> DurableTarget:
    operation = Operation(STREAM, 0, "durable", "west")
    opening = Opening(operation=operation, source="east", origin="east", settings=stream.raw)
    return DurableTarget(files, opening, incarnation=stream.incarnation)


def copy_first_bytes(files: Files, stream: StreamSettings) -> None:
    adopt(files, STREAM, "east", stream)
    target = target_of(files, stream)
    target.begin()
    target.take(FIRST)
    target.settle()
    target.close()


class Interrupted(PosixFiles):
    """A process that something comes in between before it deletes a folder."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def delete_folder(self, path: str) -> None:
        self.meanwhile()
        super().delete_folder(path)


class Noticing(SystemClock):
    """A process that is seen waiting for somebody else's lock."""

    def __init__(self) -> None:
        self.waits = threading.Event()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits.set()
        return super().wait(event, timeout_s)


def test_of_two_writers_that_adopt_at_once_none_deletes_what_the_other_has_begun(tmp_path: Path) -> None:
    """Both have seen the old one. The second has its first bytes before the first comes to delete, or waits for it."""
    old, new = settings("a1"), settings("a2")
    clock = Noticing()
    first, second = Interrupted(str(tmp_path)), PosixFiles(str(tmp_path), clock=clock)
    copy_first_bytes(first, old)
    with ThreadPoolExecutor(1) as pool:
        begun = []

        def meanwhile() -> None:
            begun.append(pool.submit(copy_first_bytes, second, new))
            wait_until(lambda: begun[0].done() or clock.waits.is_set(), "the second to be done, or to wait")

        first.meanwhile = meanwhile  # type: ignore[method-assign]
        assert adopt(first, STREAM, "east", new) == new
        begun[0].result()
    assert read_settings(first, STREAM) == new
    assert first.read(f"{SHARD}/{Segment(7, 0, 0).data_name}") == b"first bytes"


def test_the_copy_of_an_older_one_does_not_go_on_in_the_folder_of_the_newer(tmp_path: Path) -> None:
    old, new = settings("a1"), settings("a2")
    older, newer = PosixFiles(str(tmp_path)), PosixFiles(str(tmp_path))
    adopt(older, STREAM, "east", old)
    waiting, running = target_of(older, old), target_of(older, old)
    running.begin()
    copy_first_bytes(newer, new)
    before = newer.list(SHARD)
    with pytest.raises(Superseded):
        running.take(Batch(segment=Segment(3, 0, 0), pieces=(Piece("data", 0, b"old"),)))
    with pytest.raises(Superseded, match="made anew"):  # it had been let in, and begins only now
        waiting.begin()
    assert newer.list(SHARD) == before
    assert newer.read(f"{SHARD}/{Segment(7, 0, 0).data_name}") == b"first bytes"


def test_an_adoption_that_is_cut_short_anywhere_is_finished_by_the_next() -> None:
    old, new = settings("a1"), settings("a2")

    def files_on(disk: Disk) -> Files:
        return PosixFiles("/root", disk=disk, clock=ManualClock(), randomness=SeededRandomness(0))

    for at in range(1, 1000):
        disk = SimulatedDisk()
        copy_first_bytes(files_on(disk.process()), old)
        process = disk.process()
        try:
            adopt(files_on(FaultyDisk(process, Fault(at=at, kind="crash"))), STREAM, "east", new)
        except SimulatedCrash:
            process.kill()
            left = files_on(disk.process())
            assert adopt(left, STREAM, "east", new) == new
            assert left.list(SHARD) == []
            continue
        assert at > 20  # every call was cut short once
        return
    pytest.fail("it never comes to an end")
