"""The messages of the fan-out benchmark, alike for every system.

offset  bytes  what
0       8      MARK: by it a client that does not parse messages finds and counts them
8       8      when it was, or should have been, sent: CLOCK_MONOTONIC in nanoseconds, little-endian
16      1008   filling, which does not compress
"""

import random
from collections.abc import Sequence
from struct import Struct

from typing_extensions import Buffer

MESSAGE_BYTES = 1024
MARK = b"\xfftlrace\xfe"
STAMP_AT, STAMP_END = len(MARK), len(MARK) + 8
_STAMP = Struct("<Q")
_MESSAGE = Struct(f"<{STAMP_AT}xQ{MESSAGE_BYTES - STAMP_END}x")
#: (its stamp,) of a single message, by the shortest way there is; else struct.error.
stamp_of_one = _MESSAGE.unpack
# The same in every run: figures of two runs differ by the machine, not by the bytes.
_FILLING = random.Random(MESSAGE_BYTES).randbytes(MESSAGE_BYTES - STAMP_END)


def message(stamp_ns: int) -> bytes:
    return MARK + _STAMP.pack(stamp_ns) + _FILLING


def stamp_of(value: bytes | bytearray | memoryview) -> int:
    stamp: int = _STAMP.unpack_from(value, STAMP_AT)[0]
    return stamp


def stamps_side_by_side(content: Buffer) -> Sequence[int]:
    """Of messages with nothing between them."""
    return [stamp for (stamp,) in _MESSAGE.iter_unpack(content)]


def stamps_in(content: bytes) -> list[int]:
    """Of whole messages, with anything between them."""
    found, at = [], 0
    while (begin := content.find(MARK, at)) >= 0:
        found.append(_STAMP.unpack_from(content, begin + STAMP_AT)[0])
        at = begin + MESSAGE_BYTES
    return found


class Scanner:
    """Counts messages in whatever surrounds them, as they come from a socket, cut anywhere.

    `room()` is where the next bytes go; `took(count)` says how many came.
    """

    def __init__(self, stamped: bool, room_bytes: int = 1 << 20) -> None:
        self._stamped = stamped
        self._buffer = bytearray(room_bytes)
        self._view = memoryview(self._buffer)
        self._carried = 0  # bytes at the front that may be the beginning of a message
        self.stamps: list[int] = []  # of the last `took`

    def room(self) -> memoryview:
        return self._view[self._carried :]

    def took(self, count: int) -> int:
        """How many messages have begun in these bytes."""
        end = self._carried + count
        if self._stamped:
            found, rest = self._stamps(end)
        else:
            found, rest = self._buffer.count(MARK, 0, end), max(0, end - len(MARK) + 1)
        self._buffer[: end - rest] = self._buffer[rest:end]
        self._carried = end - rest
        return found

    def _stamps(self, end: int) -> tuple[int, int]:
        self.stamps = []
        at = 0
        while (begin := self._buffer.find(MARK, at, end)) >= 0:
            if begin + STAMP_END > end:
                return len(self.stamps), begin
            self.stamps.append(stamp_of(self._view[begin : begin + STAMP_END]))
            at = begin + STAMP_END
        return len(self.stamps), max(at, end - len(MARK) + 1)
