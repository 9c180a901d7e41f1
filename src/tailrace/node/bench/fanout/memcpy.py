"""What no transport within one machine can beat: as many processes, each copying memory that all of them share."""

import mmap
import os
import random
import time
from collections.abc import Sequence

from .contender import Contender, Publisher, Subscription

_SHARED_BYTES = 64 << 20  # more than a processor keeps for itself, as the recent part of a stream is
_PIECE_BYTES = 1 << 20  # a batch of our consumers, by default
_PIECES_AT_ONCE = 8


class Memcpy(Contender):
    name = "memcpy"
    version = ""
    policy = "nothing is kept"
    delays = False

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _SHARED_BYTES)
        piece = random.Random(1).randbytes(_PIECE_BYTES)
        for _ in range(_SHARED_BYTES // _PIECE_BYTES):
            self._shared.write(piece)

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Nobody()

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Copies(memoryview(self._shared))

    def close(self) -> None: ...


class _Nobody(Publisher):
    """Throws away what it gets, and leaves the processor to those who copy."""

    def __init__(self) -> None:
        self._taken_bytes = 0

    def send(self, messages: list[bytes]) -> None:
        self._taken_bytes += sum(map(len, messages))
        time.sleep(0.05)

    def confirmed_bytes(self) -> int:
        return self._taken_bytes

    def close(self) -> None: ...


class _Copies(Subscription):
    def __init__(self, shared: memoryview) -> None:
        self._shared = shared
        self._piece = memoryview(bytearray(_PIECE_BYTES))
        self._at = random.Random(os.getpid()).randrange(_SHARED_BYTES // _PIECE_BYTES) * _PIECE_BYTES

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        for _ in range(_PIECES_AT_ONCE):
            self._piece[:] = self._shared[self._at : self._at + _PIECE_BYTES]
            self._at = (self._at + _PIECE_BYTES) % _SHARED_BYTES
        return _PIECES_AT_ONCE * _PIECE_BYTES, ()

    def close(self) -> None: ...
