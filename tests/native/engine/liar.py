"""A server in Python that says what it is told to say: the other side of a link, well-behaved or hostile."""

import socket
import struct
import threading
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tailrace.native.cell import key_hash
from tailrace.native.engine import Link

from .frames import (
    ANSWERED,
    HELLO,
    READ,
    REQUEST,
    SCAN,
    WELCOME,
    Answer,
    Fetched,
    Scanned,
    Welcome,
)
from .served import peer_of, served

KEY, VALUE, VERSION = b"a key", b"the value of it " * 20, (7, 8, 9)


@dataclass(frozen=True)
class Asked:
    """One request, as the server sees it."""

    kind: int
    tag: int
    instance: int
    config_id: int
    items: tuple[bytes, ...]
    data_bytes_max: int


@dataclass(frozen=True)
class Truth:
    """What a true engine says: its welcome, and one entry as it comes with a scan."""

    welcome: Welcome
    found: Scanned

    def answer(self, asked: Asked, **other: object) -> Answer:
        """The right answer, every item of it found; or one that differs in some fields."""
        found = self.found if self.found.size <= asked.data_bytes_max else replace(self.found, raw=b"")
        item = found if asked.kind == SCAN else Fetched(0, self.found.raw)
        head = (self.welcome.instance, self.welcome.config_id, self.welcome.generation)
        sizes = (self.welcome.buckets, self.welcome.reserved)
        right = Answer(asked.kind, ANSWERED, asked.tag, *head, *sizes, 0, (item,) * len(asked.items))
        return replace(right, **other)  # type: ignore[arg-type]


def learn_truth() -> Truth:
    with served() as (cell, engine), peer_of(engine) as peer:
        cell.set(KEY, VALUE, VERSION)
        (found,) = peer.scan([key_hash(KEY)])
        return Truth(peer.welcome, found)


Says = Callable[[Asked], Iterable[bytes]]


class Liar:
    """Takes one connection after the other; says the welcome, then for each request what `says` yields."""

    def __init__(self, welcome: bytes, says: Says) -> None:
        self.welcome, self.says = welcome, says
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection:
                try:
                    self._serve(connection)
                except (OSError, EOFError):
                    continue

    def _serve(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _exactly(connection, HELLO.size)
        connection.sendall(self.welcome)
        while len(self.welcome) == WELCOME.size:  # else nobody could tell where answers begin
            size, kind, _, tag, instance, config_id, count, _, most, _ = REQUEST.unpack(
                _exactly(connection, REQUEST.size)
            )
            body = _exactly(connection, size - REQUEST.size)
            each = len(body) // count if count else 0
            items = tuple(body[at : at + each] for at in range(0, len(body), each or 1))
            assert each == {SCAN: 16, READ: 40}.get(kind, 0)
            for part in self.says(Asked(kind, tag, instance, config_id, items, most)):
                connection.sendall(part)

    def close(self) -> None:
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(count - len(parts))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


@contextmanager
def link_to_liar(truth: Truth, says: Says, deadline_s: float = 60.0):
    liar = Liar(truth.welcome.pack(), says)
    link = Link(*liar.address, bytes(32), deadline_s)
    try:
        yield link
    finally:
        link.close()
        liar.close()


def resized(frame: bytes) -> bytes:
    """With the size that it has."""
    return struct.pack("<I", len(frame)) + frame[4:]
