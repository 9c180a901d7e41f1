"""One operation at a reader: keeps a call open to a writer, sends what comes into being, and begins again elsewhere
when the call breaks.

The thread here listens to the writer; the thread that sends belongs to the wire, and asks for batch after batch.
An operation that a newer one has displaced ends: whoever ordered it says whether it is to come back.
"""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, Protocol

from ..env import Clock
from ..errors import DeadlineExceeded, PeerFailed, Superseded, TailraceError
from ..wire import Batch, Opening, Order, Running, Standing
from .compression import Squeeze
from .window import Window

if TYPE_CHECKING:  # with them comes gRPC
    from ..wire import CopyCall, CopyPeer

BEAT_S = 0.5  # how often a reader without news says that it is alive; so soon a displaced operation notices
SILENT_S = 3.0  # a writer that says nothing for so long is given up
RETRY_S, RETRY_S_MAX = 0.01, 1.0  # before the same writer is tried again


class Source(Protocol):
    """The reading half of an operation."""

    @property
    def behind_bytes(self) -> int: ...

    @property
    def gather_s(self) -> float:
        """How long to let news gather once all is sent."""
        ...

    def begin(self, standing: Standing) -> None: ...

    def next_batch(self, room_bytes: int) -> Batch | None: ...

    def beat(self) -> Batch:
        """What is said when there is nothing to send."""
        ...

    def close(self) -> None: ...


