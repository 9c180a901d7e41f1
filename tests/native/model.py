"""A dumb model of the native room: the same names, no speed, and nothing shared with it but the written layout.

    entry   0        8          16        20        24
            | end    | time_us  | shape   | sum     |
              u64      i64        u32       u32

The model works on Python's own bytes and unbounded integers, one bit, one message, one row at a time. It is all or none
in the plainest way: a call works on a copy of the packer's state, which becomes the state only if nothing was refused.
It depends on the standard library alone, so that the fuzz driver can use it too, with a faster sum if it likes.
"""

import copy
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

ENTRY = struct.Struct("<QqII")
_DESCRIBED = struct.Struct("<QqI")  # the part of an entry that its sum covers
ENTRY_BYTES = ENTRY.size
KEY_BYTES_MAX = 2**28 - 1

HAS_KEY = 1 << 28
NO_VALUE = 1 << 29
FILLER = 1 << 30

I64_MIN, I64_MAX = -(2**63), 2**63 - 1


# ---- sums and hashes


def crc32c(source: bytes, sum: int = 0) -> int:
    """Bit by bit: the remainder of a division by the Castagnoli polynomial, lowest bit first."""
    state = sum ^ 0xFFFFFFFF
    for byte in source:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


crc32c_tables = crc32c

_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
_U64 = 2**64 - 1


def _rotate(word: int, by: int) -> int:
    word &= _U64
    return (word << by | word >> (64 - by)) & _U64


def _round(lane: int, word: int) -> int:
    return _rotate(lane + word * _P2, 31) * _P1 & _U64


