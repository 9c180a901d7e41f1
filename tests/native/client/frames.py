"""Frames of mutations as docs/formats/mutations.md has them, read and written by hand."""

import struct
from typing import NamedTuple

MAGIC, LAYOUT, COUNT_MAX = b"TILM", 1, 1_048_576
HEAD = struct.Struct("<4sIQ")
MUTATION = struct.Struct("<IIII QII QII")
SET, CAS, ERASE = 1, 2, 3
NOTHING = (0, 0, 0)


class Mutation(NamedTuple):
    kind: int
    key: bytes
    value: bytes = b""
    version: tuple[int, int, int] = (1, 1, 0)
    expected: tuple[int, int, int] = NOTHING
    expiry_s: int = 0


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % 8)


def written(
    mutations: list[Mutation], *, count: int | None = None, magic: bytes = MAGIC, layout: int = LAYOUT
) -> bytes:
    parts = [HEAD.pack(magic, layout, len(mutations) if count is None else count)]
    for one in mutations:
        sizes = (one.kind, len(one.key), len(one.value), one.expiry_s)
        parts += [MUTATION.pack(*sizes, *one.version, *one.expected), padded(one.key), padded(one.value)]
    return b"".join(parts)


def parsed(frame: bytes) -> list[Mutation]:
    """ValueError: it is wrong somewhere."""
    if len(frame) < HEAD.size:
        raise ValueError("shorter than its header")
    magic, layout, count = HEAD.unpack_from(frame)
    if magic != MAGIC or layout != LAYOUT or count > COUNT_MAX:
        raise ValueError("no frame")
    found, at = [], HEAD.size
    for _ in range(count):
        if len(frame) - at < MUTATION.size:
            raise ValueError("ends within a mutation")
        kind, key_bytes, value_bytes, expiry_s, *versions = MUTATION.unpack_from(frame, at)
        key_at = at + MUTATION.size
        value_at = key_at + key_bytes + -key_bytes % 8
        at = value_at + value_bytes + -value_bytes % 8
        if kind not in (SET, CAS, ERASE) or (kind == ERASE and value_bytes) or at > len(frame):
            raise ValueError("no mutation")
        key, value = frame[key_at : key_at + key_bytes], frame[value_at : value_at + value_bytes]
        found.append(Mutation(kind, key, value, tuple(versions[:3]), tuple(versions[3:]), expiry_s))
    if at != len(frame):
        raise ValueError("bytes behind the last")
    return found
