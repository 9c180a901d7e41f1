"""What passes the page cache by, where the file system can: then it is not in memory afterwards."""

import ctypes
import errno
import mmap
import os
from pathlib import Path

import pytest

from tailrace.env import SystemDisk
from tailrace.files import PosixFiles
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


def test_what_is_passing_does_not_stay_in_memory(tmp_path: Path) -> None:
    disk, path = SystemDisk(), tmp_path / "a"
    before, handle = handles(), disk.create(str(path))
    at, size = 0, 4 * MIB + 1000
    for _ in range(4):
        disk.write(handle, at, [memoryview(Block(size, at % 512))], passing=True)
        at += size
    disk.sync(handle)
    # The pages at the seams go the usual way.
    assert pages_in_memory(path) <= (8 if can_pass(tmp_path) else at // mmap.PAGESIZE + 1)
    disk.close(handle)
    assert handles() == before


@pytest.mark.parametrize("passing", [True, False])
def test_what_late_readers_have_brought_stays_for_others_and_what_the_writer_left_goes(
    tmp_path: Path, passing: bool
) -> None:
    files, path, size = PosixFiles(str(tmp_path)), tmp_path / "folder" / "a", 16 * MIB
    appender = files.claim("folder").create("a")
    appender.append(0, [memoryview(Block(size))], passing=passing)
    appender.sync()
    assert len(path.read_bytes()) == size
    appender.forget(size)
    left = pages_in_memory(path)
    if not passing:
        assert left == 0
    elif can_pass(tmp_path):
        assert left == size // mmap.PAGESIZE
    appender.close()


def test_what_is_not_passing_stays(tmp_path: Path) -> None:
    disk, path = SystemDisk(), tmp_path / "a"
    handle = disk.create(str(path))
    disk.write(handle, 0, [memoryview(Block(4 * MIB))])
    disk.sync(handle)
    assert pages_in_memory(path) == 4 * MIB // mmap.PAGESIZE
    disk.close(handle)


def test_where_it_cannot_be_done_it_goes_the_usual_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def refuse(handle: int, content: memoryview, offset: int) -> int:
        tried.append(len(content))
        raise OSError(errno.EINVAL, "no such way")

    monkeypatch.setattr(os, "pwrite", refuse)
    disk, path = SystemDisk(), tmp_path / "a"
    before, handle = handles(), disk.create(str(path))
    for at in (0, MIB):
        disk.write(handle, at, [memoryview(Block(MIB))], passing=True)
    assert path.stat().st_size == 2 * MIB
    assert tried == ([MIB] if can_pass(tmp_path) else [])  # once: then it is known
    disk.close(handle)
    assert handles() == before


def test_a_full_disk_is_told_by_the_usual_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", full)
    monkeypatch.setattr(os, "pwritev", full)
    disk = SystemDisk()
    handle = disk.create(str(tmp_path / "a"))
    with pytest.raises(OSError, match="no room"):
        disk.write(handle, 0, [memoryview(Block(MIB))], passing=True)
    disk.close(handle)
