"""Rows on their way to a producer: those that belong together, and those that cannot be sent."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

Value = bytes | None
Parse = Callable[[bytes], tuple[Value, Value]]  # a line's value and key; ValueError says what is wrong with it

BATCH_BYTES = 1 << 20  # rows are handed on when they hold this much


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive rows: lists of bytes, or Arrow arrays. `lines` are their line (or row) numbers, counted from 1."""

    values: Any
    keys: Any | None
    lines: Sequence[int]
    size_bytes: int  # of values and keys


@dataclass(frozen=True, slots=True)
class BadRow:
    line: int
    why: str


@dataclass(slots=True)
class Draft:
    """Rows that come one by one, until there are enough of them."""

    keyed: bool
    values: list[Value] = field(default_factory=list)
    keys: list[Value] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, line: int, value: Value, key: Value) -> None:
        self.values.append(value)
        self.keys.append(key)
        self.lines.append(line)
        self.size_bytes += len(value or b"") + len(key or b"")

    def take(self) -> Iterator[Rows]:
        """What there is, if anything."""
        if self.values:
            yield Rows(self.values, self.keys if self.keyed else None, self.lines, self.size_bytes)
            self.values, self.keys, self.lines, self.size_bytes = [], [], [], 0
