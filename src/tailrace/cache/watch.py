"""Sleeping until one of a few keys has another value, wherever the cache is.

An engine of a backend that has the key is asked, and answers when there is news: nobody looks over and over. One
backend's word is enough, since it is no more than a hint to look.
"""

import math
from collections.abc import Sequence

from ..env import Clock
from ..errors import Closed, TailraceError, Unreachable
from ..native.client import Watcher, replicas_of
from .ways import Ways

# Who wants to sleep has time. When hundreds come at once, one that gave up early would look over and over instead, and
# take from the others the processor that their answers wait for.
_CONNECT_S = 2.0
_RETRY_S = 1.0  # before a cache that could not be watched is tried again


class Watch:
    """Belongs to one thread at a time, but for `stop`. `skip`: bytes of values that do not count."""

    def __init__(self, ways: Ways, keys: Sequence[bytes], skip: tuple[int, int], clock: Clock) -> None:
        self._ways, self._keys, self._skip, self._clock = ways, list(keys), skip, clock
        self._native: Watcher | None = None
        self._failed_s = -math.inf
        self._stopped = False

    def wait(self, timeout_s: float) -> bool:
        """Whether there was news within the time; the first wait has some at once. Unreachable: this cache cannot be
        watched now, look now and then; it is tried again some time later."""
        if self._stopped:
            raise Closed("this watch was stopped; make another")
        native = self._reach()
        try:
            return native.wait(timeout_s)
        except ConnectionError as seen:
            raise self._fail(str(seen)) from seen

    @property
    def native(self) -> Watcher | None:
        """What sleeps, for those who wait without a call through Python; None: there is none, wait() looks for one."""
        return self._native

    def stop(self) -> None:
        """Whoever waits returns. Safe in a signal handler."""
        self._stopped = True
        if (native := self._native) is not None:
            native.stop()

    def _reach(self) -> Watcher:
        if self._native is None:
            now_s = self._clock.monotonic_s()
            if now_s < self._failed_s + _RETRY_S:
                raise self._fail("it failed a moment ago", now_s=self._failed_s)
            try:
                native = self._connect()
            except (OSError, ValueError, TailraceError) as seen:
                raise self._fail(str(seen)) from seen
            self._native = native
            if self._stopped:  # meanwhile
                native.stop()
        return self._native

    def _connect(self) -> Watcher:
        """Each key at its home, or at the next backend that has it and is there."""
        config, alive = self._ways.record.config, self._ways.alive()
        places = []
        for key in self._keys:
            there = [number for number in replicas_of(key, config.backends, config.copies) if number in alive]
            if not there:
                raise Unreachable("no backend that has the key is there")
            places.append(there[0])
        native = Watcher(self._keys, places, self._skip)
        for number in sorted(set(places)):
            door = self._ways.door(number, _CONNECT_S)
            if door is None:
                raise Unreachable(f"backend {number} has no engine")
            native.attach(number, door.host, door.port, door.ticket, _CONNECT_S)
        return native

    def _fail(self, why: str, now_s: float | None = None) -> Unreachable:
        self._native, self._failed_s = None, self._clock.monotonic_s() if now_s is None else now_s
        problem = Unreachable(
            f"watch {len(self._keys)} keys of the cache {self._ways.name}: {why}; nothing was changed"
        )
        problem.took_effect = False
        return problem
