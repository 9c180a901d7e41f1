"""The producer: buffers messages, flushes them in groups, and pushes back when the disk is slower than the sender.

`send` packs into memory and returns. A background thread flushes every `buffer_s`, or earlier when `buffer_bytes` wait;
`flush()` does it now, in the calling thread, and returns when everything sent before is durable. Whoever flushes, one
flush runs at a time, so messages leave in the order they were sent.
"""

import asyncio
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..config import ProducerConfig
from ..env import Clock, SystemClock, give_way
from ..errors import Closed, Fenced, FlushFailed, SendRefused, TailraceError
from ..native import Packed, Packer
from ..native.hints import take_short_turns
from ..native.sheets import Sheets
from .columns import Columns
from .shadow import Shadow
from .shard_log import ShardLog

if TYPE_CHECKING:
    import pyarrow
    from typing_extensions import Buffer

_FLUSH_THREADS = 8  # shards flushed side by side: their disk waits overlap


class Producer:
    """Sends messages into the shards of one stream. Safe to use from several threads.

    Ordered per shard. At most one producer writes a shard at a time: a newer one shuts an older one out (Fenced).
    """

    def __init__(
        self,
        stream: str,
        shards: int,
        logs: Mapping[int, ShardLog],
        config: ProducerConfig,
        clock: Clock,
        message_bytes_max: int,
        shadow: Shadow | None = None,
        sheets: dict[int, Sheets] | None = None,
    ) -> None:
        """`shadow`: what brings flushed messages to the cache. `sheets`: by shard, where consumers read them in place.
        Both are closed with the producer."""
        self.stream = stream
        self._shadow, self._sheets = shadow, {} if sheets is None else sheets
        self.flushed_count = 0  # messages of this producer that are durable
        self._logs, self._config, self._clock = logs, config, clock
        self._now: Callable[[], int] | None = None if isinstance(clock, SystemClock) else clock.time_us
        self._packer = Packer(
            [logs[shard].position if shard in logs else None for shard in range(shards)],
            [logs[shard].time_us if shard in logs else 0 for shard in range(shards)],
            message_bytes_max,
            self._sheets,
        )
        self._unflushed: dict[int, list[Packed]] = {}  # taken from the packer, not durable yet; retried first
        self._unflushed_bytes = 0
        self._flush_lock = threading.Lock()
        self._counting = threading.Lock()
        self._room = threading.Condition()
        self._blocked = False  # the one thing that the fast path of send looks at
        self._fenced: Fenced | None = None
        self._failure: Exception | None = None  # of the last flush in the background
        self._closed = False
        self._press_bytes = 1 if config.buffer_s == 0 else config.buffer_bytes
        self._wake = threading.Event()
        self._pool = ThreadPoolExecutor(min(len(logs), _FLUSH_THREADS)) if len(logs) > 1 else None
        self._thread: threading.Thread | None = None
        self._indirect = True  # send_async must go through send: it may flush, or the clock is not the machine's
        if not math.isinf(config.buffer_s):
            self._indirect = self._now is not None
            self._thread = threading.Thread(target=self._run, name=f"tailrace flush {stream}", daemon=True)
            self._thread.start()
        self._packer.press_bytes, self._packer.press = self._press_bytes, self._press
        self._packer.long_way = self._send_the_long_way
        self._block(False)
        self.send_async = self._packer.offer

    # ---- sending

    def send(self, value: "Buffer | None", key: "Buffer | None" = None, *, shard: int | None = None) -> None:
        """Send one message: to the given shard, or to the key's, or to each of them in turn.

        value=None with a key is a tombstone: it tells keyed views that the key is gone.
        """
        if self._blocked:
            self._wait_for_room()
        if self._packer.add(value, key, shard, self._now and self._now()) >= self._press_bytes:
            self._press()

    def send_many(
        self,
        values: "Iterable[bytes | None] | pyarrow.Array | pyarrow.ChunkedArray | pyarrow.Table | pyarrow.RecordBatch",
        keys: "Iterable[bytes | None] | pyarrow.Array | pyarrow.ChunkedArray | None" = None,
        *,
        shard: int | None = None,
    ) -> int:
        """Send many at once, all or none of them: lists of bytes, Arrow arrays of binary or text, or a table with the
        columns `value` and, if they have keys, `key`. Without keys all go to one shard. Returns how many."""
        if self._blocked:
            self._wait_for_room()
        time_us = self._now and self._now()
        if (columns := Columns.from_arrow(values, keys)) is not None:
            pending = self._packer.add_columns(*columns.buffers(), 0, columns.count, shard, time_us)
            count = columns.count
        else:
            listed = values if isinstance(values, list) else list(values)
            listed_keys = keys if keys is None or isinstance(keys, list) else list(keys)
            pending = self._packer.add_list(listed, listed_keys, shard, time_us)
            count = len(listed)
        if pending >= self._press_bytes:
            self._press()
        return count

    def flush(self) -> None:
        """Return when everything sent before is durable and visible. After an error, call it again."""
        if self._closed:
            raise self._refusal()
        self._flush()

    @property
    def positions(self) -> dict[int, int]:
        """{shard: where its durable messages end}: behind a flush(), what a consumer or a view must reach to have all
        that was sent."""
        return {shard: log.position for shard, log in self._logs.items()}

    #: `send` for coroutines: await it. When the buffer is full it waits, without stopping the others.
    send_async: Callable[..., Awaitable[None]]

    async def _send_the_long_way(
        self, value: "Buffer | None", key: "Buffer | None" = None, *, shard: int | None = None
    ) -> None:
        await asyncio.to_thread(self.send, value, key, shard=shard)

    async def send_many_async(self, values: Any, keys: Any = None, *, shard: int | None = None) -> int:
        """`send_many` for coroutines."""
        if self._blocked or self._thread is None:
            return await asyncio.to_thread(self.send_many, values, keys, shard=shard)
        return self.send_many(values, keys, shard=shard)

    async def flush_async(self) -> None:
        """`flush` for coroutines."""
        await asyncio.to_thread(self.flush)

    def close(self) -> None:
        """Flush, seal the files and let the shards go. An error tells how many messages are dropped."""
        if self._closed:
            return
        problem = _attempt(self._flush)
        self._packer.close()  # from here on send() refuses, so what this takes is the last
        if problem is None:
            problem = _attempt(self._flush)
        self._closed = True
        self._block(True)
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        if self._pool is not None:
            self._pool.shutdown()
        if self._shadow is not None:
            self._shadow.close()
        self._end_sheets()
        self._packer.let_go()
        sealing = [_attempt(log.close) for log in self._logs.values()]
        dropped = self._packer.pending_count + sum(
            packed.count for parts in self._unflushed.values() for packed in parts
        )
        if problem is not None and dropped:
            raise _dropped(self.stream, dropped, problem) from problem
        if self._fenced is None and any(sealing):
            raise next(problem for problem in sealing if problem)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)

    def _end_sheets(self) -> None:
        """Nothing more is shown. Whoever else knows of them is to let go, too: it is much memory."""
        for sheets in self._sheets.values():
            sheets.close()
        self._sheets.clear()

    # ---- pressure

    def _press(self) -> None:
        """Enough waits for a flush to begin; perhaps so much that the next sender must wait for it."""
        if self._thread is None:
            self._flush()
            return
        if not self._wake.is_set():
            self._wake.set()
        if self._pending_bytes() >= self._config.pending_bytes_max:
            with self._room:  # asked again: a flush may just have made room, and nobody else would take the block away
                self._block(self._pending_bytes() >= self._config.pending_bytes_max)

    def _block(self, blocked: bool) -> None:
        self._blocked = blocked
        self._packer.detour = blocked or self._indirect

    def _wait_for_room(self) -> None:
        if self._closed or self._fenced:
            raise self._refusal()
        deadline_s = self._clock.monotonic_s() + self._config.send_deadline_s
        with self._room:
            while self._blocked and not self._closed and not self._fenced:
                left_s = deadline_s - self._clock.monotonic_s()
                if left_s <= 0:
                    raise SendRefused(
                        f"{self.stream}: {self._pending_bytes()} bytes wait for the disk, and none went within "
                        f"send_deadline_s={self._config.send_deadline_s:g}. It was not taken; send slower, or raise "
                        f"pending_bytes_max. Last flush: {self._failure or 'still running'}"
                    ) from self._failure
                self._room.wait(left_s)
        if self._closed or self._fenced:
            raise self._refusal()

    def _refusal(self) -> TailraceError:
        if self._fenced:
            return Fenced(f"{self.stream}: this producer was shut out and takes no more messages: {self._fenced}")
        return Closed(f"the producer of {self.stream} was closed; open a new one")

    def _pending_bytes(self) -> int:
        return self._packer.pending_bytes + self._unflushed_bytes

    # ---- flushing

    def _run(self) -> None:
        if self._config.buffer_s > 0:
            give_way()  # consumers of this host that are at work keep up, and read what is still near the processor
        else:
            take_short_turns()  # whoever does not buffer is in a hurry
        pause_s = self._config.buffer_s if self._config.buffer_s > 0 else 1.0
        while not self._closed:
            self._clock.wait(self._wake, pause_s)
            self._wake.clear()
            if not self._pending_bytes() or self._closed:
                continue
            try:
                self._flush()
            except Exception as problem:  # whatever it is: kept for those who must wait, and tried again next round
                if self._fenced:
                    return
                self._failure = problem
                self._clock.wait(threading.Event(), min(pause_s, 0.1))

    def _flush(self) -> None:
        with self._flush_lock:
            if self._fenced:
                raise self._refusal()
            if self._unflushed:  # an earlier try failed: its messages come before those sent since
                self._flush_taken()
            self._unflushed = self._packer.take()
            self._count_unflushed()
            self._flush_taken()

    def _flush_taken(self) -> None:
        """Make what was taken durable. What is leaves `_unflushed`, whatever happens to the rest or to us."""
        shards = list(self._unflushed)
        try:
            if self._pool is None or len(shards) == 1:
                problems = [_attempt(lambda shard=shard: self._append(shard)) for shard in shards]  # type: ignore[misc]
            else:
                running = [self._pool.submit(_attempt, partial(self._append, shard)) for shard in shards]
                try:
                    problems = [future.result() for future in running]
                finally:
                    wait(running)  # an interrupt must not leave them at work behind our back
        except BaseException:  # an interrupt; and whoever was at work may have done all of it
            self._count_unflushed()
            self._make_room()
            raise
        self._count_unflushed()
        failed = [problem for problem in problems if problem]
        fenced = next((problem for problem in failed if isinstance(problem, Fenced)), None)
        self._fenced = fenced
        self._make_room()
        if fenced:
            self._end_sheets()
            raise fenced
        if failed:
            raise FlushFailed(
                f"{self.stream}: {len(failed)} of {len(shards)} shards could not be flushed: {failed[0]}. Their "
                "messages are still here: mend the cause and call flush() again"
            ) from failed[0]
        self._failure = None

    def _count_unflushed(self) -> None:
        self._unflushed_bytes = sum(map(_size, self._unflushed.values()))

    def _make_room(self) -> None:
        with self._room:
            full = self._pending_bytes() >= self._config.pending_bytes_max
            self._block(bool(self._fenced) or self._closed or full)
            self._room.notify_all()

    def _append(self, shard: int) -> None:
        parts, log = self._unflushed[shard], self._logs[shard]
        while parts:
            log.append(parts[0])
            self._packer.note_file(shard, log.file_base)
            with self._counting:
                self._unflushed_bytes -= _size(parts[:1])
                self.flushed_count += parts.pop(0).count
            if self._blocked and parts:  # whoever waits can pack the next messages while the rest is written
                self._make_room()
        with self._counting:
            del self._unflushed[shard]


def _dropped(stream: str, count: int, problem: TailraceError) -> TailraceError:
    kind = Fenced if isinstance(problem, Fenced) else FlushFailed
    dropped = kind(f"{stream}: closed, and {count} messages that were not flushed are dropped: {problem}")
    dropped.took_effect = problem.took_effect
    return dropped


def _attempt(act: Callable[[], None]) -> TailraceError | None:
    try:
        act()
    except TailraceError as problem:
        return problem
    return None


def _size(parts: list[Packed]) -> int:
    return sum(len(packed.data) + len(packed.entries) for packed in parts)
