"""A stream that is deleted and made anew: which of the two is the newer, here and where it is copied to."""

import json

import pytest

from tailrace.config import StreamConfig, encode
from tailrace.copytree import StreamSettings
from tailrace.copytree.settings import adopt, read_settings
from tailrace.errors import Superseded
from tailrace.files import Files, PosixFiles
from tailrace.streams import Catalog
from tailrace.testing import ManualClock, SeededRandomness, SimulatedDisk

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
