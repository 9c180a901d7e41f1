"""The least that a system of consumer processes does: a message is written and synced, and as many processes as there
are consumers wake to look at its stamp, which all of them share. Nothing else is done; nor is what waits behind a slow
sync synced together, as a system may do."""

import mmap
import os
from collections.abc import Sequence

from ....native.hints import Hints, Waiter
from .contender import Contender, Publisher, Subscription
from .message import stamp_of

_SLOT = 0
_STAMPS = 256  # the last ones; whoever is further behind has lost some


class Wake(Contender):
    name = "wake"
    version = ""
    policy = "written and synced, then all are woken"

    def __init__(self, folder: str) -> None:
        self._hints, self._log = os.path.join(folder, "wake-hints"), os.path.join(folder, "wake-log")
        Hints(self._hints, make=True)
        # How many there were, and the last of them.
        self._words = memoryview(mmap.mmap(-1, 8 * (1 + _STAMPS))).cast("Q")

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Waker(Hints(self._hints), self._log, self._words)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Sleeper(Waiter(Hints(self._hints), [_SLOT]), self._words)

    def close(self) -> None: ...


class _Waker(Publisher):
    def __init__(self, hints: Hints, log: str, words: memoryview) -> None:
        self._hints, self._words = hints, words
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self._written_bytes = 0

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            self._written_bytes += os.write(self._log, message)
            os.fdatasync(self._log)
            self._words[1 + self._words[0] % _STAMPS] = stamp_of(message)
            self._words[0] += 1
            self._hints.raise_(_SLOT)

    def confirmed_bytes(self) -> int:
        return self._written_bytes

    def close(self) -> None:
        os.close(self._log)


class _Sleeper(Subscription):
    def __init__(self, waiter: Waiter, words: memoryview) -> None:
        self._waiter, self._words = waiter, words
        self._seen = words[0]

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        self._waiter.wait_near(timeout_s)
        before, self._seen = self._seen, self._words[0]
        begin = max(before, self._seen - _STAMPS)
        return 8 * (self._seen - before), [self._words[1 + n % _STAMPS] for n in range(begin, self._seen)]

    def close(self) -> None: ...