def hash64(source: bytes) -> int:
    """XXH64 with seed 0, as its specification tells it."""
    words = [int.from_bytes(source[at : at + 8], "little") for at in range(0, len(source) // 8 * 8, 8)]
    striped = len(source) // 32 * 4  # so many words go through the four lanes
    value = _P5
    if striped:
        lanes = [_P1 + _P2, _P2, 0, -_P1]
        for number, word in enumerate(words[:striped]):
            lanes[number % 4] = _round(lanes[number % 4], word)
        value = sum(_rotate(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            value = (value ^ _round(0, lane)) * _P1 + _P4 & _U64
    value = value + len(source) & _U64
    for word in words[striped:]:
        value = _rotate(value ^ _round(0, word), 27) * _P1 + _P4 & _U64
    rest = source[len(words) * 8 :]
    if len(rest) >= 4:
        value = _rotate(value ^ int.from_bytes(rest[:4], "little") * _P1 & _U64, 23) * _P2 + _P3 & _U64
        rest = rest[4:]
    for byte in rest:
        value = _rotate(value ^ byte * _P5 & _U64, 11) * _P1 & _U64
    value = (value ^ value >> 33) * _P2 & _U64
    value = (value ^ value >> 29) * _P3 & _U64
    return value ^ value >> 32


def shard_of(key: bytes, shards: int) -> int:
    if shards == 0:
        raise ValueError("a stream has at least one shard")
    return hash64(key) * shards >> 64


# ---- reading records


def describe(
    message: bytes, start: int, key_length: int, flags: int, time_us: int, crc32c: Callable[[bytes], int] = crc32c
) -> bytes:
    """The entry of a message that lies at `start`."""
    described = _DESCRIBED.pack(start + len(message), time_us, key_length | flags)
    return described + struct.pack("<I", crc32c(message + struct.pack("<Q", start) + described))


def moved_entries(entries: bytes, start: int, to: int, time_us: int) -> bytes:
    """The entries as they are when the messages begin at `to`. A sum is linear: it changes by the sum of what changes
    behind the message, whatever the message is."""
    moved, by = b"", to - start
    for at in range(0, len(entries), ENTRY_BYTES):
        end, old_us, shape, total = struct.unpack_from("<QqII", entries, at)
        time_us = max(time_us, old_us)
        before = struct.pack("<QQqI", start, end, old_us, shape)
        after = struct.pack("<QQqI", start + by, end + by, time_us, shape)
        change = bytes(a ^ b for a, b in zip(before, after, strict=True))
        total ^= crc32c(change) ^ crc32c(bytes(len(change)))
        moved += struct.pack("<QqII", end + by, time_us, shape, total)
        start = end
    return moved


def split_message(message: bytes, shape: int) -> tuple[bytes | None, bytes | None] | None:
    """Key and value of a message; None when the shape cannot be that of such a message."""
    key_length = shape & KEY_BYTES_MAX
    if shape & ~(KEY_BYTES_MAX | HAS_KEY | NO_VALUE | FILLER):
        return None
    if shape & FILLER:
        if len(message) != 1:
            return None
        message = b""
    if key_length > len(message) or (key_length and not shape & HAS_KEY):
        return None
    key, value = message[:key_length], message[key_length:]
    if shape & NO_VALUE and value:
        return None
    return key if shape & HAS_KEY else None, None if shape & NO_VALUE else value


def verify(entries: bytes, start: int, data: bytes, crc32c: Callable[[bytes], int] = crc32c) -> int:
    """How many entries, from the first on, are whole and match the data bytes that begin at `start`."""
    if len(entries) % ENTRY_BYTES:
        raise ValueError("not a whole number of entries")
    good, before, time_before_us = 0, start, I64_MIN
    for end, time_us, shape, sum in ENTRY.iter_unpack(entries):
        if not before < end <= min(I64_MAX, start + len(data)) or time_us < time_before_us:
            break
        message = bytes(data[before - start : end - start])
        covered = message + struct.pack("<Q", before) + _DESCRIBED.pack(end, time_us, shape)
        if split_message(message, shape) is None or crc32c(covered) != sum:
            break
        good, before, time_before_us = good + 1, end, time_us
    return good


def count_to_position(entries: bytes, limit: int) -> int:
    return len(list(takewhile(lambda entry: entry[0] <= limit, ENTRY.iter_unpack(entries))))


def count_to_time(entries: bytes, time_us: int) -> int:
    return len(list(takewhile(lambda entry: entry[1] < time_us, ENTRY.iter_unpack(entries))))


def entry_at(entries: bytes, number: int) -> tuple[int, int]:
    return list(ENTRY.iter_unpack(entries))[number][:2]


@dataclass(frozen=True, slots=True)
class Message:
    stream: str
    shard: int
    position: int
    timestamp_us: int
    key: bytes | None
    value: bytes | None


class Records:
    def __init__(
        self,
        stream: str,
        shard: int,
        start: int,
        entries: bytes,
        data: bytes,
        crc32c: Callable[[bytes], int] = crc32c,
    ) -> None:
        self.stream, self.shard, self.start = stream, shard, start
        self.count = verify(entries, start, data, crc32c)
        self._entries = list(ENTRY.iter_unpack(entries))[: self.count]
        self.end = self._entries[-1][0] if self.count else start
        self.first_time_us = self._entries[0][1] if self.count else None
        self.last_time_us = self._entries[-1][1] if self.count else None
        self.data = bytes(data[: self.end - start])

    def messages(self) -> list[Message]:
        result, before = [], self.start
        for end, time_us, shape, _ in self._entries:
            content = split_message(self.data[before - self.start : end - self.start], shape)
            assert content is not None  # verify has looked at it
            result.append(Message(self.stream, self.shard, before, time_us, *content))
            before = end
        return result

    def columns(self) -> tuple:
        """The buffers of the native one, in its order, as bytes."""
        messages = self.messages()
        return (
            *_binary_column([message.key for message in messages]),
            *_binary_column([message.value for message in messages]),
            struct.pack(f"<{self.count}q", *(message.timestamp_us for message in messages)),
            struct.pack(f"<{self.count}q", *(message.position for message in messages)),
            struct.pack(f"<{self.count}i", *(message.shard for message in messages)),
        )


def _binary_column(items: list[bytes | None]) -> tuple[bytes, bytes, bytes | None, int]:
    ends = [0]
    for item in items:
        ends.append(ends[-1] + len(item or b""))
    absent = items.count(None)
    return b"".join(item or b"" for item in items), struct.pack(f"<{len(ends)}i", *ends), bitmap(items), absent


def bitmap(items: Sequence[bytes | None]) -> bytes | None:
    """One bit for each item that is there, lowest bit first; None when all are."""
    if None not in items:
        return None
    bits = sum((item is not None) << number for number, item in enumerate(items))
    return bits.to_bytes((len(items) + 7) // 8, "little")


# ---- packing records


@dataclass
class _Lane:
    start: int
    time_us: int
    crc32c: Callable[[bytes], int]
    messages: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)

    def add(self, key: bytes | None, value: bytes | None, time_us: int) -> None:
        message = (key or b"") + (value or b"")
        flags = (HAS_KEY if key is not None else 0) | (NO_VALUE if value is None else 0)
        if not message:
            message, flags = b"\0", flags | FILLER
        self.time_us = max(self.time_us, time_us)
        position = self.start + sum(map(len, self.messages))
        self.entries.append(describe(message, position, len(key or b""), flags, self.time_us, self.crc32c))
        self.messages.append(message)


@dataclass(frozen=True, slots=True)
class Packed:
    start: int
    end: int
    last_time_us: int
    count: int
    data: bytes
    entries: bytes


class Packer:
    """Refuses with ValueError where the native one does so with any of ValueError, TypeError and OverflowError."""

    def __init__(
        self,
        positions: Sequence[int | None],
        times_us: Sequence[int],
        message_bytes_max: int,
        crc32c: Callable[[bytes], int] = crc32c,
    ) -> None:
        self._lanes = [
            None if position is None else _Lane(position, time_us, crc32c)
            for position, time_us in zip(positions, times_us, strict=True)
        ]
        if not any(self._lanes):
            raise ValueError("no shard to pack for")
        self._turn = 0
        self.message_bytes_max = message_bytes_max
        self.pending_bytes = 0

    def add(self, value: object, key: object = None, shard: int | None = None, time_us: int = 0) -> int:
        row = (_as_bytes(key), _as_bytes(value))
        return self._all_or_none([row], together=False, shard=shard, time_us=time_us)

    def add_list(self, values: list, keys: list | None, shard: int | None = None, time_us: int = 0) -> int:
        if keys is not None and len(keys) != len(values):
            raise ValueError("as many keys as values")
        for item in (*values, *(keys or [])):
            if item is not None and type(item) is not bytes:
                raise ValueError("lists take bytes and None")
        rows = list(zip([None] * len(values) if keys is None else keys, values, strict=True))
        return self._all_or_none(rows, together=keys is None, shard=shard, time_us=time_us)

    def add_columns(
        self,
        values: bytes,
        value_offsets: bytes,
        value_present: bytes | None,
        keys: bytes | None,
        key_offsets: bytes | None,
        key_present: bytes | None,
        first: int,
        count: int,
        shard: int | None = None,
        time_us: int = 0,
    ) -> int:
        value_rows = _rows(values, value_offsets, value_present, first, count)
        if key_offsets is None:
            key_rows: list[bytes | None] = [None] * count
        else:
            key_rows = _rows(keys, key_offsets, key_present, first, count)
        rows = list(zip(key_rows, value_rows, strict=True))
        return self._all_or_none(rows, together=key_offsets is None, shard=shard, time_us=time_us)

    def take(self) -> dict[int, Packed]:
        result = {}
        for number, lane in enumerate(self._lanes):
            if lane is None or not lane.entries:
                continue
            data = b"".join(lane.messages)
            end = lane.start + len(data)
            result[number] = Packed(lane.start, end, lane.time_us, len(lane.entries), data, b"".join(lane.entries))
            self._lanes[number] = _Lane(end, lane.time_us, lane.crc32c)
        self.pending_bytes = 0
        return result

    def _all_or_none(
        self, rows: list[tuple[bytes | None, bytes | None]], together: bool, shard: int | None, time_us: int
    ) -> int:
        if not I64_MIN <= time_us <= I64_MAX:
            raise ValueError("not a time")
        trial = copy.deepcopy(self)
        if rows and together and shard is None:  # one turn for all of them
            shard = trial._next_turn()
        for key, value in rows:
            if key is None and value is None:
                raise ValueError("neither key nor value")
            count = len(key or b"") + len(value or b"")
            if count > self.message_bytes_max or len(key or b"") > KEY_BYTES_MAX:
                raise ValueError("too large")
            number = shard
            if number is None:
                number = trial._next_turn() if key is None else shard_of(key, len(self._lanes))
            if not 0 <= number < len(self._lanes) or (lane := trial._lanes[number]) is None:
                raise ValueError("not a shard to pack for")
            lane.add(key, value, time_us)
            trial.pending_bytes += count + ENTRY_BYTES
        self.__dict__ = trial.__dict__
        return self.pending_bytes

    def _next_turn(self) -> int:
        own = [number for number, lane in enumerate(self._lanes) if lane is not None]
        number = own[self._turn]
        self._turn = (self._turn + 1) % len(own)
        return number


def _as_bytes(item: object) -> bytes | None:
    if item is None:
        return None
    try:
        return bytes(memoryview(item))
    except TypeError:
        raise ValueError("not a buffer") from None


def _rows(content: bytes | None, offsets: bytes, present: bytes | None, first: int, count: int) -> list[bytes | None]:
    ends = [end for (end,) in struct.iter_unpack("<q", offsets[: len(offsets) // 8 * 8])]
    if content is None or first < 0 or count < 0 or first + count + 1 > len(ends):
        raise ValueError("too few rows")
    if present is not None and first + count > 8 * len(present):
        raise ValueError("too few bits")
    rows: list[bytes | None] = []
    for row in range(first, first + count):
        if not 0 <= ends[row] <= ends[row + 1] <= len(content):
            raise ValueError("outside the content")
        there = present is None or present[row // 8] >> row % 8 & 1
        rows.append(content[ends[row] : ends[row + 1]] if there else None)
    return rows
