"""A work unit: byte ranges that are processed and committed together, once; and the steps of its life (U8 to U10).

    open ──hand out──> held ──commit──> committed ──published──> (gone)
      ^                 │ │
      └────retry────────┘ └──split──> several open ones, and bad ranges

Invariants:
- A unit is committed at most once, by whoever comes first; later commits find it committed or gone.
- Its identity is that of its bytes, so nothing that is said of one unit can be taken for another.
- A unit whose output may already have been published is never split (`whole`).

Pure: every step takes the record and returns the next one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from .ranges import ByteRange, decode, encode, identity, total

Standing = Literal["open", "held", "committed"]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has the unit: a runner, which is one process of a site."""

    site: str
    runner: str


@dataclass(frozen=True)
class Unit:
    ranges: tuple[ByteRange, ...]
    oldest_us: int  # time of the oldest message in it: the order in which units are handed out (U18)
    made_us: int
    site: str  # who should do it
    born: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  # the incarnation of each stream, where it is known
    nearby: tuple[str, ...] = ()  # the sites that had all its bytes, unless every site had them (U15)
    standing: Standing = "open"
    given_us: int = 0  # when `site` was made responsible: the site ETA counts from here
    since_us: int = 0  # of the standing: the local ETA counts from here
    holder: Holder | None = None
    failures: int = 0
    reason: str = ""  # of the last failure
    not_before_us: int = 0  # a pause after a failure
    whole: bool = False
    suspect: bool = False  # part of a unit that failed: divided at its first failure
    receipt: Mapping[str, Any] | None = None  # of the output, once committed

    @cached_property
    def id(self) -> str:
        return identity(self.ranges)

    @cached_property
    def size(self) -> int:
        return total(self.ranges)

    def encode(self) -> dict[str, Any]:
        raw: dict[str, Any] = {
            "ranges": encode(self.ranges),
            "oldest_us": self.oldest_us,
            "made_us": self.made_us,
            "site": self.site,
            "standing": self.standing,
            "given_us": self.given_us,
            "since_us": self.since_us,
        }
        if self.born:
            raw["born"] = dict(self.born)
        if self.nearby:
            raw["nearby"] = list(self.nearby)
        if self.holder is not None:
            raw["holder"] = [self.holder.site, self.holder.runner]
        for name in ("failures", "reason", "not_before_us", "whole", "suspect", "receipt"):
            if value := getattr(self, name):
                raw[name] = value
        return raw

    @classmethod
    def decode(cls, raw: Mapping[str, Any]) -> "Unit":
        given = dict(raw)
        given["ranges"] = decode(given["ranges"])
        given["nearby"] = tuple(given.get("nearby", ()))
        if "holder" in given:
            given["holder"] = Holder(*given["holder"])
        return cls(**given)


def handed_out(unit: Unit, holder: Holder, now_us: int) -> Unit:
    """To a runner, of its own site or of another, which is responsible from now on."""
    assert unit.standing != "committed", unit
    given_us = unit.given_us if holder.site == unit.site else now_us
    return replace(unit, standing="held", holder=holder, site=holder.site, given_us=given_us, since_us=now_us)


def reassigned(unit: Unit, site: str, now_us: int) -> Unit:
    """To another site, since its own is out; whoever still works on it may yet be the first to commit."""
    assert unit.standing != "committed", unit
    return replace(unit, standing="open", holder=None, site=site, given_us=now_us, since_us=now_us)


def committed(unit: Unit, holder: Holder, receipt: Mapping[str, Any], now_us: int) -> Unit | None:
    """With this output; None if another one was faster, and then this output must never be seen."""
    if unit.standing == "committed":
        return None
    return replace(unit, standing="committed", holder=holder, receipt=dict(receipt), since_us=now_us)


def rolled_back(unit: Unit, reason: str, now_us: int) -> Unit:
    """Its output is lost before it was published: do it again. Only where doing it again gives the same (U17)."""
    assert unit.standing == "committed", unit
    return replace(
        unit, standing="open", holder=None, receipt=None, reason=reason, since_us=now_us, given_us=now_us, whole=True
    )
