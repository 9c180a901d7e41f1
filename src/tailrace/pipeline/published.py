"""What a sink has published, in as few words as can be: stretches of positions, over any number of files.

A note for each unit would grow for ever. But units are made of bytes that follow each other, so what was published
grows together: one stretch for each shard, and one more for each hole, where work is under way or was given up.

Invariant: a stretch never covers a byte that was not published. Stretches are joined only where one ends exactly where
the next begins, in the same incarnation of the stream: positions of a stream that was made anew mean other bytes.

Pure.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .ranges import ByteRange
from .tracking import base_of

VERSION = 1


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """Positions [begin, end) of a shard, in the files from `first` to `last`, by their names, which sort by age."""

    stream: str
    incarnation: str
    shard: int
    first: str
    begin: int
    last: str
    end: int

    def covers(self, one: ByteRange) -> bool:
        return self.begin <= one.begin and one.end <= self.end and self.first <= one.file <= self.last

    def ranges(self, files: Sequence[str]) -> list[ByteRange]:
        """File by file. `files`: those of the shard that are known here."""
        between = [name for name in files if self.first <= name <= self.last]
        names = sorted({self.first, self.last, *between})
        ends = [*(base_of(name) for name in names[1:]), self.end]
        found = [
            ByteRange(self.stream, self.shard, name, max(self.begin, base_of(name)), min(self.end, end))
            for name, end in zip(names, ends, strict=True)
        ]
        return [one for one in found if one.size > 0]


def add(known: Iterable[Stretch], ranges: Iterable[ByteRange], born: Mapping[str, str]) -> tuple[Stretch, ...]:
    """With these ranges. `born`: the incarnation of each stream; what is known of none keeps to itself."""
    new = [
        Stretch(one.stream, born.get(one.stream, ""), one.shard, one.file, one.begin, one.file, one.end)
        for one in ranges
    ]
    joined: list[Stretch] = []
    for one in sorted([*known, *new]):
        before = joined[-1] if joined else None
        if (
            before is not None
            and (before.stream, before.incarnation, before.shard) == (one.stream, one.incarnation, one.shard)
            and before.end == one.begin
            and before.last <= one.first
        ):
            joined[-1] = replace(before, last=one.last, end=one.end)
        else:
            joined.append(one)
    return tuple(joined)


def has_all(known: Iterable[Stretch], ranges: Iterable[ByteRange], born: Mapping[str, str]) -> bool:
    """Whether every one of the ranges was published."""
    listed = list(known)
    return all(
        any(
            (one.stream, one.incarnation, one.shard) == (wanted.stream, born.get(wanted.stream, ""), wanted.shard)
            and one.covers(wanted)
            for one in listed
        )
        for wanted in ranges
    )


def encode(known: Iterable[Stretch]) -> str:
    rows = [[s.stream, s.incarnation, s.shard, s.first, s.begin, s.last, s.end] for s in known]
    return json.dumps({"version": VERSION, "published": rows}, separators=(",", ":"))


def decode(text: str) -> tuple[Stretch, ...]:
    """ValueError if it is none of ours."""
    table: Any = json.loads(text)
    if not isinstance(table, dict) or table.get("version") != VERSION:
        raise ValueError("is no account of what was published that this Tailrace knows")
    return tuple(Stretch(*row) for row in table["published"])
