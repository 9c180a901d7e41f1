"""Byte ranges of message files, and what can be done with them: merge, subtract, cut. Pure.

Invariant: a range lies within one message file, and its ends are positions of the shard, so it means the same bytes in
every cluster. A message belongs to the range in which it begins.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..native import hash64


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """<file, begin, end>; the file by the name of its data file, which carries when it was made.

    >>> ByteRange("clicks", 0, "00000000000000000007-00000000000000004096.data", 4096, 5000).size
    904
    """

    stream: str
    shard: int
    file: str
    begin: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.begin

    @property
    def place(self) -> tuple[str, int, str]:
        return self.stream, self.shard, self.file

    def __str__(self) -> str:
        return f"{self.stream}/{self.shard:05d}/{self.file} positions {self.begin} to {self.end}"


def encode(ranges: Iterable[ByteRange]) -> list[list[Any]]:
    return [[one.stream, one.shard, one.file, one.begin, one.end] for one in ranges]


def decode(raw: Iterable[Sequence[Any]]) -> tuple[ByteRange, ...]:
    return tuple(ByteRange(*one) for one in raw)


def total(ranges: Iterable[ByteRange]) -> int:
    return sum(one.size for one in ranges)


def identity(ranges: Sequence[ByteRange]) -> str:
    """A name for exactly these bytes. Two units of one name are the same work, so whichever of them is committed, the
    right bytes are.

    >>> identity([ByteRange("clicks", 3, "f.data", 10, 20)])
    'clicks-00003-00000000000000000010-b3899f22e2cf05d0'
    """
    first = min(ranges)
    content = "\n".join(f"{one.stream} {one.shard} {one.file} {one.begin} {one.end}" for one in sorted(ranges))
    return f"{first.stream}-{first.shard:05d}-{first.begin:020d}-{hash64(content.encode()):016x}"


def merge(ranges: Iterable[ByteRange]) -> list[ByteRange]:
    """The same bytes in as few ranges as can be, sorted. Overlapping ones become one."""
    merged: list[ByteRange] = []
    for one in sorted(ranges):
        if merged and merged[-1].place == one.place and one.begin <= merged[-1].end:
            merged[-1] = replace(merged[-1], end=max(merged[-1].end, one.end))
        elif one.size > 0:
            merged.append(one)
    return merged


def subtract(ranges: Iterable[ByteRange], taken: Iterable[ByteRange]) -> list[ByteRange]:
    """What is left of the ranges, sorted and merged, without the bytes of the others."""
    holes = merge(taken)
    left: list[ByteRange] = []
    for one in merge(ranges):
        at = one.begin
        for hole in holes:
            if hole.place != one.place or hole.end <= at or hole.begin >= one.end:
                continue
            if hole.begin > at:
                left.append(replace(one, begin=at, end=hole.begin))
            at = max(at, hole.end)
        if at < one.end:
            left.append(replace(one, begin=at))
    return left


def overlap(ranges: Sequence[ByteRange]) -> ByteRange | None:
    """Some bytes that two of the ranges have in common; None if there are none."""
    ordered = sorted(ranges)
    for one, other in pairwise(ordered):
        if one.place == other.place and other.begin < one.end:
            return replace(other, end=min(one.end, other.end))
    return None
