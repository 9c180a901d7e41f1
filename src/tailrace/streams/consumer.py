"""The consumer: follows many shards of many streams, fairly, at its own pace, and remembers how far it came.

A consumer polls: nothing pushes messages at it. Batches of one shard come in order; shards take turns.
"""

import asyncio
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Self

from ..config import ConsumerConfig
from ..env import Clock, SystemClock
from ..errors import Closed, ConfigError, Corrupt, FileProblem
from ..native.client import Watcher
from ..native.hints import Waiter
from ..native.vigil import Watchman
from .batch import Batch
from .board import Board
from .lodging import Moves
from .rate import RateLimit
from .tail import ShardTail, Start
from .tracks import DELAY_S, SILENT_S

Place = tuple[str, int]  # (stream, shard)
_MOVING_S = 0.5  # how often a consumer that waits asks whether it should read elsewhere
_ASIDE_S = 0.5
# Who has nothing to sleep on looks at most a fifth of its time, however slow a look has become: hundreds who look over
# and over would take the processor from those whom they wait for.
_PAUSES, _PAUSE_S_MAX = 4.0, 0.25
_SOON_S = DELAY_S / 2  # how long it waits by the shortest way
_UNSETTLED_S = SILENT_S + 2 * DELAY_S  # what a hint announced may show so much later, when the file is turned to


