"""Redis streams: XADD in pipelines and XREAD, through a unix socket.

Entries get ids of one length, so every entry of an answer has the same length, and nothing in it has to be parsed.
Memory is bounded: a stream keeps its newest entries. A consumer that falls behind these goes on with the oldest left.
"""

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import partial

from ...peers.server import Address, PeerFailed, socket_path
from ..contender import Contender, Publisher, Subscription
from ..message import MARK, MESSAGE_BYTES, STAMP_END, stamp_of
from .install import Installer, unpacked
from .pair import Pair
from .sockets import Connection

PACKAGE, _PROGRAM = "redis-server", "/usr/bin/redis-server"
_KEPT = 256 << 10  # entries
_FIRST_ID = 1_000_000_000
_ID_BYTES = len(b"%d-0" % _FIRST_ID)
_READ_AT_ONCE = 512
_ON_THE_WAY_MAX = 4  # pipelines
_ADDED_BYTES = len(b"$%d\r\n%b\r\n" % (_ID_BYTES, b"-" * _ID_BYTES))
_BEFORE_ID = b"*2\r\n$%d\r\n" % _ID_BYTES
_BEFORE_VALUE = b"\r\n*2\r\n$1\r\nd\r\n$%d\r\n" % MESSAGE_BYTES
_ENTRY_BYTES = len(_BEFORE_ID) + _ID_BYTES + len(_BEFORE_VALUE) + MESSAGE_BYTES + 2
_VALUE_AT = len(_BEFORE_ID) + _ID_BYTES + len(_BEFORE_VALUE)


class RedisStreams(Contender):
    name = "redis"
    policy = "appendfsync always where delay is measured, else everysec: it has nothing in between"

    def __init__(self, folder: str, installer: Installer) -> None:
        program, environment = shutil.which("redis-server"), {}
        if program is None:
            root = installer.debian(PACKAGE, _PROGRAM)
            program, environment = root + _PROGRAM, unpacked(root, os.environ)
        asked = os.environ | environment
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False, env=asked).stdout
        self.version = found[1] if (found := re.search(r"v=(\S+)", told)) else told.strip()
        # Not beside the streams: a path to a socket is short.
        self._sockets = tempfile.TemporaryDirectory(prefix="tailrace-fanout-")
        try:
            self._servers = Pair(folder, self.name, partial(_arranged, program, self._sockets.name), environment)
        except BaseException:
            self._sockets.cleanup()
            raise

    def drop(self, stream: str) -> None:
        for address in self._servers.addresses():
            connection = Connection(address)
            connection.send(_command(b"DEL", stream.encode()))
            connection.read_line()
            connection.close()

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._servers.address(synced=synced), stream.encode())

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._servers.address(synced=stamped), stream.encode(), stamped)

    def server_pids(self) -> Sequence[int]:
        return self._servers.pids()

    def close(self) -> None:
        self._servers.close()
        self._sockets.cleanup()


def _arranged(program: str, sockets: str, place: str, synced: bool) -> tuple[Sequence[str], Sequence[Address]]:
    path = socket_path(sockets, "synced" if synced else "plain")
    settings = {
        "port": "0",
        "unixsocket": path,
        "dir": place,
        "daemonize": "no",
        "maxclients": "2000",
        "save": "",
        "appendonly": "yes",
        "appendfsync": "always" if synced else "everysec",
        # A rewrite of the log in the middle of a measurement would be a load of its own.
        "auto-aof-rewrite-percentage": "0",
    }
    return [program, *(word for name, value in settings.items() for word in (f"--{name}", value))], [path]


class _Publisher(Publisher):
    def __init__(self, address: Address, stream: bytes) -> None:
        self._connection = Connection(address)
        self._next_id = _FIRST_ID
        self._before = b"*5\r\n$4\r\nXADD\r\n%b$%d\r\n" % (_word(stream), _ID_BYTES)
        self._after = b"\r\n$1\r\nd\r\n$%d\r\n" % MESSAGE_BYTES
        # One in each pipeline also lets go of what is too old.
        trim = _word(b"MAXLEN") + _word(b"~") + _word(b"%d" % _KEPT)
        self._trimming = b"*8\r\n$4\r\nXADD\r\n%b%b$%d\r\n" % (_word(stream), trim, _ID_BYTES)
        self._on_the_way: list[int] = []
        self._answers = memoryview(bytearray(1 << 20))

    def send(self, messages: list[bytes]) -> None:
        parts, before = [], self._trimming
        for number, message in enumerate(messages, self._next_id):
            parts += [b"%b%d-0%b" % (before, number, self._after), message]
            before = b"\r\n" + self._before
        self._next_id += len(messages)
        self._connection.send(b"".join([*parts, b"\r\n"]))
        self._on_the_way.append(len(messages))
        if len(self._on_the_way) > _ON_THE_WAY_MAX:
            self._confirm()

    def confirmed_bytes(self) -> int:
        return MESSAGE_BYTES * (self._next_id - _FIRST_ID - sum(self._on_the_way))

    def close(self) -> None:
        while self._on_the_way:
            self._confirm()
        self._connection.close()

    def _confirm(self) -> None:
        answers = self._answers[: _ADDED_BYTES * self._on_the_way.pop(0)]
        self._connection.read_whole(answers)
        if answers[0] != ord("$"):
            raise PeerFailed(f"Redis refused a message: {bytes(answers[:200])!r}")


class _Subscription(Subscription):
    def __init__(self, address: Address, stream: bytes, stamped: bool) -> None:
        self._connection = Connection(address)
        self._stream, self._stamped = stream, stamped
        self._last = b"%d-0" % (_FIRST_ID - 1)
        self._entries = memoryview(bytearray(_READ_AT_ONCE * _ENTRY_BYTES))
        head = b"*1\r\n*2\r\n%b*" % _word(stream)
        self._head = memoryview(bytearray(len(head)))

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        block = b"%d" % max(1, int(timeout_s * 1e3))
        words = b"XREAD", b"COUNT", b"%d" % _READ_AT_ONCE, b"BLOCK", block, b"STREAMS", self._stream, self._last
        self._connection.send(_command(*words))
        self._connection.read_whole(self._head[:5])
        if bytes(self._head[:5]) == b"*-1\r\n":
            return 0, ()
        self._connection.read_whole(self._head[5:])
        count = int(self._connection.read_line())
        entries = self._entries[: count * _ENTRY_BYTES]
        self._connection.read_whole(entries)
        last = len(entries) - _ENTRY_BYTES + len(_BEFORE_ID)
        self._last = bytes(entries[last : last + _ID_BYTES])
        if bytes(entries[_VALUE_AT : _VALUE_AT + len(MARK)]) != MARK:
            raise PeerFailed(f"an answer of Redis has another shape: {bytes(entries[:100])!r}")
        values = range(_VALUE_AT, len(entries), _ENTRY_BYTES) if self._stamped else ()
        return count * MESSAGE_BYTES, [stamp_of(entries[at : at + STAMP_END]) for at in values]

    def close(self) -> None:
        self._connection.close()


def _word(word: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(word), word)


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n%b" % (len(words), b"".join(map(_word, words)))
