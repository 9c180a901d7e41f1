"""A flush in one call: both files or what can be had of them, under fences that are ours to the byte."""

import errno
import fcntl
import os
import threading
from pathlib import Path
from random import Random

import pytest

from tailrace.native import Block, Packer, Records
from tailrace.native.fenced import Side, flush
from tailrace.native.hints import Hints
from tailrace.native.sheets import SheetReader, Sheets

MINE, FOLLOWING, OTHERS = b"mine" * 32, b"next" * 32, b"else" * 32


class File:
    """A file with its fence."""

    def __init__(self, folder: Path, name: str, content: bytes = b"") -> None:
        self.path, self.fence_path = folder / name, folder / f"{name}.fence"
        self.path.write_bytes(content)
        self.fence_path.write_bytes(MINE)
        self.file = os.open(self.path, os.O_RDWR)
        self.fence = os.open(self.fence_path, os.O_RDWR)
        self.direct = -1

    def side(self, content, offset: int = 0, *, file: int | None = None) -> Side:
        return Side(self.file if file is None else file, self.fence, MINE, FOLLOWING, content, offset, self.direct)

    def open_direct(self) -> None:
        try:
            self.direct = os.open(self.path, os.O_WRONLY | os.O_DIRECT)
        except OSError as refused:
            assert refused.errno == errno.EINVAL  # this file system has no such way


@pytest.fixture
def files(tmp_path):
    return File(tmp_path, "data"), File(tmp_path, "index")


def together(first: Side, second: Side, *, turn_bytes: int = 4096, direct_least: int = 1, notice=None) -> None:
    flush(first, second, turn_bytes=turn_bytes, direct_least=direct_least, notice=notice)


def test_both_are_written_and_told_of(files):
    data, index = files
    first, second = data.side(b"hello"), index.side(b"entry")
    together(first, second)
    assert (first.whole, first.told, first.end, first.sync_error) == (True, True, 5, 0)
    assert (second.whole, second.told, second.end, second.sync_error) == (True, True, 5, 0)
    assert (data.path.read_bytes(), index.path.read_bytes()) == (b"hello", b"entry")
    assert data.fence_path.read_bytes() == index.fence_path.read_bytes() == FOLLOWING


