"""What every disk does: the machine's own, the simulated one, a process on it, and a faulty one that has no fault."""

import errno
from array import array
from contextlib import contextmanager

import pytest

from tailrace.env import SystemDisk
from tailrace.testing import Fault, FaultyDisk, SimulatedDisk

NEVER = Fault(at=1, only=frozenset())


class World:
    """A disk and an empty folder on it."""

    def __init__(self, disk, root):
        self.disk = disk
        self.root = root

    def path(self, *names):
        return "/".join([self.root, *names])

    def file(self, name, content=b""):
        """Make a file; its open handle."""
        handle = self.disk.create(self.path(name))
        self.disk.write(handle, 0, [content])
        return handle

    def read(self, handle, offset=0, count=1000):
        buffer = bytearray(count)
        return bytes(buffer[: self.disk.read_into(handle, offset, memoryview(buffer))])

    def content(self, name):
        handle = self.disk.open(self.path(name), write=False)
        try:
            return self.read(handle)
        finally:
            self.disk.close(handle)

    def names(self, *folder):
        return sorted(self.disk.list(self.path(*folder)))


class TidySystemDisk(SystemDisk):
    """The machine's disk, which closes in the end what a test left open."""

    def __init__(self):
        super().__init__()
        self.opened = set()

    def create(self, path):
        self.opened.add(handle := super().create(path))
        return handle

    def open(self, path, *, write):
        self.opened.add(handle := super().open(path, write=write))
        return handle

    def close(self, handle):
        super().close(handle)
        self.opened.discard(handle)


@pytest.fixture
def system_disk():
    disk = TidySystemDisk()
    yield disk
    for handle in tuple(disk.opened):
        disk.close(handle)


@pytest.fixture(params=["system", "simulated", "process", "faulty", "faulty system"])
def world(request, system_disk, tmp_path):
    if "system" in request.param:
        disk, root = system_disk, str(tmp_path)
    else:
        disk, root = SimulatedDisk(), "/root"
        disk.make_folder(root)
    if "process" in request.param:
        disk = disk.process()
    return World(FaultyDisk(disk, NEVER) if "faulty" in request.param else disk, root)


@pytest.fixture
def disk(world):
    return world.disk


@contextmanager
def fails(number):
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is checked below
        yield
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number]


def test_identity_stays_the_same(disk):
    assert disk.identity() == disk.identity()
    assert len(disk.identity().host) == len(disk.identity().boot) == 16


# Content


def test_a_new_file_is_empty_and_open_for_reading_and_writing(world, disk):
    handle = disk.create(world.path("a"))
    assert disk.size(handle) == 0
    assert world.read(handle) == b""
    disk.write(handle, 0, [b"hello"])
    assert world.read(handle) == b"hello"
    assert world.content("a") == b"hello"


def test_buffers_are_written_one_behind_the_other(world, disk):
    handle = world.file("a")
    disk.write(handle, 0, [b"one", bytearray(b"two"), b"", memoryview(b"xthreex")[1:-1]])
    assert world.read(handle) == b"onetwothree"
    disk.write(handle, 3, [b"T", b"W", b"O"])
    assert world.read(handle) == b"oneTWOthree"


def test_more_buffers_than_one_system_call_takes(world, disk):
    handle = world.file("a")
    pieces = [str(number).encode() for number in range(3000)]
    disk.write(handle, 0, pieces)
    whole = b"".join(pieces)
    assert disk.size(handle) == len(whole)
    assert world.read(handle, 0, 2 * len(whole)) == whole


def test_a_view_of_numbers_is_written_as_its_bytes(world, disk):
    handle = world.file("a")
    numbers = array("I", range(1000))
    disk.write(handle, 0, [b"<", memoryview(numbers), memoryview(numbers)[:0], b">"])
    assert world.read(handle, 0, 9000) == b"<" + numbers.tobytes() + b">"


def test_buffers_are_copied_not_kept(world, disk):
    handle = world.file("a")
    buffer = bytearray(b"before")
    disk.write(handle, 0, [buffer])
    buffer[:] = b"after!"
    assert world.read(handle) == b"before"


