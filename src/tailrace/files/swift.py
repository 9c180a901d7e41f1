"""A flush of two files on this machine's own disk, in one native call.

Between any two calls of the disk another thread may take the interpreter, and a flush of a few megabytes made about
forty of them: a producer that was busy packing its next messages kept its own disk waiting for a third of the time.

Invariant: nothing is done here unless the fences are, to the byte, as their appenders have left them, and under their
locks. Whatever is not done here is left for the appenders' careful way, which judges and explains.
"""

import os
from contextlib import suppress

from ..env.disk import Buffer
from ..native.fenced import Side, flush
from .fence import FenceRecord

_DIRECT_LEAST_BYTES = 256 << 10  # below it, the kernel's copy is cheaper than waiting for the disk
# The disk is waited for with the fence locked: behind so much, which is more than most flushes have, whoever wants the
# fence can have it.
_TURN_BYTES = 32 << 20
_NEVER = -1
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class Swift:
    """Of one file that is open for writing."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._direct: int | None = None  # a second handle, which passes the page cache by; None: not opened yet
        self._following: tuple[FenceRecord, bytes] | None = None  # what the last side was to make of the fence

    def side(self, fence: int, mine: FenceRecord, offset: int, content: Buffer, *, passing: bool) -> Side:
        """`passing`: what is written is read from elsewhere, and need not get into the machine's memory of files."""
        if passing and self._direct is None:
            self._direct = _reopened(self._handle)
        direct = self._direct if passing and self._direct is not None else _NEVER
        view = memoryview(content).cast("B")
        last, following = self._following, mine.flushed_to(offset + len(view))
        encoded = last[1] if last is not None and last[0] is mine else mine.encode()
        self._following = following, following.encode()
        return Side(self._handle, fence, encoded, self._following[1], view, offset, direct)

    @property
    def following(self) -> FenceRecord:
        """What the fence is when all of the last side is told of."""
        assert self._following is not None
        return self._following[0]

    def learn(self, side: Side) -> None:
        """From what has become of it: the file system may want something else than we do."""
        if side.refused:
            self.close()

    def close(self) -> None:
        """Before the file is: its number may be another file's the moment it is free."""
        direct, self._direct = self._direct, _NEVER
        if direct is not None and direct != _NEVER:
            with suppress(OSError):
                os.close(direct)


def flush_together(first: Side, second: Side, notice: object | None) -> None:
    """As far as it goes; both sides tell. `notice`: what to say when both are there."""
    flush(first, second, turn_bytes=_TURN_BYTES, direct_least=_DIRECT_LEAST_BYTES, notice=notice)


def _reopened(handle: int) -> int:
    """Through /proc: a name could belong to another file by now."""
    if not _O_DIRECT:
        return _NEVER
    try:
        return os.open(f"/proc/self/fd/{handle}", os.O_WRONLY | os.O_CLOEXEC | _O_DIRECT)
    except OSError:
        return _NEVER