@pytest.mark.parametrize("offset", [0, 1, 512, 4095, 4096, 70_000])
@pytest.mark.parametrize("size", [0, 1, 5000, (256 << 10) + 9000, 3 << 20])
@pytest.mark.parametrize("shift", [0, 8])
@pytest.mark.parametrize("turn_bytes", [4096, 1_000_000, 4 << 20])
def test_every_byte_comes_to_its_place(tmp_path, offset, size, shift, turn_bytes):
    """Wherever it lies in memory and in the file; `shift`: not as the file's blocks do."""
    before, content = b"before" * 20_000, Random(size).randbytes(size)
    data, index = File(tmp_path, "data", before), File(tmp_path, "index")
    data.open_direct()
    block = memoryview(Block(size + shift, offset % 512))[shift:]
    block[:] = content
    first = data.side(block, offset)
    together(first, index.side(b""), turn_bytes=turn_bytes)
    assert first.told
    expected = bytearray(before)
    expected[offset : offset + size] = content
    assert data.path.read_bytes() == expected
    if data.direct >= 0 and not shift and size > 3 * 4096:
        assert first.passed > size - 3 * 4096 * (size // turn_bytes + 1)
        assert not first.refused
    if shift:
        assert first.passed == 0


def untouched(file: File, side: Side, fence: bytes = MINE) -> None:
    assert (side.whole, side.told, side.sync_error) == (False, False, 0)
    assert (file.path.read_bytes(), file.fence_path.read_bytes()) == (b"", fence)


@pytest.mark.parametrize("which", [0, 1])
def test_nothing_is_told_while_somebody_else_has_the_lock(files, which):
    elsewhere = os.open(files[which].fence_path, os.O_RDWR)
    fcntl.flock(elsewhere, fcntl.LOCK_EX)
    sides = [file.side(b"content") for file in files]
    together(*sides)
    untouched(files[which], sides[which])
    assert not sides[0].told
    assert not sides[1].told
    os.close(elsewhere)
    sides = [file.side(b"content") for file in files]
    together(*sides)
    assert sides[0].told
    assert sides[1].told


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("fence", [OTHERS, MINE[:-1] + b"?", MINE[:100], b""])
def test_nothing_is_done_when_the_fence_is_not_as_it_was_left(files, which, fence):
    files[which].fence_path.write_bytes(fence)
    sides = [file.side(b"content") for file in files]
    together(*sides)
    untouched(files[which], sides[which], fence)


def test_nothing_is_done_when_the_fence_has_no_name_any_more(files):
    os.unlink(files[0].fence_path)
    sides = [file.side(b"content") for file in files]
    together(*sides)
    assert not sides[0].whole
    assert not sides[1].told
    assert files[0].path.read_bytes() == b""


def test_who_takes_over_between_two_turns_ends_it(tmp_path):
    """It waits for the lock like anybody else, and gets it between two turns, of which there are plenty."""
    data, index = File(tmp_path, "data"), File(tmp_path, "index")
    waits = threading.Event()

    def take_over() -> None:
        elsewhere = os.open(data.fence_path, os.O_RDWR)
        waits.set()
        fcntl.flock(elsewhere, fcntl.LOCK_EX)
        os.pwrite(elsewhere, OTHERS, 0)
        os.close(elsewhere)

    thread = threading.Thread(target=take_over)
    thread.start()
    waits.wait()
    first, second = data.side(bytes(10_000)), index.side(b"entry")
    together(first, second, turn_bytes=1)
    thread.join()
    assert not first.whole
    assert not first.told
    assert not second.told
    assert data.fence_path.read_bytes() == OTHERS
    assert index.fence_path.read_bytes() == MINE


def test_a_direct_handle_that_is_of_no_use_is_done_without(files):
    data, index = files
    data.direct = os.open(data.path, os.O_RDONLY)
    content = memoryview(Block(100_000))
    content[:] = bytes(100_000)
    first = data.side(content)
    together(first, index.side(b""), turn_bytes=50_000)
    assert (first.told, first.refused, first.passed) == (True, True, 0)
    assert data.path.read_bytes() == bytes(100_000)


def test_what_does_not_fit_is_not_told_of(files):
    data, index = files
    first, second = data.side(b"content", file=os.open("/dev/full", os.O_RDWR)), index.side(b"entry")
    together(first, second)
    assert (first.whole, first.told, first.sync_error) == (False, False, 0)
    assert (second.whole, second.told) == (True, False)
    assert data.fence_path.read_bytes() == index.fence_path.read_bytes() == MINE


@pytest.mark.parametrize("which", [0, 1])
def test_what_cannot_be_synced_is_not_told_of(files, which):
    null = os.open("/dev/null", os.O_RDWR)
    sides = [file.side(b"content", file=null if number == which else None) for number, file in enumerate(files)]
    together(*sides)
    assert (sides[which].whole, sides[which].told, sides[which].sync_error) == (True, False, errno.EINVAL)
    assert not sides[1].told  # behind the first
    assert sides[0].told == (which == 1)


def test_sides_are_used_once_and_fences_are_whole(files):
    data, index = files
    first, second = data.side(b"a"), index.side(b"b")
    together(first, second)
    for pair in ((first, second), (first, index.side(b"b")), (data.side(b"a"),) * 2):
        with pytest.raises(ValueError, match="each of them once"):
            together(*pair)
    with pytest.raises(ValueError, match="turns"):
        together(data.side(b"a"), index.side(b"b"), turn_bytes=0)
    for mine, following in ((b"short", FOLLOWING), (MINE, b"")):
        with pytest.raises(ValueError, match="they have 128"):
            Side(data.file, data.fence, mine, following, b"", 0)
    with pytest.raises(TypeError):
        Side(data.file, data.fence, MINE, FOLLOWING, "text", 0)


class Shown:
    """A message that lies in memory, to be shown when it is durable."""

    def __init__(self, folder: Path) -> None:
        paths = str(folder / "memory"), str(folder / "pins")
        self.sheets = Sheets(*paths, 1, 1 << 20, 512 << 10)
        packer = Packer([0], [0], 1 << 20, {0: self.sheets})
        packer.add(b"message", None, 0, 1)
        (part,) = packer.take()[0]
        self.reader, hints = SheetReader(*paths), Hints(folder / "hints", make=True)
        self.notice = self.sheets.notice(part.sheet, 1, 0, 0, part.data_at, part.entry_at, 1, hints, 0)

    @property
    def is_seen(self) -> bool:
        return self.reader.read(Records, "s", 0, 1, 0, 0, 100) is not None


def test_a_notice_is_given_with_the_flush(files, tmp_path):
    shown = Shown(tmp_path)
    assert not shown.is_seen
    together(*(file.side(b"content") for file in files), notice=shown.notice.capsule)
    assert shown.is_seen


@pytest.mark.parametrize("which", [0, 1])
def test_no_notice_is_given_of_what_cannot_be_synced(files, tmp_path, which):
    shown, null = Shown(tmp_path), os.open("/dev/null", os.O_RDWR)
    sides = [file.side(b"content", file=null if number == which else None) for number, file in enumerate(files)]
    together(*sides, notice=shown.notice.capsule)
    assert not shown.is_seen


def test_what_is_no_notice_is_refused_before_anything_is_done(files):
    sides = [file.side(b"content") for file in files]
    with pytest.raises(ValueError, match="Capsule"):
        together(*sides, notice=object())
    for file, side in zip(files, sides, strict=True):
        untouched(file, side)