@pytest.mark.parametrize("buffers", [[], [b""], [b"", b""]])
def test_writing_nothing_does_not_grow_the_file(world, disk, buffers):
    handle = world.file("a", b"abc")
    disk.write(handle, 10, buffers)
    assert disk.size(handle) == 3


def test_a_write_past_the_end_leaves_zeros_between(world, disk):
    handle = world.file("a", b"ab")
    disk.write(handle, 5, [b"fg"])
    assert world.read(handle) == b"ab\0\0\0fg"


def test_reads_stop_at_the_end(world, disk):
    handle = world.file("a", b"0123456789")
    assert world.read(handle, 4, 3) == b"456"
    assert world.read(handle, 8, 10) == b"89"
    assert world.read(handle, 10, 10) == b""
    assert world.read(handle, 99, 10) == b""
    assert world.read(handle, 0, 0) == b""


def test_a_read_leaves_the_rest_of_the_buffer_alone(world, disk):
    handle = world.file("a", b"ab")
    buffer = bytearray(b"xxxxx")
    assert disk.read_into(handle, 0, memoryview(buffer)[1:]) == 2
    assert buffer == b"xabxx"


def test_truncate_shortens_and_lengthens(world, disk):
    handle = world.file("a", b"0123456789")
    disk.truncate(handle, 4)
    assert (disk.size(handle), world.read(handle)) == (4, b"0123")
    disk.truncate(handle, 6)
    assert world.read(handle) == b"0123\0\0"  # never the bytes that were cut off
    disk.truncate(handle, 6)
    disk.truncate(handle, 0)
    assert disk.size(handle) == 0


def test_sync_and_sync_folder_change_nothing_that_is_seen(world, disk):
    handle = world.file("a", b"abc")
    disk.sync(handle)
    disk.sync(handle)
    disk.sync_folder(world.root)
    assert world.content("a") == b"abc"
    assert world.names() == ["a"]


def test_two_handles_see_one_file(world, disk):
    writer = world.file("a")
    reader = disk.open(world.path("a"), write=False)
    other = disk.open(world.path("a"), write=True)
    disk.write(writer, 0, [b"abc"])
    disk.write(other, 1, [b"B"])
    assert world.read(reader) == b"aBc"
    disk.close(writer)
    assert world.read(reader) == b"aBc"


def test_a_handle_for_reading_does_not_write(world, disk):
    disk.close(world.file("a", b"abc"))
    handle = disk.open(world.path("a"), write=False)
    with fails(errno.EBADF):
        disk.write(handle, 0, [b"x"])
    with fails(errno.EINVAL):
        disk.truncate(handle, 0)
    assert world.read(handle) == b"abc"


def test_negative_numbers_are_refused(world, disk):
    handle = world.file("a", b"abc")
    with fails(errno.EINVAL):
        disk.write(handle, -2, [b"x"])
    with fails(errno.EINVAL):
        disk.truncate(handle, -1)
    with fails(errno.EINVAL):
        disk.read_into(handle, -2, memoryview(bytearray(1)))
    assert world.read(handle) == b"abc"


@pytest.mark.parametrize(
    "use",
    [
        lambda disk, handle: disk.close(handle),
        lambda disk, handle: disk.read_into(handle, 0, memoryview(bytearray(1))),
        lambda disk, handle: disk.write(handle, 0, [b"x"]),
        lambda disk, handle: disk.sync(handle),
        lambda disk, handle: disk.size(handle),
        lambda disk, handle: disk.linked(handle),
        lambda disk, handle: disk.try_lock(handle),
        lambda disk, handle: disk.unlock(handle),
        lambda disk, handle: disk.truncate(handle, 0),
    ],
)
def test_a_closed_handle_is_refused(world, disk, use):
    handle = world.file("a")
    disk.close(handle)
    with fails(errno.EBADF):
        use(disk, handle)


# Names


def test_create_and_open_say_what_is_wrong_with_the_path(world, disk):
    disk.close(world.file("file"))
    disk.make_folder(world.path("folder"))
    for name in "file", "folder":
        with fails(errno.EEXIST):
            disk.create(world.path(name))
    with fails(errno.ENOENT):
        disk.create(world.path("missing", "a"))
    with fails(errno.ENOTDIR):
        disk.create(world.path("file", "a"))
    for write in True, False:
        with fails(errno.ENOENT):
            disk.open(world.path("missing"), write=write)
        with fails(errno.ENOTDIR):
            disk.open(world.path("file", "a"), write=write)
    with fails(errno.EISDIR):
        disk.open(world.path("folder"), write=True)


