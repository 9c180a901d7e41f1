"""What a chapter of the demo is: something to be seen, and at its end whether it was as promised."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .view import View


@dataclass(frozen=True, slots=True)
class Told:
    """What a chapter found. `problems` is empty when all went well; `closing` says it in lines for a person, `figures`
    in values that JSON takes."""

    problems: list[str]
    closing: list[str]
    verdict: str  # if there are no problems
    figures: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chapter:
    """`tell` gets a folder of its own, for how many seconds about it should run, and where to show things.
    `absent` says why it cannot be told on this machine; empty: it can."""

    name: str
    title: str
    tell: Callable[[str, float, View], Told]
    absent: Callable[[], str] = lambda: ""


@dataclass(slots=True)
class Notes:
    """What happened when, beside the pictures."""

    begin_s: float = field(default_factory=time.monotonic)
    lines: list[str] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begin_s

    def add(self, text: str) -> None:
        self.lines.append(f"{self.elapsed_s:5.1f} s  {text}")
