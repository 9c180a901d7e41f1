"""The processes of one cluster that others may ask: one after the other, until one answers; then that one.

Addresses are looked up before every question, since processes come and go. Who did not answer is asked last.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, Self, TypeVar

from ..env import Clock, SystemClock
from ..errors import Busy, Unreachable, WireProblem

BUSY_S = 5.0  # for so long at most everybody may be busy
_PAUSE_S, _PAUSE_S_MAX = 0.02, 0.5


class Closing(Protocol):
    def close(self) -> None: ...


P = TypeVar("P", bound=Closing)
A = TypeVar("A")


class AnyDoor(Generic[P]):
    """`dial` makes a peer of an address. Safe to use from several threads."""

    def __init__(
        self,
        cluster: str,
        addresses: Callable[[], Sequence[str]],
        dial: Callable[[str], P],
        clock: Clock | None = None,
    ) -> None:
        self._cluster, self._addresses, self._dial, self._clock = cluster, addresses, dial, clock or SystemClock()
        self._lock = threading.Lock()
        self._peers: dict[str, P] = {}
        self._failures: dict[str, int] = {}  # addresses that did not answer, the later the higher
        self._count = 0
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for peer in self._peers.values():
                peer.close()
            self._peers.clear()

    def ask(self, question: Callable[[P], A]) -> A:
        pause_s, until_s = _PAUSE_S, self._clock.monotonic_s() + BUSY_S
        while True:
            try:
                return self._ask_each(question)
            except Busy:
                if self._clock.monotonic_s() + pause_s > until_s or self._clock.wait(self._closed, pause_s):
                    raise
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _ask_each(self, question: Callable[[P], A]) -> A:
        problem: WireProblem | None = None
        for address, peer in self._known():
            try:
                answer = question(peer)
            except WireProblem as seen:
                # That somebody is there, and busy, says more than that others are not.
                problem = seen if problem is None or isinstance(seen, Busy) else problem
                with self._lock:
                    self._count += 1
                    self._failures[address] = self._count
                continue
            self._failures.pop(address, None)
            return answer
        raise problem or Unreachable(f"{self._cluster}: none of its processes is known; is it up?")

    def _known(self) -> list[tuple[str, P]]:
        """Who is there now, in the order to be asked. Those who are gone are hung up on."""
        addresses = list(dict.fromkeys(self._addresses()))
        with self._lock:
            if self._closed.is_set():
                raise Unreachable(f"{self._cluster}: this end was closed")
            for gone in self._peers.keys() - set(addresses):
                self._peers.pop(gone).close()
                self._failures.pop(gone, None)
            for address in addresses:
                if address not in self._peers:
                    self._peers[address] = self._dial(address)
            order = sorted(addresses, key=lambda address: self._failures.get(address, 0))
            return [(address, self._peers[address]) for address in order]
