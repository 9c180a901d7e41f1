"""What is read next is brought from the disk once, and what is in memory already costs nobody a look at its pages."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailrace.env import SystemDisk

SIZE = 1 << 20


@pytest.fixture
def handle(tmp_path: Path) -> Iterator[int]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(SIZE))
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    yield handle
    os.close(handle)


@pytest.fixture
def advice(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """What the kernel is told to bring, as it comes."""
    found: list[tuple[int, int]] = []
    advise = os.posix_fadvise

    def noted(handle: int, begin: int, count: int, what: int) -> None:
        if what == os.POSIX_FADV_WILLNEED:
            found.append((begin, count))
        advise(handle, begin, count, what)

    monkeypatch.setattr(os, "posix_fadvise", noted)
    return found


def test_what_is_on_disk_alone_is_brought(handle: int, advice: list[tuple[int, int]]) -> None:
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    SystemDisk().expect(handle, 0, SIZE)
    assert advice == [(0, SIZE)]


def test_what_is_in_memory_is_not_asked_for_again(handle: int, advice: list[tuple[int, int]]) -> None:
    os.pread(handle, SIZE, 0)
    try:
        os.preadv(handle, [bytearray(1)], 0, os.RWF_NOWAIT)
    except OSError:
        pytest.skip("this file system does not tell what is in memory")
    SystemDisk().expect(handle, 0, SIZE)
    assert advice == []


def test_what_goes_beyond_the_end_is_brought_up_to_there(handle: int, advice: list[tuple[int, int]]) -> None:
    SystemDisk().expect(handle, SIZE // 2, 2 * SIZE)
    assert advice == [(SIZE // 2, 2 * SIZE - SIZE // 2)]
