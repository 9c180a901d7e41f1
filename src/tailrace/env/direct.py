"""Writing past the page cache: what nobody will read from there is not copied into it first.

The disk takes whole pages of a file, out of memory whose address has the same remainder as the place in the file. What
lies before and behind those pages, or elsewhere in memory, has to go the usual way. The two never touch one page in one
write (where pages have 4 KiB), so neither waits for the other.
"""

import ctypes
import os
from contextlib import suppress

_PAGE_BYTES = 4096
_ALIGNMENT = 512  # of memory, as disks with blocks of this size want it; others refuse, and get nothing this way
_WORTH_IT_BYTES = 256 << 10  # below it, the kernel's copy is cheaper than waiting for the disk
_NEVER = -1
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class DirectWrites:
    """For each file that is written so, a second handle that passes the page cache by."""

    def __init__(self) -> None:
        self._handles: dict[int, int] = {}

    def write(self, handle: int, offset: int, content: memoryview) -> int:
        """Write these pages; how many bytes of them are written, 0 where it cannot be done so."""
        if (direct := self._handles.get(handle)) is None:
            direct = self._handles[handle] = _reopened(handle)
        if direct == _NEVER:
            return 0
        done = 0
        try:
            while done < len(content):
                count = os.pwrite(direct, content[done:], offset + done)
                done += count
                if not count or done % _PAGE_BYTES:
                    break
        except OSError:
            # The file system wants something else than we do; or the disk is full or bad, as the usual way will tell.
            self.forget(handle)
            self._handles[handle] = _NEVER
        return done

    def forget(self, handle: int) -> None:
        """The file is closed."""
        if (direct := self._handles.pop(handle, _NEVER)) != _NEVER:
            with suppress(OSError):
                os.close(direct)


def pages_of(offset: int, content: memoryview) -> tuple[int, int]:
    """Which part of the content, to be written at this offset, can go past the page cache; (0, 0): none."""
    begin = -offset % _PAGE_BYTES
    end = len(content) - (offset + len(content)) % _PAGE_BYTES
    if end - begin < _WORTH_IT_BYTES or content.readonly:
        return 0, 0
    address = ctypes.addressof(ctypes.c_char.from_buffer(content))
    return (0, 0) if (address + begin) % _ALIGNMENT else (begin, end)


def _reopened(handle: int) -> int:
    """Through /proc: a name could belong to another file by now."""
    if not _O_DIRECT:
        return _NEVER
    try:
        return os.open(f"/proc/self/fd/{handle}", os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
    except OSError:
        return _NEVER
