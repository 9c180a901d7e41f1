"""What the fan-out benchmark asks of every system: a stream, a publisher of it and any number of subscriptions.

Flush policy, alike for all as far as they can: a stream that is `synced` has every message on disk before anybody gets
it; any other stream is synced every SYNC_S. Where a system can only do less, it does less and says so in `policy`.

Invariant: publishers and subscriptions are opened in processes of their own, forked from one that never opened any.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..system import process_cpu_s

SYNC_S = 0.1


class Publisher(ABC):
    #: Threads that work for the publisher when it also serves; None: it does not, the whole process is a client.
    client_threads: Sequence[int] | None = None

    @abstractmethod
    def send(self, messages: list[bytes]) -> None:
        """Take them on their way; wait only when too many are on it."""

    @abstractmethod
    def confirmed_bytes(self) -> int:
        """Of all that was sent, what the system has said it has."""

    @abstractmethod
    def close(self) -> None: ...


class Subscription(ABC):
    aside_bytes = 0  # that came with the last receive() by another way than the one that is measured

    @abstractmethod
    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        """Bytes of messages that came, and the stamps of these messages if the subscription was to look at them."""

    @abstractmethod
    def close(self) -> None: ...


class Contender(ABC):
    name: str
    version: str
    policy: str
    delays: bool = True  # it has any that could be measured
    syncs: bool = True  # it can be told to bring messages to the disk

    def make(self, stream: str, *, synced: bool) -> None:
        """A new stream, where publishing does not make it. Called in a process that ends right after it."""
        return

    def drop(self, stream: str) -> None:
        """Away with it, and with its bytes. Called in a process that ends right after it."""
        return

    @abstractmethod
    def publisher(self, stream: str, *, synced: bool) -> Publisher: ...

    @abstractmethod
    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        """From here on: what is published after this returns is received."""

    def server_pids(self) -> Sequence[int]:
        """The servers' processes; none where the producer serves."""
        return ()

    def server_cpu_s(self) -> float:
        """CPU time of the servers' processes so far."""
        return sum(map(process_cpu_s, self.server_pids()))

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Entry:
    """A peer that may take part: `start` raises PeerMissing when it is not to be had."""

    name: str
    start: Callable[[], Contender]
