"""A network in virtual time: lines between hosts that deliver in order, late, or not at all.

A line is a connection: what one end sends arrives at the other in order, after the latency of the way. While the way is
cut everything waits, as it does with TCP; neither end is told. When a process ends, the other end of its lines is told,
as soon as the way allows it.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

from .virtual_time import VirtualTime

_LOOK_S = 0.05  # how often a cut way is tried


class VirtualNetwork:
    def __init__(self, time: VirtualTime, random: Random, latency_s: float = 0.01) -> None:
        self.time, self._random, self.latency_s = time, random, latency_s
        self._cut: set[tuple[str, str]] = set()  # from, to
        self.held = self.slowed = 0  # how much was kept waiting by a cut, or came late over a slow way
        self._slow: dict[frozenset[str], float] = {}

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """`both`: nothing arrives either way; else from the one to the other only."""
        self._cut |= {(one, other), (other, one)} if both else {(one, other)}

    def slow(self, one: str, other: str, factor: float) -> None:
        self._slow[frozenset((one, other))] = factor

    def heal(self) -> None:
        """All ways are as they should be."""
        self._cut.clear()
        self._slow.clear()

    def heal_way(self, one: str, other: str) -> None:
        self._cut -= {(one, other), (other, one)}
        self._slow.pop(frozenset((one, other)), None)

    def is_cut(self, one: str, other: str) -> bool:
        return (one, other) in self._cut

    def delay_s(self, one: str, other: str) -> float:
        usual_s = self.latency_s if one != other else 0.0002
        factor = self._slow.get(frozenset((one, other)), 1.0)
        self.slowed += factor != 1.0
        return usual_s * factor * self._random.uniform(0.8, 1.5)

    def connect(self, one: str, other: str) -> "tuple[End, End]":
        """The two ends of a new line. Give each its `on_message` and `on_closed`."""
        near, far = End(self, one), End(self, other)
        near.peer, far.peer = far, near
        return near, far


class End:
    """One end of a line."""

    def __init__(self, network: VirtualNetwork, host: str) -> None:
        self._network, self.host = network, host
        self.peer: End = self
        self.on_message: Callable[[Any], None] = lambda message: None
        self.on_closed: Callable[[], None] = lambda: None
        self.closed = False
        self._sent: deque[Any] = deque()
        self._free_s = 0.0

    def send(self, message: Any) -> None:
        if not self.closed:
            self._post(message)

    def close(self) -> None:
        """This end hears nothing any more; the other is told."""
        if not self.closed:
            self.closed = True
            self._post(None)

    def _post(self, message: Any) -> None:
        time = self._network.time
        due_s = max(self._free_s, time.now_s + self._network.delay_s(self.host, self.peer.host))
        self._free_s = due_s
        self._sent.append(message)
        time.after(due_s - time.now_s, self._deliver)

    def _deliver(self) -> None:
        if self._network.is_cut(self.host, self.peer.host):
            self._network.held += 1
            self._network.time.after(_LOOK_S, self._deliver)
            return
        if not self._sent:
            return
        message, peer = self._sent.popleft(), self.peer
        if peer.closed:
            return
        if message is None:
            peer.closed = True
            peer.on_closed()
        else:
            peer.on_message(message)