def test_errors_are_of_python_s_own_classes(world, disk):
    disk.close(world.file("a"))
    with pytest.raises(FileExistsError):
        disk.create(world.path("a"))
    with pytest.raises(FileNotFoundError) as caught:
        disk.open(world.path("b"), write=False)
    assert caught.value.filename == world.path("b")


def test_a_folder_opens_for_reading_but_has_no_bytes(world, disk):
    handle = disk.open(world.root, write=False)
    with fails(errno.EISDIR):
        world.read(handle)
    with fails(errno.EBADF):
        disk.write(handle, 0, [b"x"])
    with fails(errno.EINVAL):
        disk.truncate(handle, 0)
    disk.sync(handle)
    assert disk.linked(handle)
    assert disk.try_lock(handle)
    disk.close(handle)


def test_folders_hold_folders_and_files(world, disk):
    disk.make_folder(world.path("x"))
    disk.make_folder(world.path("x", "y"))
    disk.close(disk.create(world.path("x", "y", "file")))
    assert world.names() == ["x"]
    assert world.names("x", "y") == ["file"]
    assert disk.is_folder(world.root)
    assert disk.is_folder(world.path("x", "y"))
    assert not disk.is_folder(world.path("x", "y", "file"))
    assert not disk.is_folder(world.path("x", "y", "file", "z"))
    assert not disk.is_folder(world.path("missing"))
    assert disk.is_folder("/")


def test_make_folder_says_what_is_wrong_with_the_path(world, disk):
    disk.close(world.file("file"))
    disk.make_folder(world.path("folder"))
    for name in "file", "folder":
        with fails(errno.EEXIST):
            disk.make_folder(world.path(name))
    with fails(errno.EEXIST):
        disk.make_folder("/")
    with fails(errno.ENOENT):
        disk.make_folder(world.path("missing", "a"))
    with fails(errno.ENOTDIR):
        disk.make_folder(world.path("file", "a"))


def test_only_an_empty_folder_is_removed(world, disk):
    disk.make_folder(world.path("folder"))
    disk.close(world.file("folder/a"))
    with fails(errno.ENOTEMPTY):
        disk.remove_folder(world.path("folder"))
    with fails(errno.ENOTDIR):
        disk.remove_folder(world.path("folder", "a"))
    disk.unlink(world.path("folder", "a"))
    disk.remove_folder(world.path("folder"))
    assert world.names() == []
    with fails(errno.ENOENT):
        disk.remove_folder(world.path("folder"))


def test_list_and_sync_folder_want_a_folder(world, disk):
    disk.close(world.file("file"))
    for call in disk.list, disk.sync_folder:
        with fails(errno.ENOTDIR):
            call(world.path("file"))
        with fails(errno.ENOENT):
            call(world.path("missing"))


def test_an_unlinked_file_lives_on_in_its_handles(world, disk):
    handle = world.file("a", b"abc")
    assert disk.linked(handle)
    disk.unlink(world.path("a"))
    assert not disk.linked(handle)
    assert world.names() == []
    disk.write(handle, 3, [b"def"])
    disk.sync(handle)
    assert world.read(handle) == b"abcdef"
    disk.close(world.file("a", b"another"))
    assert not disk.linked(handle)
    assert world.read(handle) == b"abcdef"


def test_unlink_wants_a_file(world, disk):
    disk.make_folder(world.path("folder"))
    disk.close(world.file("file"))
    with fails(errno.EISDIR):
        disk.unlink(world.path("folder"))
    with fails(errno.ENOENT):
        disk.unlink(world.path("missing"))
    with fails(errno.ENOTDIR):
        disk.unlink(world.path("file", "a"))


def test_rename_moves_the_file_and_replaces_the_target(world, disk):
    disk.make_folder(world.path("folder"))
    moved = world.file("a", b"new")
    replaced = world.file("folder/b", b"old")
    disk.rename(world.path("a"), world.path("folder", "b"))
    assert world.names() == ["folder"]
    assert world.content("folder/b") == b"new"
    assert disk.linked(moved)
    assert not disk.linked(replaced)
    assert world.read(replaced) == b"old"


