"""RabbitMQ streams: the server of the distribution with its stream plug-in, and a lean client of the stream protocol.

It never syncs a stream: what it promises is copies on other nodes. Its figures are those of a weaker promise.
"""

import os
import shutil
from collections.abc import Sequence
from itertools import count
from struct import Struct, pack, unpack_from

from ...peers.server import Address, PeerFailed, Server, free_port
from ..contender import Contender, Publisher, Subscription
from ..message import MESSAGE_BYTES, stamps_in
from .install import Installer, unpacked
from .sockets import Connection, port_of

PACKAGE = "rabbitmq-server"
# The script itself: the one on the PATH of Debian changes to another user first.
_SCRIPTS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
_ERLANG = "/usr/lib/erlang"
_START_S = 60.0
_STREAM_BYTES_MAX = 4 << 30
_ON_THE_WAY_MAX = 4096
_CREDIT = 8  # chunks on their way to a consumer

_HEAD = Struct(">IHH")  # bytes that follow, key, version
_OK = 1
_DECLARE_PUBLISHER, _PUBLISH, _CONFIRM, _PUBLISH_ERROR, _SUBSCRIBE, _DELIVER, _GIVE_CREDIT = 1, 2, 3, 4, 7, 8, 9
_CREATE, _DELETE, _PEER_PROPERTIES, _HANDSHAKE, _AUTHENTICATE, _TUNE, _OPEN = 13, 14, 17, 18, 19, 20, 21
_ANSWER = 0x8000
_NEXT_OFFSET = 3
_RECORDS_AT = 5  # behind the subscription: magic, kind and number of entries of the chunk


class RabbitStreams(Contender):
    name = "rabbitmq"
    policy = "never synced: it has no such setting"
    syncs = False

    def __init__(self, folder: str, installer: Installer) -> None:
        script = next((path for path in _SCRIPTS if os.path.exists(path)), None) or shutil.which("rabbitmq-server")
        epmd, unpacked_there = shutil.which("epmd"), dict[str, str]()
        if script is None or epmd is None:
            root = installer.debian(PACKAGE, f"{_ERLANG}/bin/erl")
            script, epmd = root + _SCRIPTS[0], f"{root}{_ERLANG}/bin/epmd"
            unpacked_there = unpacked(root, os.environ)
            _settle_erlang(root)
        place = os.path.join(folder, "rabbitmq")
        os.makedirs(place)
        with open(os.path.join(place, "plugins"), "w") as file:
            file.write("[rabbitmq_stream].\n")
        names = Server(lambda: _names(epmd), os.path.join(place, "epmd.log"), environment=unpacked_there)
        self._servers = [names]
        try:
            environment = {
                **unpacked_there,
                "HOME": place,  # for its cookie
                "ERL_EPMD_PORT": str(port_of(names.addresses[0])),
                # Without it the script stays in between, and what it is told does not reach the server.
                "RABBITMQ_ALLOW_INPUT": "1",
                "RABBITMQ_NODENAME": f"fanout{os.getpid()}@localhost",
                "RABBITMQ_MNESIA_BASE": os.path.join(place, "data"),
                "RABBITMQ_LOG_BASE": os.path.join(place, "logs"),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_ENABLED_PLUGINS_FILE": os.path.join(place, "plugins"),
                "RABBITMQ_CONFIG_FILE": os.path.join(place, "rabbitmq.conf"),
                # Idle schedulers that spin would take processor time from whoever is measured next.
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput +sbwt none +sbwtdcpu none +sbwtdio none"
                " -kernel inet_dist_use_interface {127,0,0,1}",
            }
            server = Server(
                lambda: _server(script, place, environment),
                os.path.join(place, "log"),
                start_s=_START_S,
                environment=environment,
            )
            self._servers.append(server)
            self._address = server.addresses[0]
            client = _Client(self._address)
            self.version = client.server_version
            client.close()
        except BaseException:
            self.close()
            raise

    def make(self, stream: str, *, synced: bool) -> None:
        arguments = [("max-length-bytes", str(_STREAM_BYTES_MAX)), ("stream-max-segment-size-bytes", str(256 << 20))]
        client = _Client(self._address)
        client.ask(
            _CREATE, _text(stream) + pack(">I", len(arguments)) + b"".join(_text(a) + _text(b) for a, b in arguments)
        )
        client.close()

    def drop(self, stream: str) -> None:
        client = _Client(self._address)
        client.ask(_DELETE, _text(stream))
        client.close()

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._address, stream)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._address, stream, stamped)

    def server_pids(self) -> Sequence[int]:
        return [server.pid for server in self._servers]

    def close(self) -> None:
        for server in reversed(self._servers):
            server.close()


def _settle_erlang(root: str) -> None:
    """Its start script knows only the place where the distribution would have put it."""
    path = f"{root}{_ERLANG}/bin/erl"
    with open(path) as file:
        script = file.read()
    with open(path, "w") as file:
        file.write(script.replace(f"ROOTDIR={_ERLANG}\n", f"ROOTDIR={root}{_ERLANG}\n"))


def _names(epmd: str) -> tuple[Sequence[str], Sequence[Address]]:
    """Erlang's directory of nodes, for this one alone; one that it starts itself would outlive it."""
    port = free_port()
    return [epmd, "-port", str(port), "-address", "127.0.0.1"], [("127.0.0.1", port)]


