"""Tailrace in the fan-out benchmark: a world in a folder, nothing else. The producer's process serves the cache."""

import os
import threading
from collections.abc import Sequence

from ... import caches, layers  # noqa: F401  (imported before the processes are forked, not by each of them)
from ...world import World, open_world
from .contender import SYNC_S, Contender, Publisher, Subscription
from .message import stamps_in


class Ours(Contender):
    name = "shm"
    policy = f"synced every {SYNC_S:g} s, and at once where delay is measured; nothing is handed out before"

    def __init__(self, folder: str, version: str) -> None:
        self._folder, self.version = os.path.join(folder, "world"), version
        self._world: World | None = None  # of this process, from its first use on

    def drop(self, stream: str) -> None:
        self._opened().delete_stream(stream)

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._opened(), stream, 0.0 if synced else SYNC_S)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._opened(), stream, stamped)

    def server_cpu_s(self) -> float:
        return 0.0

    def close(self) -> None: ...

    def _opened(self) -> World:
        if self._world is None:
            self._world = open_world(self._folder)
        return self._world


class _Publisher(Publisher):
    def __init__(self, world: World, stream: str, buffer_s: float) -> None:
        self._producer = world.producer(stream, buffer_s=buffer_s)
        self._begin = sum(self._producer.positions.values())
        # All others, and whatever threads are not Python's, count as the server. The main thread's number is the
        # process's; Python may still hold that of the process it was forked from.
        flushing = [thread.native_id for thread in threading.enumerate() if thread.name.startswith("tailrace flush")]
        self.client_threads = [os.getpid(), *(thread for thread in flushing if thread)]

    def send(self, messages: list[bytes]) -> None:
        self._producer.send_many(messages)

    def confirmed_bytes(self) -> int:
        return sum(self._producer.positions.values()) - self._begin

    def close(self) -> None:
        self._producer.close()


class _Subscription(Subscription):
    def __init__(self, world: World, stream: str, stamped: bool) -> None:
        self._consumer = world.consumer(stream, start="latest")
        self._stamped = stamped
        self._consumer.poll(0.0)  # finds the cache

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        batch = self._consumer.poll(timeout_s)
        if batch is None:
            return 0, ()
        return batch.end - batch.start, stamps_in(bytes(batch.data)) if self._stamped else ()

    def close(self) -> None:
        self._consumer.close()
