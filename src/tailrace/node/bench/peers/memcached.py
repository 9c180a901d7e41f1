"""memcached, with one and two threads, through a unix socket and through TCP, in its classic and its meta dialect."""

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack

from ..system import System
from .libraries import Pylibmc, importable
from .server import Address, Server, free_port, located, socket_path
from .wire import Wire

PACKAGE = "memcached"
_MEMORY_MB = 512


class _Classic(Wire):
    """`get k1 k2 …`; sets are pipelined and answered one by one."""

    def encode_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int, int, int]:
        return b"get %b\r\n" % b" ".join(keys), 0, len(b"VALUE %b 0 %d\r\n" % (keys[0], value_bytes)), len(b"END\r\n")

    def encode_set(self, items: Mapping[bytes, bytes]) -> tuple[list[bytes], bytes]:
        parts, end = [], b""
        for key, value in items.items():
            parts += [b"%bset %b 0 0 %d\r\n" % (end, key, len(value)), value]
            end = b"\r\n"
        return [*parts, end], b"STORED\r\n" * len(items)


class _Meta(Wire):
    """`mg` by key, pipelined. Sets are quiet: only what went wrong is answered, and a no-op says that all is done."""

    def encode_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int, int, int]:
        return b"".join(b"mg %b v\r\n" % key for key in keys), 0, len(b"VA %d\r\n" % value_bytes), 0

    def encode_set(self, items: Mapping[bytes, bytes]) -> tuple[list[bytes], bytes]:
        parts, end = [], b""
        for key, value in items.items():
            parts += [b"%bms %b %d q\r\n" % (end, key, len(value)), value]
            end = b"\r\n"
        return [*parts, b"\r\nmn\r\n"], b"MN\r\n"


class Memcached:
    """The servers, and all clients that compete for memcached's figure."""

    name = "memcached"

    def __init__(self, folder: str) -> None:
        program = located("memcached", PACKAGE)
        # A thread answers this many requests of a connection before it looks at others; the default, 20, would cut a
        # pipelined batch in pieces.
        common = [program, "-u", pwd.getpwuid(os.getuid()).pw_name, "-m", str(_MEMORY_MB), "-R", "1000"]
        self._stack = ExitStack()
        self._servers: list[tuple[str, Server]] = []
        with self._stack:
            for threads in (1, 2):

                def on_unix(threads: int = threads) -> tuple[Sequence[str], Sequence[Address]]:
                    path = socket_path(folder, f"memcached-{threads}.sock")
                    return [*common, "-t", str(threads), "-s", path, "-a", "700"], [path]

                def on_tcp(threads: int = threads) -> tuple[Sequence[str], Sequence[Address]]:
                    port = free_port()
                    where = ["-l", "127.0.0.1", "-p", str(port), "-U", "0"]
                    return [*common, "-t", str(threads), *where], [("127.0.0.1", port)]

                for transport, arrange in (("unix", on_unix), ("tcp", on_tcp)):
                    log = os.path.join(folder, f"memcached-{threads}-{transport}.log")
                    server = self._stack.enter_context(Server(arrange, log))
                    self._servers.append((f"{transport}, {threads} thread{'s' * (threads > 1)}", server))
            self._stack = self._stack.pop_all()

    def loaders(self) -> Iterator[System]:
        """One client for each server, to load it with."""
        for _, server in self._servers:
            yield _Classic("memcached", server, server.addresses[0])

    def clients(self) -> Iterator[System]:
        for where, server in self._servers:
            address = server.addresses[0]
            yield _Classic(f"memcached ({where}): ideal client, get", server, address)
            yield _Meta(f"memcached ({where}): ideal client, meta", server, address)
            if importable("pylibmc"):
                yield Pylibmc(f"memcached ({where}): pylibmc", server, address)

    def tcp_port(self) -> int:
        """Of the server with one thread."""
        addresses = [server.addresses[0] for _, server in self._servers]
        return next(address[1] for address in addresses if not isinstance(address, str))

    def cpu_s(self) -> float:
        return sum(server.cpu_s() for _, server in self._servers)

    def close(self) -> None:
        self._stack.close()