class Copying:
    """`begin` makes the opening and the source; it is called again for each try. `connect` finds the peer of an
    address."""

    def __init__(
        self,
        order: Order,
        clock: Clock,
        begin: Callable[[Order], tuple[Opening, Source]],
        connect: Callable[[str], "CopyPeer"],
        *,
        beat_s: float = BEAT_S,
        silent_s: float = SILENT_S,
    ) -> None:
        self.order, self._clock, self._begin, self._connect = order, clock, begin, connect
        self._beat_s, self._silent_s = beat_s, silent_s
        self._changing = threading.Condition()
        self._stopped = False
        self._news = 0  # how often somebody said that there may be more
        self._waits_for: Literal["news", "room"] | None = None  # the thread that sends: others need not wake it
        self._call: CopyCall | None = None
        self._heard_s = clock.monotonic_s()
        self._running = Running(operation=order.operation)
        self._thread = threading.Thread(target=self._run, name=f"tailrace copy {order.operation}", daemon=True)
        self._thread.start()

    # ---- from outside

    @property
    def running(self) -> Running:
        return self._running

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def wake(self) -> None:
        """There may be more to send."""
        with self._changing:
            self._news += 1
            if self._waits_for == "news":
                self._changing.notify_all()

    def watch(self, now_s: float) -> None:
        """Give up a writer that has fallen silent."""
        call = self._call
        if call is not None and now_s > self._heard_s + self._silent_s:
            self._note(problem=f"no word from the writer for {self._silent_s:g} s")
            call.cancel()

    def stop(self) -> None:
        with self._changing:
            self._stopped = True
            self._changing.notify_all()
        if (call := self._call) is not None:
            call.cancel()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    # ---- the thread that listens

    def _run(self) -> None:
        turn = failures = 0
        while not self._stopped:
            writers = self.order.writers
            writer = writers[turn % len(writers)]
            self._note(state="starting")
            try:
                self._once(writer)  # a writer that ends a call without a word is stopping
            except Superseded as displaced:
                self._note(state="superseded", problem=str(displaced))
                return
            except TailraceError as problem:
                ran = self._running.state == "running"
                failures = 1 if ran else failures + 1
                self._note(state="failed", problem=str(problem))
            turn = writers.index(writer) + 1  # another one at once …
            if failures >= len(writers) and not self._stopped:  # … but when all were tried, after a while
                pause_s = min(RETRY_S * 2 ** min(failures // len(writers), 10), RETRY_S_MAX)
                with self._changing:
                    self._changing.wait_for(lambda: self._stopped, pause_s)

    def _once(self, writer: str) -> None:
        opening, source = self._begin(self.order)
        sending = _Sending(self, source, Squeeze() if self.order.compression else None)
        self._heard_s = self._clock.monotonic_s()
        try:
            self._call = call = self._connect(writer).copy(opening, sending.batches())
            if self._stopped:
                call.cancel()
            for standing in call:
                self._heard_s = self._clock.monotonic_s()
                if not sending.heard(standing):
                    raise PeerFailed(f"{self.order.operation}: {writer} took more than was sent")
                self._note(writer=writer, state="running", problem="")
            if sending.problem is not None:
                raise sending.problem
        except TailraceError as problem:
            silent = self._clock.monotonic_s() > self._heard_s + self._silent_s
            raise DeadlineExceeded(f"{self.order.operation}: {self._running.problem}") if silent else problem from None
        finally:
            self._call = None
            sending.end()

    def _note(self, **changes: object) -> None:
        self._running = replace(self._running, **changes)  # type: ignore[arg-type]


class _Sending:
    """What the thread of the wire does for one call."""

    def __init__(self, copying: Copying, source: Source, squeeze: Squeeze | None) -> None:
        self._copying, self._source, self._squeeze = copying, source, squeeze
        self._changing = copying._changing
        self._window = Window()
        self._begun = self._over = False
        self._reading = threading.Lock()
        self._not_before_s = 0.0  # by the rate limit, or while news gather
        self.problem: TailraceError | None = None

    def heard(self, standing: Standing) -> bool:
        with self._changing:
            if not self._begun:
                self._source.begin(standing)
                self._begun = True
            fits = self._window.taken(standing.taken_bytes, standing.window_bytes, self._copying._clock.monotonic_s())
            if self._copying._waits_for == "room":
                self._changing.notify_all()
            return fits

    def end(self) -> None:
        with self._changing:
            self._over = True
            self._changing.notify_all()
        with self._reading:
            self._source.close()

    def batches(self) -> Iterator[Batch]:
        try:
            yield from self._batches()
        except TailraceError as problem:  # the call ends here; whoever listens to it takes it from here
            self.problem = problem

    def _batches(self) -> Iterator[Batch]:
        copying, clock = self._copying, self._copying._clock
        beat_s = clock.monotonic_s() + copying._beat_s
        told = -1  # the news of which all was sent: until there are others, a look would show nothing
        while (room_bytes := self._wait_for_room()) is not None:
            if (news := copying._news) == told:
                self._wait_for_news(news, beat_s - clock.monotonic_s())
                told = -1
                continue
            with self._reading:
                if self._is_over():
                    return
                batch = self._source.next_batch(room_bytes)
                behind_bytes = self._source.behind_bytes
            now_s = clock.monotonic_s()
            if batch is None:
                if now_s < beat_s:
                    self._wait_for_news(news, beat_s - now_s)
                    continue
                batch = self._source.beat()
            batch = replace(batch, behind_bytes=behind_bytes)
            beat_s = now_s + copying._beat_s
            self._window.sent(batch.size, now_s)
            copying._note(copied_bytes=copying._running.copied_bytes + batch.size, behind_bytes=behind_bytes)
            if rate := copying.order.bytes_per_s:
                self._not_before_s = max(self._not_before_s, now_s) + batch.size / rate
            if not behind_bytes:
                self._not_before_s = max(self._not_before_s, now_s + self._source.gather_s)
            told = news if not behind_bytes else -1
            if self._squeeze is not None:
                batch = replace(batch, pieces=tuple(map(self._squeeze.compress, batch.pieces)))
            yield batch

    def _is_over(self) -> bool:
        return self._over or self._copying._stopped

    def _wait_for_news(self, known: int, timeout_s: float) -> None:
        copying = self._copying
        with self._changing:
            copying._waits_for = "news"
            self._changing.wait_for(lambda: self._is_over() or copying._news != known, timeout_s)
            copying._waits_for = None

    def _wait_for_room(self) -> int | None:
        """How much may be sent now; None: nothing any more."""
        with self._changing:
            while not self._is_over():
                wait_s = self._not_before_s - self._copying._clock.monotonic_s()
                room_bytes = self._window.room_bytes if self._begun else 0
                if wait_s <= 0 and room_bytes and room_bytes * 4 >= self._window.granted_bytes:
                    return room_bytes
                self._copying._waits_for = "room" if wait_s <= 0 else None
                self._changing.wait(wait_s if wait_s > 0 else None)
                self._copying._waits_for = None
        return None
