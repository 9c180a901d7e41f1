"""Redis without persistence, through a unix socket and through TCP, by MGET and MSET and by pipelines.

Its io-threads are left off: on a machine of few cores its own documentation advises against them, and they only wake up
when many connections are busy.
"""

import os
from collections.abc import Iterator, Mapping, Sequence

from ..system import System
from .libraries import RedisPy, importable
from .server import Address, Server, free_port, located, socket_path
from .wire import Wire

PACKAGE = "redis-server"


class _Many(Wire):
    """MGET and MSET."""

    def encode_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int, int, int]:
        words = b"".join(b"$%d\r\n%b\r\n" % (len(key), key) for key in keys)
        payload = b"*%d\r\n$4\r\nMGET\r\n%b" % (len(keys) + 1, words)
        return payload, len(b"*%d\r\n" % len(keys)), len(b"$%d\r\n" % value_bytes), 0

    def encode_set(self, items: Mapping[bytes, bytes]) -> tuple[list[bytes], bytes]:
        parts, end = [], b"*%d\r\n$4\r\nMSET\r\n" % (2 * len(items) + 1)
        for key, value in items.items():
            parts += [b"%b$%d\r\n%b\r\n$%d\r\n" % (end, len(key), key, len(value)), value]
            end = b"\r\n"
        return [*parts, end], b"+OK\r\n"


class _Pipeline(Wire):
    """GET and SET by key, all of a batch sent before the first answer is read."""

    def encode_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int, int, int]:
        payload = b"".join(b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key) for key in keys)
        return payload, 0, len(b"$%d\r\n" % value_bytes), 0

    def encode_set(self, items: Mapping[bytes, bytes]) -> tuple[list[bytes], bytes]:
        parts, end = [], b""
        for key, value in items.items():
            parts += [b"%b*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (end, len(key), key, len(value)), value]
            end = b"\r\n"
        return [*parts, end], b"+OK\r\n" * len(items)


class Redis:
    """The server, and all clients that compete for Redis's figure."""

    name = "redis"

    def __init__(self, folder: str) -> None:
        program = located("redis-server", PACKAGE)

        def arrange() -> tuple[Sequence[str], Sequence[Address]]:
            path, port = socket_path(folder, "redis.sock"), free_port()
            where = ["--unixsocket", path, "--unixsocketperm", "700", "--bind", "127.0.0.1", "--port", str(port)]
            volatile = ["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", folder]
            return [program, *where, *volatile], [path, ("127.0.0.1", port)]

        self._server = Server(arrange, os.path.join(folder, "redis.log"))

    def loaders(self) -> Iterator[System]:
        """One client, to load the server with."""
        yield _Pipeline("redis", self._server, self._server.addresses[0])

    def clients(self) -> Iterator[System]:
        for where, address in zip(("unix", "tcp"), self._server.addresses, strict=True):
            yield _Many(f"redis ({where}): ideal client, MGET/MSET", self._server, address)
            yield _Pipeline(f"redis ({where}): ideal client, pipeline", self._server, address)
            if importable("redis"):
                yield RedisPy(f"redis ({where}): redis-py", self._server, address)

    def unix_path(self) -> str:
        return next(address for address in self._server.addresses if isinstance(address, str))

    def cpu_s(self) -> float:
        return self._server.cpu_s()

    def close(self) -> None:
        self._server.close()
