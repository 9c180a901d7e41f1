"""Fences: who may append, and how far the flushed bytes go, in a small file beside the file.

    fence   0       8        16        24       32     48     64        120    124
            | magic | nonce  | flushed | state  | boot | host | owner   | sum  | zero |
              8 B     u64      u64       u64      16 B   16 B   56 B      u32    u32

An appender holds the fence's lock while it checks the nonce and acts, so "is it still me?" and the act are one step for
everybody else. The newcomer writes its own nonce: that is all it takes to shut the older one out, and it holds between
processes, whichever way they died. The fence itself is never synced. After a power loss it may be old or torn, which
its boot id or sum tells; then the file's own bytes are what there is (`FileLength`).
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import IntEnum
from threading import Event, Lock

from ..env import Clock, Disk, Identity
from ..errors import FileProblem
from ..native import crc32c
from .interface import FileLength

FENCE_BYTES = 128
_MAGIC = b"TRFENCE1"
_LAYOUT = struct.Struct("<8sQQQ16s16s56s")
_SUM = struct.Struct("<II")
_LOCK_DEADLINE_S = 10.0
_LOCK_RETRY_S = 0.001


class State(IntEnum):
    APPENDING = 0
    REVOKED = 1
    SEALED = 2


_STATES: dict[int, State] = {state.value: state for state in State}


@dataclass(frozen=True, slots=True)
class FenceRecord:
    nonce: int
    flushed_bytes: int
    state: State
    identity: Identity
    owner: str

    def encode(self) -> bytes:
        owner = self.owner.encode()[:56].decode(errors="ignore").encode()  # cut at a whole character
        body = _LAYOUT.pack(
            _MAGIC, self.nonce, self.flushed_bytes, self.state, self.identity.boot, self.identity.host, owner
        )
        return body + _SUM.pack(crc32c(body), 0)

    def flushed_to(self, flushed_bytes: int) -> "FenceRecord":
        """The same of a longer file. Not by `replace`: every flush makes two of them."""
        return FenceRecord(self.nonce, flushed_bytes, self.state, self.identity, self.owner)

    @classmethod
    def decode(cls, raw: bytes) -> "FenceRecord | None":
        """None for anything that is not a whole fence: just made, torn, or lost with the machine."""
        if len(raw) != FENCE_BYTES or crc32c(raw[: _LAYOUT.size]) != _SUM.unpack_from(raw, _LAYOUT.size)[0]:
            return None
        magic, nonce, flushed, state, boot, host, owner = _LAYOUT.unpack_from(raw)
        if magic != _MAGIC or state not in _STATES:
            return None
        owner_text = owner.rstrip(b"\0").decode(errors="replace")
        return cls(nonce, flushed, _STATES[state], Identity(host=host, boot=boot), owner_text)


def judge(record: FenceRecord | None, size_bytes: int, here: Identity) -> FileLength:
    """How far a fenced file goes, seen from this machine.

    The fence is believed while the machine that wrote it is up. Of another machine that is assumed. Of this one the
    boot id tells: if it went down since, unsynced bytes are gone from the file, so all that is still there is on disk.
    """
    if record is None:
        return FileLength(0, size_bytes, appending=False)
    flushed = min(record.flushed_bytes, size_bytes)
    went_down = record.identity.host == here.host and record.identity.boot != here.boot
    if went_down:
        return FileLength(flushed, size_bytes, appending=False)
    return FileLength(flushed, flushed, appending=record.state is State.APPENDING)


def close_quietly(disk: Disk, handle: int) -> None:
    """What must be durable was synced before, so an error of close tells nothing that anybody could act on."""
    with suppress(OSError):
        disk.close(handle)


class Fence:
    """The fence file of one path: read it, lock it, write it."""

    def __init__(self, disk: Disk, clock: Clock, path: str, handle: int) -> None:
        self._disk, self._clock, self._path, self._handle = disk, clock, path, handle
        self._mutex = Lock()

    @classmethod
    def open(cls, disk: Disk, clock: Clock, path: str, *, write: bool) -> "Fence | None":
        """None when there is none."""
        try:
            return cls(disk, clock, path, disk.open(path, write=write))
        except FileNotFoundError:
            return None

    @classmethod
    def open_or_create(cls, disk: Disk, clock: Clock, path: str) -> "Fence":
        while True:
            try:
                return cls(disk, clock, path, disk.create(path))
            except FileExistsError:
                if fence := cls.open(disk, clock, path, write=True):
                    return fence

    def close(self) -> None:
        close_quietly(self._disk, self._handle)

    def read(self) -> FenceRecord | None:
        raw = bytearray(FENCE_BYTES)
        for _ in range(8):  # a read may meet a write half-way; the write is over by the next look
            count = self._disk.read_into(self._handle, 0, memoryview(raw))
            if record := FenceRecord.decode(bytes(raw[:count])):
                return record
            if count == 0:
                return None
        return None

    def write(self, record: FenceRecord) -> None:
        self._disk.write(self._handle, 0, [record.encode()])

    def linked(self) -> bool:
        return self._disk.linked(self._handle)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Against other processes, and against other threads."""
        with self.alone():
            deadline_s = self._clock.monotonic_s() + _LOCK_DEADLINE_S
            while not self._disk.try_lock(self._handle):
                if self._clock.monotonic_s() > deadline_s:
                    raise self._stays_locked()
                self._clock.wait(_NEVER, _LOCK_RETRY_S)
            try:
                yield
            finally:
                self._disk.unlock(self._handle)

    @contextmanager
    def alone(self) -> Iterator[int]:
        """No other thread of this process has the lock: to the kernel those who share a handle are one. The handle."""
        # Not for ever: an interrupt, or a fork, may have left it locked.
        if not self._mutex.acquire(timeout=_LOCK_DEADLINE_S):
            raise self._stays_locked()
        try:
            yield self._handle
        finally:
            self._mutex.release()

    def _stays_locked(self) -> FileProblem:
        record = self.read()
        return FileProblem(
            f"{self._path} stayed locked for {_LOCK_DEADLINE_S:g} s, last owned by "
            f"{record.owner if record else 'nobody known'}; a stopped process may hold it: end it, then try again. "
            "Nothing was written"
        )


_NEVER = Event()
