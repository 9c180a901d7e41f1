"""What a pipeline has used since it began, as totals: of its runners while they live, of each site once they are gone.

Invariants:
- An account changes only in the transaction that it tells of: what a commit counts is counted once, whoever dies when.
- Its size does not grow: one record for each living runner and one for each site, in each partition of the state.

Work that came to nothing was done all the same: its time counts, with the failed and the refused, and not its messages.

Pure.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

PAST = "past"  # in place of a runner's name, which is a number: those of its site that are gone


@dataclass(frozen=True, slots=True)
class Usage:
    units: int = 0  # that were committed
    messages: int = 0  # in them
    input_bytes: int = 0
    rows: int = 0
    output_bytes: int = 0  # as they were staged
    cpu_s: float = 0.0  # of the processes that did the work, while they did it
    wall_s: float = 0.0
    failed: int = 0  # attempts
    refused: int = 0  # attempts that were done when somebody else had committed the unit

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    def told(self) -> dict[str, Any]:
        return asdict(self) | {"cpu_s": round(self.cpu_s, 6), "wall_s": round(self.wall_s, 6)}

    def encode(self) -> bytes:
        return json.dumps({name: value for name, value in self.told().items() if value}).encode()

    @classmethod
    def decode(cls, raw: bytes | None) -> "Usage":
        """Of a record; of none, nothing. What a later version counts besides is left out."""
        known = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in json.loads(raw or b"{}").items() if name in known})


@dataclass(frozen=True, slots=True)
class Spent:
    """What a change cost, and who did it, as SITE/RUNNER."""

    by: str
    usage: Usage


def total(usages: Iterable[Usage]) -> Usage:
    return sum(usages, start=Usage())


def summary(by_site: Mapping[str, Usage]) -> dict[str, Any]:
    return {
        "total": total(by_site.values()).told(),
        "sites": {site: usage.told() for site, usage in sorted(by_site.items())},
    }