def _server(script: str, place: str, environment: dict[str, str]) -> tuple[Sequence[str], Sequence[Address]]:
    port = free_port()
    with open(os.path.join(place, "rabbitmq.conf"), "w") as file:
        file.write(f"listeners.tcp.1 = 127.0.0.1:{free_port()}\nstream.listeners.tcp.1 = 127.0.0.1:{port}\n")
        file.write("vm_memory_high_watermark.absolute = 2GB\n")
    environment["RABBITMQ_DIST_PORT"] = str(free_port())
    return [script], [("127.0.0.1", port)]


class _Client:
    """The stream protocol, as much of it as is needed."""

    def __init__(self, address: Address) -> None:
        self.connection = Connection(address)
        self._numbers = count(1)
        self._room = memoryview(bytearray(1 << 20))
        told = self.ask(_PEER_PROPERTIES, pack(">I", 0))
        self.server_version = _properties(told).get("version", "")
        self.ask(_HANDSHAKE, b"")
        self.send(_AUTHENTICATE, pack(">I", next(self._numbers)) + _text("PLAIN") + _bytes(b"\0guest\0guest"))
        waiting = {_AUTHENTICATE | _ANSWER, _TUNE}
        while waiting:
            key, frame = self.frame()
            if key == _AUTHENTICATE | _ANSWER and unpack_from(">H", frame, 4)[0] != _OK:
                raise PeerFailed(f"RabbitMQ refused its own guest: code {unpack_from('>H', frame, 4)[0]}")
            if key == _TUNE:
                frame_max, _ = unpack_from(">II", frame)
                self.send(_TUNE, pack(">II", frame_max, 0))  # no heartbeats
            waiting.discard(key)
        self.ask(_OPEN, _text("/"))

    def send(self, key: int, content: bytes) -> None:
        self.connection.send(_HEAD.pack(4 + len(content), key, 1) + content)

    def frame(self) -> tuple[int, memoryview]:
        """The next one, whatever it is: its key and its content, which is valid until the next call."""
        self.connection.read_whole(self._room[: _HEAD.size])
        size, key, _ = _HEAD.unpack_from(self._room)
        if size - 4 > len(self._room):
            self._room = memoryview(bytearray(2 * size))
        content = self._room[: size - 4]
        if content:
            self.connection.read_whole(content)
        return key, content

    def ask(self, key: int, content: bytes) -> memoryview:
        self.send(key, pack(">I", next(self._numbers)) + content)
        while True:
            came, frame = self.frame()
            if came == key | _ANSWER:
                (code,) = unpack_from(">H", frame, 4)
                if code != _OK:
                    raise PeerFailed(f"RabbitMQ refused request {key}: code {code}")
                return frame[6:]

    def close(self) -> None:
        self.connection.close()


class _Publisher(Publisher):
    def __init__(self, address: Address, stream: str) -> None:
        self._client = _Client(address)
        self._client.ask(_DECLARE_PUBLISHER, pack(">B", 0) + _text("") + _text(stream))
        self._next = 0
        self._on_the_way = 0

    def send(self, messages: list[bytes]) -> None:
        parts = [pack(">BI", 0, len(messages))]
        for number, message in enumerate(messages, self._next):
            parts += [pack(">QI", number, len(message)), message]
        self._next += len(messages)
        self._client.send(_PUBLISH, b"".join(parts))
        self._on_the_way += len(messages)
        while self._on_the_way > _ON_THE_WAY_MAX or self._client.connection.arrives(0.0):
            self._confirm()

    def confirmed_bytes(self) -> int:
        return MESSAGE_BYTES * (self._next - self._on_the_way)

    def close(self) -> None:
        while self._on_the_way and self._client.connection.arrives(1.0):
            self._confirm()
        self._client.close()

    def _confirm(self) -> None:
        key, frame = self._client.frame()
        if key == _CONFIRM:
            self._on_the_way -= unpack_from(">I", frame, 1)[0]
        elif key == _PUBLISH_ERROR:
            raise PeerFailed("RabbitMQ refused a message")


class _Subscription(Subscription):
    def __init__(self, address: Address, stream: str, stamped: bool) -> None:
        self._client = _Client(address)
        self._stamped = stamped
        self._client.ask(_SUBSCRIBE, pack(">B", 0) + _text(stream) + pack(">HHI", _NEXT_OFFSET, _CREDIT, 0))

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        if not self._client.connection.arrives(timeout_s):
            return 0, ()
        key, frame = self._client.frame()
        if key != _DELIVER:
            return 0, ()
        self._client.send(_GIVE_CREDIT, pack(">BH", 0, 1))
        (records,) = unpack_from(">I", frame, _RECORDS_AT)
        return records * MESSAGE_BYTES, stamps_in(bytes(frame)) if self._stamped else ()

    def close(self) -> None:
        self._client.close()


def _text(text: str) -> bytes:
    return pack(">H", len(text)) + text.encode()


def _bytes(content: bytes) -> bytes:
    return pack(">I", len(content)) + content


def _properties(frame: memoryview) -> dict[str, str]:
    (entries,), at = unpack_from(">I", frame), 4
    words = []
    for _ in range(2 * entries):
        (size,) = unpack_from(">H", frame, at)
        words.append(bytes(frame[at + 2 : at + 2 + size]).decode())
        at += 2 + size
    return dict(zip(words[::2], words[1::2], strict=True))