class Consumer(Watchman[Batch]):
    """Iterate over it for batches; `async for` works too. Not for several threads at once.

    follow: wait for more at the end. Without it, an iteration ends when all that was there when it began is handed out.
    """

    def __init__(
        self,
        tails: Iterable[ShardTail],
        config: ConsumerConfig,
        clock: Clock,
        *,
        follow: bool = True,
        commit: Callable[[Mapping[Place, int]], None] | None = None,
        board: Board | None = None,
        moves: Moves | None = None,
    ) -> None:
        """`board`: what the lengths cache says, for tails that read through the cache. `moves`: where else to read
        while the cluster is ill."""
        self._board, self._moves = board, moves
        self._waiter: Waiter | None = None
        self._drained = False  # the last batch was all there is …
        self._streaming = False  # … or there is more where it came from: one look at the cache, and nothing else
        self._vigil = None  # who reads the only shard, while its producer shows what it has
        self._look_s = 0.0  # how long the last look took
        self._quiet_since_s: float | None = None  # neither a hint nor a batch came since; None: one just did
        self._tails = {(tail.stream, tail.shard): tail for tail in tails}
        self._config, self._clock, self._follow, self._batch_bytes = config, clock, follow, config.copied_batch_bytes
        self._commit = commit
        if board is not None and isinstance(clock, SystemClock):
            self._waiter = board.waiter(self._tails)
        self._turns = deque(self._tails)
        self._paused: set[Place] = set()
        self._ends: dict[Place, int] = {}
        self._stop, self._stopped = threading.Event(), False  # the same twice: one to wait for, one to look at
        self._reading = threading.Lock()  # so that close() takes no file away from under a read
        self._sleeper: ThreadPoolExecutor | None = None  # of coroutines that wait
        self._kept = None  # read, but not handed out: whoever asked for it was cancelled
        self._limit = None if config.bytes_per_s is None else RateLimit(config.bytes_per_s, clock.monotonic_s())
        if len({stream for stream, _ in self._tails}) == 1:
            self._only_stream: str | None = next(iter(self._tails))[0]
        else:
            self._only_stream = None

    # ---- batches

    def _poll(self, timeout_s: float) -> Batch | None:
        deadline_s = self._clock.monotonic_s() + timeout_s
        if (batch := self._soon(timeout_s)) is not None:
            return batch
        while True:
            if self._stop.is_set():
                raise Closed("this consumer was closed; open a new one")
            pause_s = self._throttle_s()
            if pause_s == 0.0:
                if (batch := self._next(timeout_s)) is not None:
                    return batch
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    return None
                self._wait_for_news(left_s)
                continue
            left_s = deadline_s - self._clock.monotonic_s()
            if left_s <= 0:
                return None
            self._clock.wait(self._stop, min(pause_s, left_s))

    def __iter__(self) -> Iterator[Batch]:
        self._begin()
        while not self._stop.is_set():
            if pause_s := self._throttle_s():
                self._clock.wait(self._stop, pause_s)
            elif (batch := self._next(math.inf if self._follow else 0.0)) is not None:
                yield batch
            elif self._follow:
                self._wait_for_news(math.inf)
            elif self._is_behind():
                self._clock.wait(self._stop, self._config.poll_s)
            else:
                return

    def _wait_for_news(self, timeout_s: float) -> None:
        """Until somebody says that there may be more; where nobody does, for a moment."""
        if self._moves is not None and self._moves.away:
            self._clock.wait(self._stop, min(self._config.poll_s, timeout_s))
            return
        if self._moves is not None:
            timeout_s = min(timeout_s, _MOVING_S)
        now_s = self._clock.monotonic_s()
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        unsettled = now_s < self._quiet_since_s + _UNSETTLED_S
        news = self._sleep(min(timeout_s, DELAY_S / 2) if unsettled else timeout_s)
        if news:
            self._quiet_since_s = None
        elif news is None:
            pause_s = max(self._config.poll_s, min(_PAUSES * self._look_s, _PAUSE_S_MAX))
            self._clock.wait(self._stop, min(pause_s, timeout_s))

    def _sleep(self, timeout_s: float) -> bool | None:
        """On this host's hints where producers raise them, else on what the lengths cache says, wherever it is. Whether
        there was news within the time; None: there is nothing to sleep on."""
        if self._board is None:
            return None
        if self._waiter is not None and (longest_s := self._board.sleep_s_max()):
            try:
                near = all(tail.near for tail in self._tails.values())
                return self._waiter.wait_for(min(timeout_s, longest_s), further=not near)
            except OSError:
                self._waiter = None  # this kernel has no such wait
        return self._board.wait(timeout_s) if isinstance(self._clock, SystemClock) else None

    async def __aiter__(self) -> AsyncIterator[Batch]:
        """Reads in a thread, so that a slow disk does not stop the other coroutines."""
        await asyncio.to_thread(self._begin)
        while not self._stop.is_set():
            if pause_s := self._throttle_s():
                await asyncio.sleep(pause_s)
            elif await asyncio.to_thread(self._keep_next):
                yield self._hand_out()
            elif self._follow:
                await self._sleep_aside()
            elif self._is_behind():
                await asyncio.sleep(self._config.poll_s)
            else:
                return

    async def _sleep_aside(self) -> None:
        """In a thread of our own, so that hundreds who wait leave the common ones to those who work; and for a moment
        only, since nobody can wake it when whoever waits here is cancelled."""
        if self._sleeper is None:
            self._sleeper = ThreadPoolExecutor(1, thread_name_prefix="tailrace consumer")
        await asyncio.get_running_loop().run_in_executor(self._sleeper, self._wait_for_news, _ASIDE_S)

    def _begin(self) -> None:
        """An iteration that does not follow ends where the shards end now: a producer that goes on must not keep it."""
        if not self._follow:
            self._vigil = None
            with self._reading:
                self._ends = {}
                for place, tail in self._tails.items():
                    with suppress(Corrupt):  # then it goes as far as it can, and says so there
                        self._ends[place] = tail.end()

    def _is_behind(self) -> bool:
        """Whether an iteration must not end yet: the cache may show later what was flushed when the iteration began."""
        with self._reading:
            tails = [(place, tail) for place, tail in self._tails.items() if place not in self._paused]
            return any(tail.position < self._ends.get(place, 0) for place, tail in tails)

    def _throttle_s(self) -> float:
        """How long the rate limit asks to wait before more is read."""
        return self._limit.wait_s(self._clock.monotonic_s()) if self._limit else 0.0

    def _next(self, timeout_s: float) -> Batch | None:
        """What is there; or, for those who would wait next, what comes soon."""
        if (batch := self._soon(timeout_s)) is not None:
            return batch
        return self._hand_out() if self._keep_next() else None

    def _soon(self, timeout_s: float) -> Batch | None:
        """What follows the last batch, by the shortest way: whoever slept, or has just read a lot, finds little of
        itself in the processor's cache, and hundreds may do so at the same moment. None: the long way must tell.

        Right after a batch that was all there is a look would find nothing: so first wait for the next hint."""
        if self._vigil is not None:
            return self._watch(self._vigil, timeout_s)
        drained = self._drained
        if not drained and not self._streaming:
            return None
        self._drained = self._streaming = False
        timeout_s = timeout_s if timeout_s < _SOON_S else _SOON_S
        if drained and (timeout_s <= 0 or not self._sleep(timeout_s)):
            return None
        return self._glance()

    def _glance(self) -> Batch | None:
        batch = None
        with self._reading:
            if self._kept is None and not self._paused and not self._ends:
                (tail,) = self._tails.values()
                with suppress(FileProblem):  # the long way will meet it, and knows what to do
                    batch = tail.glance(self._batch_bytes)
                if batch is not None:
                    self._quiet_since_s = None
                    self._note_end(tail)
        if self._stopped:
            self.close()  # it was called while we read, and left the files to us
        return batch

    def _note_end(self, tail: ShardTail) -> None:
        """Whether the next batch can be had by the shortest way: it looks at nothing but the one shard's cache."""
        if len(self._tails) == 1 and self._limit is None:
            streams = self._moves is None
            self._drained = self._streaming = False
            if tail.was_shown and self._waiter is not None and not self._ends:
                self._vigil = tail.watch(self._waiter, _SOON_S, streams=streams)
                return
            self._drained = tail.drained
            self._streaming = not self._drained and streams
            if self._drained and not self._ends and (watcher := self._far_watcher()) is not None:
                self._vigil = tail.watch_from_afar(watcher, self._reading, _SOON_S)
                self._drained = self._vigil is None

    def _far_watcher(self) -> Watcher | None:
        """What a consumer of another host than the cache sleeps on; None: it sleeps on hints, or on nothing."""
        if self._board is None or not isinstance(self._clock, SystemClock):
            return None
        return self._board.watcher() if self._waiter is None or not self._board.sleep_s_max() else None

    def _hand_out(self) -> Batch:
        batch, self._kept = self._kept, None
        assert batch is not None
        return batch

    def _keep_next(self) -> bool:
        """Read the next batch, unless one is kept. Apart from handing it out: in between, a coroutine may be cancelled,
        and then the batch counts as not handed out until the next one asks."""
        with self._reading:
            if self._kept is None:
                begun_s = self._clock.monotonic_s()
                self._kept = batch = self._read()
                self._look_s = self._clock.monotonic_s() - begun_s
                if batch is not None:
                    self._note_end(self._tails[batch.stream, batch.shard])
                else:
                    for tail in self._tails.values():
                        tail.rest()
        if self._stop.is_set():
            self.close()  # it was called while we read, and left the files to us
        return self._kept is not None

    def _read(self) -> Batch | None:
        self._vigil = None
        if self._moves is not None and self._moves.is_due():
            self._move(self._moves)
        if self._board is not None:
            if self._waiter is not None:
                self._waiter.look()  # before the shards: what comes meanwhile ends the next wait
            self._board.begin_round()
        for _ in range(len(self._turns)):
            place = self._turns[0]
            self._turns.rotate(-1)
            tail = self._tails[place]
            if place in self._paused or self._stop.is_set() or tail.position >= self._ends.get(place, math.inf):
                continue
            try:
                batch = tail.poll(self._batch_bytes)
            except FileProblem as problem:
                if self._moves is None or not self._moves.failed(place, problem):
                    raise
                continue
            if batch is not None:
                self._quiet_since_s = None
                if self._limit:
                    self._limit.took(batch.end - batch.start, self._clock.monotonic_s())
                return batch
        return None

    def _move(self, moves: Moves) -> None:
        for place, tail in moves.look({place: tail.position for place, tail in self._tails.items()}).items():
            self._tails[place].close()
            self._tails[place] = tail

    # ---- where it is

    @property
    def clusters(self) -> Mapping[str, str]:
        """In a world of clusters, where each stream is read now: at home, or, while that is ill, nearby. Else empty."""
        return {} if self._moves is None else self._moves.clusters()

    @property
    def positions(self) -> Mapping[Place, int]:
        """{(stream, shard): where the next message to hand out begins}."""
        with self._reading:
            found = {place: tail.position for place, tail in self._tails.items()}
            if self._kept is not None:
                found[self._kept.stream, self._kept.shard] = self._kept.start
            return found

    def position(self, shard: int = 0, *, stream: str | None = None) -> int:
        (place,) = self._places(shard, stream)
        return self.positions[place]

    def seek(self, start: Start, shard: int | None = None, *, stream: str | None = None) -> None:
        """Go to 'earliest', 'latest', a time, or a position (of one shard). The next batch comes from there."""
        places = self._places(shard, stream)
        if isinstance(start, int) and len(places) > 1:
            raise ValueError(f"position {start} of which shard? Name one of {len(places)}: seek({start}, shard=…)")
        with self._reading:
            if self._kept is not None:  # give it back, so that every shard stands where it was handed out to
                self._tails[self._kept.stream, self._kept.shard].seek(self._kept.start)
                self._kept = None
            self._drained = self._streaming = False
            self._vigil = None
            for place in places:
                self._tails[place].seek(start)

    def pause(self, shard: int | None = None, *, stream: str | None = None) -> None:
        """Hand out nothing from this shard, or from any, until resume()."""
        vigil, self._vigil = self._vigil, None
        if vigil is not None:
            vigil.relieve()  # also from whoever waits there; the tail goes on where it has come to
        self._paused.update(self._places(shard, stream))

    def resume(self, shard: int | None = None, *, stream: str | None = None) -> None:
        self._paused.difference_update(self._places(shard, stream))

    def commit(self) -> None:
        """Remember under the checkpoint's name that all batches handed out so far are done with; durable on return."""
        if self._commit is None:
            raise ConfigError("commit() needs a name: open the consumer with checkpoint='NAME'. Nothing was stored")
        self._commit(self.positions)

    def close(self) -> None:
        """Stops an iteration that waits in another thread, too. Safe in a signal handler: it never waits."""
        self._stopped = True
        self._vigil = None
        self._stop.set()
        if (waiter := self._waiter) is not None:
            waiter.stop()
        if self._board is not None:
            self._board.stop()
        if self._reading.acquire(blocking=False):  # else whoever reads closes the files when it is done
            try:
                for tail in self._tails.values():
                    tail.close()
            finally:
                self._reading.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _places(self, shard: int | None, stream: str | None) -> list[Place]:
        stream = stream or self._only_stream
        if stream is None and shard is not None:
            raise ValueError(f"shard {shard} of which stream? This consumer follows several: name it with stream=…")
        found = [p for p in self._tails if stream in (None, p[0]) and shard in (None, p[1])]
        if not found:
            raise ValueError(f"this consumer does not follow {stream}/{'any' if shard is None else shard}")
        return found
