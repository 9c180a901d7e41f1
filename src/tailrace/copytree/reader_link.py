"""A reader's line to the schedulers of its cluster: it says what it runs and is told what to run.

Each scheduler sees to a share of the operations, and what several order is put together. A scheduler that is away keeps
its last word: its operations go on until another scheduler speaks of them.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from ..env import Clock
from ..errors import TailraceError
from ..wire import Operation, Order, Report
from .reader import Reader

if TYPE_CHECKING:
    from ..wire import CopyPeer

REPORT_S = 0.5
RETRY_S, RETRY_S_MAX = 0.02, 1.0
_LOOK_S = 0.5
_LOG = logging.getLogger(__name__)


class ReaderLink:
    """`schedulers`: their addresses now. `connect` makes a peer of an address."""

    def __init__(
        self,
        reader: Reader,
        clock: Clock,
        schedulers: Callable[[], Sequence[str]],
        connect: "Callable[[str], CopyPeer]",
    ) -> None:
        self._reader, self._clock, self._schedulers, self._connect = reader, clock, schedulers, connect
        self._lock = threading.Lock()
        self._orders: dict[str, dict[Operation, Order]] = {}  # by scheduler
        self._lines: dict[str, _Line] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"tailrace link {reader.name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        for line in list(self._lines.values()):
            line.close()

    @property
    def connected(self) -> bool:
        """Whether every scheduler that is known has told us what to do."""
        lines = list(self._lines.values())
        return bool(lines) and all(line.connected for line in lines)

    def ordered(self, scheduler: str, orders: Sequence[Order]) -> None:
        with self._lock:
            mine = {order.operation: order for order in orders}
            for other, theirs in self._orders.items():
                if other != scheduler and (line := self._lines.get(other)) is not None and not line.connected:
                    for operation in mine:  # somebody speaks of it again: the old word is void
                        theirs.pop(operation, None)
            self._orders[scheduler] = mine
            together = {operation: order for theirs in self._orders.values() for operation, order in theirs.items()}
        self._reader.order(together.values())

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                known = set(self._schedulers())
            except TailraceError:  # the coordination store is away: those we know stay
                known = set(self._lines)
            for address in known - set(self._lines):
                self._lines[address] = _Line(self, address, self._connect)
            for address in set(self._lines) - known:
                if not self._lines[address].connected:
                    self._lines.pop(address).close()
            self._closed.wait(_LOOK_S)


class _Line:
    def __init__(self, link: ReaderLink, address: str, connect: "Callable[[str], CopyPeer]") -> None:
        self._link, self._address, self._connect = link, address, connect
        self.connected = False
        self.problem = ""
        self._closed = threading.Event()
        self._over = threading.Event()
        self._peer: CopyPeer | None = None
        self._thread = threading.Thread(target=self._run, name=f"tailrace line {address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._over.set()
        if self._peer is not None:
            self._peer.close()
        self._thread.join(5.0)

    def _run(self) -> None:
        pause_s = RETRY_S
        self._peer = self._connect(self._address)
        while not self._closed.is_set():
            self._over = threading.Event()
            try:
                for orders in self._peer.work(self._reports(self._over)):
                    self.connected, self.problem, pause_s = True, "", RETRY_S
                    self._link.ordered(self._address, orders.orders)
            except TailraceError as problem:  # it is away: what runs goes on
                if not self._closed.is_set() and (said := str(problem)) != self.problem:
                    self.problem = said
                    _LOG.warning("a scheduler cannot be reached: %s", problem)
            finally:
                self.connected = False
                self._over.set()
            self._closed.wait(pause_s)
            pause_s = min(pause_s * 2, RETRY_S_MAX)

    def _reports(self, over: threading.Event) -> Iterator[Report]:
        reader = self._link._reader
        while not over.is_set() and not self._closed.is_set():
            yield Report(reader=reader.name, running=tuple(reader.running))
            reader.wait_for_change(REPORT_S, over)
