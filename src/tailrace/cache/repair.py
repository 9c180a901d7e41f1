"""Decide what a backend takes from its cohort, so that all replicas of a key agree again.

Invariant: a backend repairs only itself, only at versions that clients nominated, and only with the word of every other
replica. So a repaired replica never holds what a completed mutation had replaced or erased. docs/decisions/quorum.md.
Pure: lists in, orders out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from .versions import BY_CAS, NOTHING, Version

Hash = bytes


@dataclass(frozen=True, slots=True)
class Told:
    """What one backend says of the keys in question: what it stores, what was erased there, and its summary: the
    largest version that it dropped without a trace."""

    stored: Mapping[Hash, Version]
    erased: Mapping[Hash, Version] = field(default_factory=dict)
    summary: Version = NOTHING

    def may_have_passed(self, key: Hash, version: Version) -> bool:
        """Whether this backend, which does not store the key, may once have had something newer than `version`."""
        return max(self.erased.get(key, NOTHING), self.summary) >= version


@dataclass(frozen=True, slots=True)
class Orders:
    """`fetch`: by the number of the one to ask, the keys to take from it. `erase`: at which version."""

    fetch: tuple[frozenset[Hash], ...]
    erase: Mapping[Hash, Version]


def orders(own: Told, others: tuple[Told, ...]) -> Orders:
    """What to do when all other replicas of these keys have told."""
    fetch: tuple[set[Hash], ...] = tuple(set() for _ in others)
    erase: dict[Hash, Version] = {}
    for key in set(own.stored).union(*(other.stored for other in others)):
        mine = own.stored.get(key, NOTHING)
        theirs = [other.stored.get(key, NOTHING) for other in others]
        newest = max(theirs)
        if newest > mine and newest.sequence & BY_CAS and theirs.count(newest) < len(theirs):
            continue  # it may have failed at the others, or completed: what is older may not be taken, either
        if newest > mine:
            if mine == NOTHING and own.may_have_passed(key, newest):
                continue
            silent = [other for other, version in zip(others, theirs, strict=True) if version == NOTHING]
            if not any(other.may_have_passed(key, newest) for other in silent):
                fetch[theirs.index(newest)].add(key)
        elif newest == NOTHING:
            gone = max((other.erased.get(key, NOTHING) for other in others), default=NOTHING)
            if gone > mine:
                erase[key] = gone
    return Orders(tuple(frozenset(keys) for keys in fetch), erase)
