"""What passes the page cache by, where the file system can: then it is not in memory afterwards."""

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pytest

from tailrace.errors import FileProblem
from tailrace.files import Appender, PosixFiles, swift
from tailrace.native import Block

MIB = 1 << 20


def pages_in_memory(path: Path) -> int:
    """Of a file's pages, how many the page cache has."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapped:
        first = ctypes.c_char.from_buffer(mapped)
        there = ctypes.create_string_buffer((len(mapped) + mmap.PAGESIZE - 1) // mmap.PAGESIZE)
        assert libc.mincore(ctypes.addressof(first), len(mapped), there) == 0, os.strerror(ctypes.get_errno())
        del first
        return sum(page & 1 for page in there.raw)


def can_pass(folder: Path) -> bool:
    try:
        os.close(os.open(folder / "probe", os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600))
    except OSError as refused:
        assert refused.errno == errno.EINVAL  # this file system has no such way
        return False
    return True


def handles() -> int:
    return len(os.listdir("/proc/self/fd"))


class Pair:
    """Two files that are flushed together. What is flushed in one go is on the disk, and told of."""

    def __init__(self, folder: Path) -> None:
        claim = PosixFiles(str(folder)).claim("folder")
        self.path, self.claim = folder / "folder" / "data", claim
        self.data: Appender = claim.create("data")
        self.index: Appender = claim.create("index")

    def flush(self, size: int, *, passing: bool = True) -> None:
        start, offset = self.data.length, self.index.length
        content = memoryview(Block(size, start % 512))
        content[:] = bytes([size % 251]) * size
        self.data.flush_with(start, content, self.index, offset, b"entry", passing=passing)
        assert (self.data.length, self.index.length) == (start + size, offset + 5)

    def close(self) -> None:
        self.data.close()
        self.index.close()
        self.claim.close()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_what_is_passing_does_not_stay_in_memory(tmp_path: Path) -> None:
    before = handles()
    pair, size = Pair(tmp_path), 4 * MIB + 1000
    for _ in range(4):
        pair.flush(size)
    # The pages at the seams go the usual way.
    assert pages_in_memory(pair.path) <= (8 if can_pass(tmp_path) else 4 * size // mmap.PAGESIZE + 1)
    assert pair.path.read_bytes() == bytes([size % 251]) * (4 * size)
    pair.close()
    assert handles() == before


@pytest.mark.parametrize("passing", [True, False])
def test_what_late_readers_have_brought_stays_for_others_and_what_the_writer_left_goes(
    tmp_path: Path, pair: Pair, passing: bool
) -> None:
    size = 16 * MIB
    pair.flush(size, passing=passing)
    assert len(pair.path.read_bytes()) == size
    pair.data.forget(size)
    left = pages_in_memory(pair.path)
    if not passing:
        assert left == 0
    elif can_pass(tmp_path):
        assert left == size // mmap.PAGESIZE
    pair.close()


def test_what_is_not_passing_stays(pair: Pair) -> None:
    pair.flush(4 * MIB, passing=False)
    assert pages_in_memory(pair.path) == 4 * MIB // mmap.PAGESIZE
    pair.close()


def test_where_it_cannot_be_done_it_goes_the_usual_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second handle takes no writes, so the first write to it fails."""
    opened = []

    def reopened(handle: int) -> int:
        opened.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))
        return opened[-1]

    monkeypatch.setattr(swift, "_reopened", reopened)
    before, pair = handles(), Pair(tmp_path)
    for _ in range(2):
        pair.flush(MIB)
    assert pair.path.stat().st_size == 2 * MIB
    assert len(opened) == 1  # then it is known
    pair.close()
    assert handles() == before


def test_a_full_disk_is_told_by_the_usual_way(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    appender = pair.data
    assert isinstance(appender, type(pair.index))
    os.dup2(full := os.open("/dev/full", os.O_RDWR), appender._handle)
    appender.flush_with(0, bytes(MIB), pair.index, 0, b"entry", passing=True)
    assert appender.length == 0
    with pytest.raises(FileProblem, match="space"):
        appender.append(0, [bytes(MIB)])
    os.close(full)
    pair.close()


def test_after_a_sync_that_failed_the_appender_is_of_no_more_use(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    os.dup2(null := os.open("/dev/null", os.O_RDWR), pair.data._handle)  # it takes bytes, and cannot sync
    attempts = (
        lambda: pair.data.flush_with(0, b"abc", pair.index, 0, b"entry", passing=False),
        lambda: pair.data.append(0, [b"abc"]),
        pair.data.sync,
    )
    for attempt in attempts:
        with pytest.raises(FileProblem, match="could not flush"):
            attempt()
    assert (pair.data.length, pair.index.length) == (0, 0)
    with PosixFiles(str(tmp_path)).view("folder/index") as view:
        assert view.length().readable_bytes == 0  # it is told of behind the data
    os.close(null)
    pair.close()
