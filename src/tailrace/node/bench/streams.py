"""Streams on durable files: how fast one process produces and consumes, beside the machine's own limits.

Every repeat measures memcpy and the disk first, then our figures, on the same bytes and in the same minute: the machine
may be shared, so only figures of one repeat are compared with each other. One repeat more is run and thrown away, since
memory that a virtual machine touches for the first time is many times slower.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

from ..world import World, open_world
from .report import Figure, result

_VALUE_BYTES = 100
_LARGE_BYTES = 1000

FIGURES = [
    Figure("memcpy_gb_per_s", "GB/s", "limit: copying memory to memory"),
    Figure("disk_mb_per_s", "MB/s", "limit: plain appends with fdatasync, same bytes and pieces as produce_many"),
    Figure("read_gb_per_s", "GB/s", "limit: plain reads of the same files out of the page cache"),
    Figure("produce_send_msgs_per_s", "msg/s", "send(), one call a message, fsync every 100 ms", 1e6),
    Figure("produce_send_async_msgs_per_s", "msg/s", "await send_async(), the same"),
    Figure("produce_many_msgs_per_s", "msg/s", "send_many() of Arrow arrays, fsync every 100 ms", 5e6),
    Figure("produce_lists_msgs_per_s", "msg/s", "send_many() of lists, the same"),
    Figure("produce_many_of_disk", "share", "bytes/s of produce_many, data and index, against the disk limit"),
    Figure("flush_p50_ms", "ms", "flush() of one message: data and index synced"),
    Figure("consume_arrow_msgs_per_s", "msg/s", "to_arrow() of every batch", 5e6),
    Figure("consume_arrow_keyed_msgs_per_s", "msg/s", "the same, with keys"),
    Figure("consume_objects_msgs_per_s", "msg/s", "a Python object for every message", 1e6),
    Figure("consume_bytes_gb_per_s", "GB/s", "raw bytes of 1 KB messages, checked"),
    Figure("consume_bytes_of_memcpy", "share", "the same, against memcpy", 0.5),
    Figure("consume_bytes_copied_of_memcpy", "share", "the same, copied (in_place=False)"),
]


def run(
    repeats: int = 5,
    directory: str | None = None,
    progress: Callable[[str], None] = lambda line: None,
    scale: float = 1.0,
) -> dict[str, Any]:
    """`scale` below 1 shrinks every amount: quick to run, good only to see that it runs."""
    runs = []
    for repeat in range(repeats + 1):
        progress(f"repeat {repeat} of {repeats}" if repeat else "warm-up, not counted")
        with tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=directory) as folder:
            measured = _repeat(folder, scale, progress)
        if repeat:
            runs.append(measured)
    settings = {"message bytes": _VALUE_BYTES, "shards": 1, "buffer_s": 0.1, "scale": scale}
    return result(FIGURES, runs, settings)


def _repeat(folder: str, scale: float, progress: Callable[[str], None]) -> dict[str, float]:
    import pyarrow as pa

    value = os.urandom(_VALUE_BYTES)
    sends, many = int(1_000_000 * scale), int(4_000_000 * scale)
    rows = [value] * min(20_000, many)
    array = pa.array(rows, pa.binary())
    keys = pa.array([b"key-%06d" % i for i in range(len(rows))], pa.binary())
    figures: dict[str, float] = {"memcpy_gb_per_s": _memcpy(int(256e6 * max(scale, 0.1))) / 1e9}
    limits = []

    def produced(count: int, act: Callable[[], object]) -> float:
        """Messages a second. The disk's limit is measured right before: it is what the figure is compared with, and it
        leaves memory that was just touched, which a virtual machine may otherwise have given back to its host."""
        limits.append(_disk(f"{folder}/plain", int(many * (_VALUE_BYTES + 24))) / 1e6)
        return count / _timed(act)

    with open_world(f"{folder}/world") as world:
        progress("produce")
        figures["produce_send_msgs_per_s"] = produced(sends, lambda: _send(world, value, sends))
        figures["produce_send_async_msgs_per_s"] = produced(
            sends, lambda: asyncio.run(_send_async(world, value, sends))
        )
        calls = many // len(rows)
        sent = calls * len(rows)
        figures["produce_many_msgs_per_s"] = produced(sent, lambda: _send_many(world, "many", array, None, calls))
        bytes_per_s = figures["produce_many_msgs_per_s"] * (_VALUE_BYTES + 24)
        figures["produce_many_of_disk"] = bytes_per_s / 1e6 / limits[-1]
        figures["produce_lists_msgs_per_s"] = produced(sent, lambda: _send_many(world, "lists", rows, None, calls))
        figures["disk_mb_per_s"] = sorted(limits)[len(limits) // 2]
        _send_many(world, "keyed", array, keys, calls)
        large = [os.urandom(_LARGE_BYTES)] * 4000
        _send_many(world, "large", large, None, max(1, int(100 * scale)))
        figures["flush_p50_ms"] = _flush_p50_s(world, int(40 * max(scale, 0.1))) * 1e3
        progress("consume")
        figures["read_gb_per_s"] = _plain_read(f"{folder}/world/streams/large/00000") / 1e9
        figures["consume_arrow_msgs_per_s"] = _consume(world, "many", lambda batch: batch.to_arrow().num_rows)
        figures["consume_arrow_keyed_msgs_per_s"] = _consume(world, "keyed", lambda batch: batch.to_arrow().num_rows)
        figures["consume_objects_msgs_per_s"] = _consume(world, "many", lambda batch: sum(1 for _ in batch))
        in_place = _consume(world, "large", lambda batch: len(batch.data))
        copied = _consume(world, "large", lambda batch: len(batch.data), in_place=False)
        figures["consume_bytes_gb_per_s"] = in_place / 1e9
        # The limit again, right beside: on a shared machine it moves within seconds.
        memcpy = _memcpy(int(256e6 * max(scale, 0.1)))
        figures["consume_bytes_of_memcpy"] = in_place / memcpy
        figures["consume_bytes_copied_of_memcpy"] = copied / memcpy
    return figures


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def _memcpy(size: int) -> float:
    """Bytes a second between two buffers that were touched before; the median of seven."""
    source, target = bytearray(size), memoryview(bytearray(size))

    def copy() -> None:
        target[:] = source

    copy()
    return size / sorted(_timed(copy) for _ in range(7))[3]


def _disk(path: str, size: int) -> float:
    """Bytes a second of plain appends, synced every 16 MiB as the producer's buffer is."""
    piece = os.urandom(1 << 20) * 16
    handle = os.open(path, os.O_CREAT | os.O_WRONLY)
    try:

        def append() -> None:
            for _ in range(max(1, size // len(piece))):
                os.write(handle, piece)
                os.fdatasync(handle)

        return max(1, size // len(piece)) * len(piece) / _timed(append)
    finally:
        os.close(handle)
        os.unlink(path)


def _plain_read(folder: str) -> float:
    """Bytes a second of reading the data files into one buffer, in pieces of a batch's size."""
    buffer = memoryview(bytearray(1 << 20))
    paths = [f"{folder}/{name}" for name in sorted(os.listdir(folder)) if name.endswith(".data")]

    def read() -> int:
        total = 0
        for path in paths:
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    total += count
        return total

    size = read()
    return size / _timed(read)


def _send(world: World, value: bytes, count: int) -> None:
    with world.producer("send") as producer:
        for _ in range(count):
            producer.send(value)
        producer.flush()


async def _send_async(world: World, value: bytes, count: int) -> None:
    async with world.producer("send-async") as producer:
        for _ in range(count):
            await producer.send_async(value)
        await producer.flush_async()


def _send_many(world: World, stream: str, values: Any, keys: Any, calls: int) -> None:
    with world.producer(stream) as producer:
        for _ in range(calls):
            producer.send_many(values, keys)
        producer.flush()


def _flush_p50_s(world: World, count: int) -> float:
    with world.producer("flush") as producer:

        def one() -> None:
            producer.send(b"x" * _VALUE_BYTES)
            producer.flush()

        return sorted(_timed(one) for _ in range(count))[count // 2]


def _consume(world: World, stream: str, use: Callable[[Any], int], **settings: Any) -> float:
    """Units a second, whatever `use` counts in a batch."""
    with world.consumer(stream, start="earliest", follow=False, **settings) as consumer:
        begin = time.perf_counter()
        total = sum(use(batch) for batch in consumer)
        return total / (time.perf_counter() - begin)
