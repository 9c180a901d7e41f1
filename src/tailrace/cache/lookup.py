"""Decide what a key is from what its backends answered by RPC: the slow way round, with the rules of the fast one.

Invariant: a value is believed only if `need` backends have it at the same version. Pure: answers in, a finding out.
"""

from collections.abc import Sequence
from typing import NamedTuple

from .versions import Version


class Found(NamedTuple):
    value: bytes
    version: Version


def decide(answers: Sequence[Found | None], need: int) -> Found | None:
    """What `need` of these agree on, newest first. Too few answers, or none that agree, is a miss.

    >>> old, new = Found(b"old", Version(1, 1, 0)), Found(b"new", Version(2, 1, 0))
    >>> decide([old, new, new], need=2) == new
    True
    >>> decide([old, new, None], need=2) is None
    True
    """
    for candidate in sorted(filter(None, answers), key=lambda found: found.version, reverse=True):
        if sum(answer is not None and answer.version == candidate.version for answer in answers) >= need:
            return candidate
    return None