def test_rename_says_what_is_wrong_with_the_paths(world, disk):
    for name in "empty", "full":
        disk.make_folder(world.path(name))
    disk.close(world.file("full/a"))
    disk.close(world.file("file"))
    with fails(errno.ENOENT):
        disk.rename(world.path("missing"), world.path("b"))
    with fails(errno.ENOENT):
        disk.rename(world.path("file"), world.path("missing", "b"))
    with fails(errno.ENOTDIR):
        disk.rename(world.path("full"), world.path("file"))
    with fails(errno.EISDIR):
        disk.rename(world.path("file"), world.path("empty"))
    with fails(errno.ENOTEMPTY):
        disk.rename(world.path("empty"), world.path("full"))
    with fails(errno.EINVAL):
        disk.rename(world.path("full"), world.path("full", "inside"))
    assert world.names() == ["empty", "file", "full"]


def test_rename_moves_folders_with_all_they_hold(world, disk):
    disk.make_folder(world.path("empty"))
    disk.make_folder(world.path("full"))
    disk.close(world.file("full/a", b"abc"))
    disk.rename(world.path("full"), world.path("empty"))
    assert world.names() == ["empty"]
    assert world.content("empty/a") == b"abc"


def test_rename_to_itself_changes_nothing(world, disk):
    disk.close(world.file("a", b"abc"))
    disk.rename(world.path("a"), world.path("a"))
    assert world.content("a") == b"abc"


def test_link_gives_a_second_name_to_the_same_bytes(world, disk):
    handle = world.file("a", b"abc")
    disk.link(world.path("a"), world.path("b"))
    disk.write(handle, 0, [b"A"])
    assert world.content("b") == b"Abc"
    disk.unlink(world.path("a"))
    assert disk.linked(handle)
    assert world.content("b") == b"Abc"
    disk.unlink(world.path("b"))
    assert not disk.linked(handle)


def test_rename_between_two_names_of_one_file_leaves_both(world, disk):
    disk.close(world.file("a", b"abc"))
    disk.link(world.path("a"), world.path("b"))
    disk.rename(world.path("a"), world.path("b"))
    assert world.names() == ["a", "b"]


def test_link_never_replaces(world, disk):
    disk.close(world.file("a", b"abc"))
    disk.close(world.file("b", b"other"))
    disk.make_folder(world.path("folder"))
    for target in "a", "b", "folder":
        with fails(errno.EEXIST):
            disk.link(world.path("a"), world.path(target))
    with fails(errno.ENOENT):
        disk.link(world.path("missing"), world.path("c"))
    with fails(errno.ENOENT):
        disk.link(world.path("a"), world.path("missing", "c"))
    with fails(errno.EPERM):
        disk.link(world.path("folder"), world.path("c"))
    assert world.content("b") == b"other"


# Locks


def test_a_lock_belongs_to_one_handle(world, disk):
    first = world.file("a")
    second = disk.open(world.path("a"), write=False)
    assert disk.try_lock(first)
    assert disk.try_lock(first)  # it has it already
    assert not disk.try_lock(second)
    disk.unlock(second)  # not its own: nothing happens
    assert not disk.try_lock(second)
    disk.unlock(first)
    assert disk.try_lock(second)
    assert not disk.try_lock(first)


def test_a_lock_goes_with_its_handle_only(world, disk):
    first = world.file("a")
    second = disk.open(world.path("a"), write=True)
    third = disk.open(world.path("a"), write=True)
    assert disk.try_lock(first)
    disk.close(third)
    assert not disk.try_lock(second)
    disk.close(first)
    assert disk.try_lock(second)


def test_a_lock_is_the_file_s_not_the_name_s(world, disk):
    first = world.file("a")
    assert disk.try_lock(first)
    disk.rename(world.path("a"), world.path("b"))
    assert not disk.try_lock(disk.open(world.path("b"), write=False))
    assert disk.try_lock(world.file("a"))
    disk.unlink(world.path("b"))
    disk.unlock(first)
    assert disk.try_lock(first)
