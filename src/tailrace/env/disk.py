"""The few disk calls that `files.posix` makes, as a protocol, and the real ones.

The protocol is the point: a simulated disk that loses unsynced writes and one that fails at the n-th call
(both in `tailrace.testing`) stand in for the real one in the crash sweep. Every call may raise OSError;
translating it is the caller's work. Paths are absolute strings; handles are small integers.
"""

import ctypes
import fcntl
import os
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

Buffer = bytes | bytearray | memoryview

_IOV_MAX = 1024
_KEEP_SIZE = 1  # of Linux's fallocate, which Python has only in a form that makes the file longer
_STATFS_BYTES_MAX = 512
# ext2 to ext4, XFS, Btrfs, F2FS and tmpfs; not overlays, whose maps may show a file as it was before it was changed
_LOCAL_FILE_SYSTEMS = {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994}
_libc = ctypes.CDLL(None, use_errno=True)
_fallocate = getattr(_libc, "fallocate", None)
_fstatfs = getattr(_libc, "fstatfs", None)
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


@dataclass(frozen=True, slots=True)
class Identity:
    """Which machine this is, and since when it is up: bytes that were written but not synced die with the boot."""

    host: bytes
    boot: bytes


class Disk(Protocol):
    def identity(self) -> Identity: ...

    def create(self, path: str) -> int:
        """Open a new file for reading and writing; FileExistsError if there is one."""
        ...

    def open(self, path: str, *, write: bool) -> int: ...

    def close(self, handle: int) -> None: ...

    def read_into(self, handle: int, offset: int, buffer: memoryview) -> int:
        """Fill the buffer from the offset; how many bytes were there."""
        ...

    def is_mappable(self, handle: int) -> bool:
        """Whether the handle is a descriptor of this process, of a file whose pages can be looked at where the kernel
        has them, and stay there."""
        ...

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all of the buffers, one behind the other, from the offset on."""
        ...

    def reserve(self, handle: int, begin: int, end: int) -> None:
        """These bytes will be written soon: have room for them on the disk. The file gets no longer by it; truncate
        gives back what is not used. Free to do nothing."""
        ...

    def truncate(self, handle: int, size: int) -> None: ...

    def sync(self, handle: int) -> None:
        """Return when the content and length of the file are on the disk."""
        ...

    def forget(self, handle: int, begin: int, end: int) -> None:
        """Nobody will soon read these bytes, which are synced: they need not stay in memory."""
        ...

    def expect(self, handle: int, begin: int, end: int) -> None:
        """Whoever has this handle reads these bytes next: bring them meanwhile, and none behind them. Free to do
        nothing."""
        ...

    def size(self, handle: int) -> int: ...

    def linked(self, handle: int) -> bool:
        """False when the file behind the handle has no name any more: it was deleted or replaced."""
        ...

    def try_lock(self, handle: int) -> bool:
        """Take the exclusive lock of the file if it is free. It goes when the handle is closed or the process dies."""
        ...

    def unlock(self, handle: int) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Replace the target atomically."""
        ...

    def link(self, source: str, target: str) -> None:
        """Give the file a second name; FileExistsError if there is one of that name."""
        ...

    def unlink(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None: ...

    def remove_folder(self, path: str) -> None: ...

    def list(self, path: str) -> list[str]: ...

    def is_folder(self, path: str) -> bool: ...

    def sync_folder(self, path: str) -> None:
        """Return when the names in the folder are on the disk."""
        ...


class SystemDisk:
    """The machine's own disk."""

    def __init__(self) -> None:
        self._identity = Identity(host=_host_id(), boot=_boot_id())

    def identity(self) -> Identity:
        return self._identity

    def create(self, path: str) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)

    def open(self, path: str, *, write: bool) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC | os.O_NOFOLLOW)

    def close(self, handle: int) -> None:
        os.close(handle)

    def read_into(self, handle: int, offset: int, buffer: memoryview) -> int:
        done, room = 0, buffer.cast("B")
        while done < len(room):
            count = os.preadv(handle, [room[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def is_mappable(self, handle: int) -> bool:
        """In file systems of this machine alone. Of others, what was in memory a moment ago may have to be asked for
        again, of a machine that may be gone."""
        about = ctypes.create_string_buffer(_STATFS_BYTES_MAX)
        if _fstatfs is None or _fstatfs(handle, about):
            return False
        return ctypes.c_ulong.from_buffer(about).value in _LOCAL_FILE_SYSTEMS

    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        rest = deque(view for buffer in buffers if len(view := memoryview(buffer).cast("B")))
        while rest:
            count = os.pwritev(handle, list(islice(rest, _IOV_MAX)), offset)
            offset += count
            while rest and count >= len(rest[0]):
                count -= len(rest.popleft())
            if count:
                rest[0] = rest[0][count:]

    def reserve(self, handle: int, begin: int, end: int) -> None:
        if _fallocate is not None and _fallocate(handle, _KEEP_SIZE, begin, end - begin):
            raise OSError(ctypes.get_errno(), "fallocate")

    def truncate(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def forget(self, handle: int, begin: int, end: int) -> None:
        os.posix_fadvise(handle, begin, end - begin, os.POSIX_FADV_DONTNEED)

    def expect(self, handle: int, begin: int, end: int) -> None:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)  # or the kernel reads ahead on its own, many times as much
        # It looks at every page, whether it has it or not. Of many who read alike, all but the first find it all there.
        if not _in_memory(handle, end - 1):
            os.posix_fadvise(handle, begin, end - begin, os.POSIX_FADV_WILLNEED)

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def linked(self, handle: int) -> bool:
        return os.fstat(handle).st_nlink > 0

    def try_lock(self, handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def unlock(self, handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def make_folder(self, path: str) -> None:
        os.mkdir(path, 0o750)

    def remove_folder(self, path: str) -> None:
        os.rmdir(path)

    def list(self, path: str) -> list[str]:
        return os.listdir(path)

    def is_folder(self, path: str) -> bool:
        return Path(path).is_dir()

    def sync_folder(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _in_memory(handle: int, offset: int) -> bool:
    """Whether this byte can be read without the disk. False, too, behind the file's end and where nobody knows."""
    try:
        return os.preadv(handle, [bytearray(1)], offset, os.RWF_NOWAIT) == 1
    except OSError:
        return False


def _boot_id() -> bytes:
    try:
        return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes
    except (OSError, ValueError):
        # Unknown: look like a new start of the machine, so that what survived in the files is judged by its checksums.
        return uuid.uuid4().bytes


def _host_id() -> bytes:
    try:
        return uuid.UUID(Path("/etc/machine-id").read_text().strip()).bytes
    except (OSError, ValueError):
        return uuid.UUID(int=uuid.getnode()).bytes
