"""Tailrace in the fan-out benchmark, five ways.

shm         a world in a folder, nothing else: consumers get messages where the producer has them, and count them
reading     the same, and they read every byte of them
tcp         as if consumers were on another host than producer and cache: they share no memory and no hints with them
ambassador  the same, with an ambassador on the consumers' host
wire        as tcp, and they do not share a disk either: what counts is what comes by the connection
"""

import os
import struct
import sys
import threading
import time
from collections.abc import Sequence

from ....config import WorldConfig
from ....native import crc32c
from ... import caches, layers  # noqa: F401  (imported before the processes are forked, not by each of them)
from ...world import World, open_world
from ..peers.server import PeerFailed, Server, free_port
from .contender import SYNC_S, Contender, Publisher, Subscription
from .message import stamp_of_one, stamps_side_by_side

TCP, AMBASSADOR, READ, WIRE = "tcp", "ambassador", "reading", "wire"
_HOST, _HOME, _ABROAD = "TAILRACE_HOST", "home", "abroad"
_FIND_S = 30.0
_FIRST = b"first"  # of every stream


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
        return (_Stamps if stamped else _Subscription)(self._opened(), stream, "relaxed")

    def close(self) -> None: ...

    def _opened(self) -> World:
        if self._world is None:
            self._world = open_world(self._folder)
        return self._world


class Reading(Ours):
    """Of what is handed out in place nothing is moved, and who only counts messages touches next to nothing of it. This
    is what it is like for those who look at everything."""

    name = READ
    delays = False

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._opened(), stream, "relaxed", summed=True)


class Abroad(Ours):
    """Consumers are on a host of their own. `ambassador`: it has one."""

    def __init__(self, folder: str, version: str, *, ambassador: bool) -> None:
        super().__init__(folder, version)
        self.name = AMBASSADOR if ambassador else TCP
        self._folder = os.path.join(folder, self.name)
        self._brings = ambassador
        os.makedirs(self._folder)
        self._servers = [Server(self._cache_node, f"{self._folder}-cache.log", environment={_HOST: _HOME})]
        if ambassador:
            self._servers.append(Server(self._ambassador, f"{self._folder}.log", environment={_HOST: _ABROAD}))

    def _cache_node(self) -> tuple[Sequence[str], Sequence[tuple[str, int]]]:
        """Two caches, so two ports of each kind, one behind the other."""
        host, listen = "127.0.0.1", free_port(4)
        engine, doors = listen + 2, [(host, listen + further) for further in range(4)]
        return [*self._node("cache"), "--listen", f"{host}:{listen}", "--engine", f"{host}:{engine}"], doors

    def _ambassador(self) -> tuple[Sequence[str], Sequence[tuple[str, int]]]:
        return self._node("ambassador"), []

    def _node(self, role: str) -> list[str]:
        return [sys.executable, "-m", "tailrace", "node", "--world", self._folder, "--roles", role]

    def drop(self, stream: str) -> None:
        self._on(_HOME).delete_stream(stream)

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._on(_HOME), stream, 0.0 if synced else SYNC_S)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        nearest = AMBASSADOR if self._brings else "relaxed"
        return (_Stamps if stamped else _Subscription)(self._on(_ABROAD), stream, nearest)

    def server_pids(self) -> Sequence[int]:
        return [server.pid for server in self._servers]

    def close(self) -> None:
        for server in reversed(self._servers):
            server.close()

    def _on(self, host: str) -> World:
        if self._world is None:
            self._world = open_world(self._folder, config=WorldConfig(host=host))
        return self._world


class Wire(Ours):
    """By the servers of another one, whose consumers may read files of this machine in place where that is quicker."""

    name = WIRE
    delays = False

    def __init__(self, tcp: Abroad) -> None:
        self._tcp, self.version = tcp, tcp.version

    def drop(self, stream: str) -> None:
        self._tcp.drop(stream)

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return self._tcp.publisher(stream, synced=synced)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _ByWire(self._tcp._on(_ABROAD), stream, "relaxed", in_place=False)

    def server_pids(self) -> Sequence[int]:
        return self._tcp.server_pids()


class _Publisher(Publisher):
    def __init__(self, world: World, stream: str, buffer_s: float) -> None:
        self._producer = world.producer(stream, buffer_s=buffer_s)
        self._producer.send(_FIRST)
        self._producer.flush()
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
    """It begins when it has found the cache that it is to read, and got one message: then everything is open, as the
    peers' connections are, and as it is in any world that has run for a while."""

    def __init__(self, world: World, stream: str, nearest: str, *, summed: bool = False, in_place: bool = True) -> None:
        end_s = time.monotonic() + _FIND_S
        while (found := world._find_layers()) is None or found.nearest != nearest:
            if time.monotonic() > end_s:
                raise PeerFailed(f"{stream}: no cache to read in {_FIND_S:g} s")
            time.sleep(0.05)
        self._consumer = world.consumer(stream, start="earliest", in_place=in_place)
        self._bytes_from, self._summed = found.bytes_from, summed  # the first is the world's, whichever cache it reads
        if self._consumer.poll(_FIND_S) is None:
            raise PeerFailed(f"{stream}: no message in {_FIND_S:g} s")
        self._consumer.poll(0.01)
        self._poll = self._consumer.poll

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        batch = self._poll(timeout_s)
        if batch is None:
            return 0, ()
        if self._summed:
            crc32c(batch)
        return batch.end - batch.start, ()

    def close(self) -> None:
        self._consumer.close()


class _ByWire(_Subscription):
    """What had to be read from files does not count."""

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        before = self._bytes_from["durable"]
        received, stamps = super().receive(timeout_s)
        self.aside_bytes = min(received, self._bytes_from["durable"] - before)
        return received - self.aside_bytes, stamps


class _Stamps(_Subscription):
    """For those who look when each message was sent. A hundred of them wake together, into an interpreter that has gone
    cold: it is asked for as little as possible."""

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        poll = self._poll
        batch = poll(timeout_s)
        if batch is None:
            return 0, ()
        try:
            return 0, stamp_of_one(batch)
        except struct.error:
            return 0, stamps_side_by_side(batch)
