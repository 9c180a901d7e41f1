"""Who writes a shard's cache: a lock in the lengths cache that a newcomer poisons (A45). Pure.

It keeps two operations from overwriting each other's work for long; what is right does not depend on it. The newcomer
marks the lock as poisoned; whoever holds it sees that, stops and releases it. A holder that died does not: then the
newcomer takes the lock after a short wait.

    | holder, 16 bytes | state, 1 byte: held, poisoned or released |
"""

from dataclasses import dataclass
from hashlib import blake2b

SEIZE_S = 0.003  # for one of the same process; another looks much later: the two overlap then, and no harm is done
HOLDER_BYTES = 16
_HELD, _POISONED, _RELEASED = b"\x01", b"\x02", b"\x03"


def lock_key(incarnation: str, shard: int) -> bytes:
    return b"lock " + blake2b(f"{incarnation}/{shard}".encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class Write:
    value: bytes


@dataclass(frozen=True, slots=True)
class Wait:
    """Look again soon."""


@dataclass(frozen=True, slots=True)
class Go:
    """The lock is ours."""


@dataclass(frozen=True, slots=True)
class Stop:
    """A newer operation wants it, or has it."""


Act = Write | Wait | Go | Stop


class CacheLock:
    def __init__(self, holder: bytes, seize_s: float = SEIZE_S) -> None:
        assert len(holder) == HOLDER_BYTES, holder
        self._mine = holder
        self._seize_s = seize_s
        self._held = False
        self._asked: tuple[bytes, float] | None = None  # whom we asked to go, and when

    def seen(self, raw: bytes | None, now_s: float) -> Act:
        """What is to be done, given what the lock says now."""
        holder, state = (raw[:HOLDER_BYTES], raw[HOLDER_BYTES:]) if raw else (b"", _RELEASED)
        if holder == self._mine and state == _HELD:
            self._held = True
            return Go()
        if self._held:
            # Lost with the cache: take it again. Otherwise it is another's, or another wants it.
            return Write(self._mine + _HELD) if raw is None else Stop()
        if state not in (_HELD, _POISONED) or holder == self._mine:
            return Write(self._mine + _HELD)
        if self._asked is None or self._asked[0] != holder:
            self._asked = (holder, now_s)
            return Write(holder + _POISONED)
        return Write(self._mine + _HELD) if now_s >= self._asked[1] + self._seize_s else Wait()

    def release(self, raw: bytes | None) -> Write | None:
        """What to leave behind, given what the lock says now."""
        return Write(self._mine + _RELEASED) if self._held and raw and raw[:HOLDER_BYTES] == self._mine else None
