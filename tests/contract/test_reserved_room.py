"""A file that grows fast has room reserved for it, and gives back what it did not use, however its appender ends."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.files import Appender, Files, PosixFiles

PIECE = bytes(1 << 20)
PIECES = 20


def grown(files: Files) -> Appender:
    appender = files.claim("folder").create("file")
    for number in range(PIECES):
        appender.append(number * len(PIECE), [PIECE])
    appender.sync()
    return appender


def on_disk(path: Path) -> int:
    return os.stat(path).st_blocks * 512


def left(files: Files, appender: Appender) -> None:
    """As a process that is killed leaves it; the next one settles it."""
    files.settle("folder/file")


ENDINGS: dict[str, Callable[[Files, Appender], None]] = {
    "sealed": lambda files, appender: appender.seal(),
    "closed": lambda files, appender: appender.close(),
    "killed": left,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_was_reserved_in_vain_is_given_back(tmp_path: Path, ending: str) -> None:
    files = PosixFiles(str(tmp_path))
    path = tmp_path / "folder" / "file"
    appender = grown(files)
    assert path.stat().st_size == PIECES * len(PIECE)
    if on_disk(path) < (PIECES + 5) * len(PIECE):
        pytest.skip(f"the file system of {tmp_path} reserves nothing")
    ENDINGS[ending](files, appender)
    assert on_disk(path) < (PIECES + 1) * len(PIECE)
    assert files.read("folder/file") == PIECE * PIECES


def test_a_small_file_takes_no_more_than_it_needs(tmp_path: Path) -> None:
    appender = PosixFiles(str(tmp_path)).claim("folder").create("file")
    appender.append(0, [PIECE])
    appender.append(len(PIECE), [PIECE])
    appender.sync()
    assert on_disk(tmp_path / "folder" / "file") < 3 * len(PIECE)
    appender.close()
