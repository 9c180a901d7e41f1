"""Count what the replicas made of a mutation, and say what that means for whoever asked for it.

Invariant: DONE is said only when a quorum applied it. REFUSED only when nobody applied it and a quorum said why.
Everything else is UNKNOWN: some replica has it or may have it, and a repair may bring it to the others.
Pure: outcomes in, a verdict out.
"""

from dataclasses import dataclass
from enum import IntEnum

from ..native.cell import Outcome


class Verdict(IntEnum):
    DONE = 0
    STALE = 1  # a quorum holds a newer version: nominate a higher one and try again
    MISMATCH = 2  # compare-and-set: a quorum holds another version
    TOO_LARGE = 3
    NO_ROOM = 4
    AHEAD = 5  # our clock is further ahead than the backends allow
    UNREACHABLE = 6  # too few replicas answered, and none of those that did applied it
    UNKNOWN = 7


_REFUSALS = {
    Outcome.STALE: Verdict.STALE,
    Outcome.MISMATCH: Verdict.MISMATCH,
    Outcome.TOO_LARGE: Verdict.TOO_LARGE,
    Outcome.NO_ROOM: Verdict.NO_ROOM,
    Outcome.AHEAD: Verdict.AHEAD,
}


@dataclass(slots=True)
class Tally:
    """The answers of one key's replicas. `silent`: surely not taken; `lost`: nobody knows."""

    copies: int
    quorum: int
    applied: int = 0
    silent: int = 0
    lost: int = 0
    refused: dict[Outcome, int] | None = None

    def count(self, outcome: Outcome) -> None:
        if outcome is Outcome.APPLIED:
            self.applied += 1
        else:
            self.refused = self.refused or {}
            self.refused[outcome] = self.refused.get(outcome, 0) + 1

    def home_took_it(self) -> bool:
        """When only the key's home was asked: whether the others are next. Its refusal is everybody's."""
        for outcome in self.refused or {}:
            self.refused = {outcome: self.copies}
        return self.applied > 0

    def was_outbid(self) -> bool:
        """Some took it, others had something newer already: another client sets the same key right now. Whoever may
        set it again does so, above that."""
        stale = (self.refused or {}).get(Outcome.STALE, 0)
        return stale > 0 and not self.lost and self.applied < self.quorum <= self.applied + stale

    def is_short(self) -> bool:
        """Too few took it, and some surely did not get it: once those are found again, they may have it."""
        return self.silent > 0 and self.verdict() in (Verdict.UNREACHABLE, Verdict.UNKNOWN)

    def verdict(self) -> Verdict:
        if self.applied >= self.quorum:
            return Verdict.DONE
        if self.applied or self.lost:
            return Verdict.UNKNOWN
        refused = self.refused or {}
        for outcome, count in refused.items():
            # Those that did not answer may have refused alike; what counts is that a quorum could not apply it.
            if count > self.copies - self.quorum:
                return _REFUSALS[outcome]
        if sum(refused.values()) > self.copies - self.quorum:
            return _REFUSALS[min(refused)]
        return Verdict.UNREACHABLE
