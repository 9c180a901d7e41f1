"""Ask the members of an etcd cluster, one after the other, until one answers or the time is over.

What only looks, or may happen twice without harm, is asked again elsewhere when a member does not answer. Anything else
is asked again only if it is known not to have happened; otherwise the error says that nobody knows.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tailrace.config import TlsConfig
from tailrace.errors import Closed, CoordinationError, Denied, WireProblem
from tailrace.wire import EtcdPeer, EtcdRefused

T = TypeVar("T")

_ATTEMPT_S = 1.0  # so long may a member take to answer what can be asked elsewhere
_PAUSE_S = 0.05  # after all of them have failed


class Members:
    """Safe to share between threads. All stay with the member that answered last."""

    def __init__(self, endpoints: Sequence[str], tls: TlsConfig | None, deadline_s: float) -> None:
        self._peers = [EtcdPeer(endpoint, tls=tls) for endpoint in endpoints]
        self._deadline_s = deadline_s
        self._current = 0
        self._closing = threading.Event()

    @property
    def named(self) -> str:
        return ", ".join(peer.address for peer in self._peers)

    def ask(self, tried: str, call: Callable[[EtcdPeer, float], T], *, repeatable: bool = True) -> T:
        """What `call` returns for the first member that answers. EtcdRefused is an answer."""
        end_s = time.monotonic() + self._deadline_s
        attempts = 0
        while True:
            self.check_open(tried)
            number = self._current
            left_s = max(end_s - time.monotonic(), 0.01)
            try:
                return call(self._peers[number], min(left_s, _ATTEMPT_S) if repeatable else left_s)
            except (EtcdRefused, Closed):
                self.check_open(tried)
                raise
            except WireProblem as problem:
                self.check_open(tried)
                attempts += 1
                unknown = problem.took_effect is not False and not repeatable
                if unknown or time.monotonic() + _PAUSE_S >= end_s or self._hopeless(problem, attempts):
                    raise self._explained(tried, problem, attempts, unknown) from problem
                self.leave(number)
                if attempts % len(self._peers) == 0:
                    self._closing.wait(_PAUSE_S)

    def current(self, tried: str) -> tuple[int, EtcdPeer]:
        self.check_open(tried)
        number = self._current
        return number, self._peers[number]

    def leave(self, number: int) -> None:
        """This one does not answer: the next one is asked from now on."""
        if self._current == number:
            self._current = (number + 1) % len(self._peers)

    def pause(self) -> None:
        self._closing.wait(_PAUSE_S)

    def check_open(self, tried: str) -> None:
        if self._closing.is_set():
            raise Closed(f"{tried} in etcd: the store was closed; open a new one")

    def close(self) -> None:
        self._closing.set()
        for peer in self._peers:
            peer.close()

    def _hopeless(self, problem: WireProblem, attempts: int) -> bool:
        """Nobody is trusted, and asking again does not change that."""
        return isinstance(problem, Denied) and attempts >= len(self._peers)

    def _explained(self, tried: str, problem: WireProblem, attempts: int, unknown: bool) -> CoordinationError:
        if unknown:
            advice = "it may have happened: look at what is stored before trying again"
        else:
            advice = f"asked {attempts} times among {self.named}; nothing was done, try again when most of them are up"
        explained = CoordinationError(f"{tried} in etcd: {problem}; {advice}")
        explained.took_effect = None if unknown else False
        return explained
