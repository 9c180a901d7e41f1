"""What no cache can beat: copying the same values in the same memory, or through a connection, and nothing else."""

import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from struct import Struct
from typing import Any

from .system import System, process_cpu_s


class Limit(System):
    """Is only ever read from: `can_set` keeps it out of the cases that set."""

    can_set = False

    def prepare_set(self, items: Mapping[bytes, bytes]) -> Any:
        raise AssertionError(f"{self.name} cannot be set")

    def set_many(self, request: Any) -> None:
        raise AssertionError(f"{self.name} cannot be set")


class Memcpy(Limit):
    """Values in random order, joined in C into one buffer, which is freed again and so stays warm.

    Nothing is looked up or checked and no object is made per value. A plain loop of memcpy in C over the same working
    set is no faster. A copy has no calls, so the limit is the same for every batch: it always joins this many.
    """

    name = "memcpy"
    batch = 64

    def __init__(self) -> None:
        self._items: dict[bytes, bytes] = {}

    def load(self, items: Mapping[bytes, bytes]) -> None:
        # Copies of its own: what others read does not warm the processor's cache for it.
        self._items.update((key, bytes(bytearray(value))) for key, value in items.items())

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return [self._items[key] for key in keys]

    def get_many(self, request: list[bytes]) -> bytes:
        return b"".join(request)

    def values(self, answer: bytes) -> list[bytes | None]:
        size = len(answer) // self.batch
        return [answer[at : at + size] for at in range(0, len(answer), size)]

    def server_cpu_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._items.clear()


class Loopback(Limit):
    """As many bytes as an answer has, asked for by as many as a request has, over TCP on this machine.

    Behind the connection is a loop that sends from memory what it is asked for: no key is looked up and no value is cut
    out. What a socket costs is in it, and nothing else.
    """

    name = "loopback"
    through_tcp = True
    delivers = False

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as door:
            command = [sys.executable, "-c", _SERVER, str(door.getsockname()[1])]
            self._process = subprocess.Popen(command, start_new_session=True)
            self._socket, _ = door.accept()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reply = memoryview(bytearray(1 << 20))

    def load(self, items: Mapping[bytes, bytes]) -> None:
        """Whatever it sends, it is not looked at."""

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int]:
        request, answer = b"".join(keys), len(keys) * value_bytes
        return _ASKED.pack(len(request), answer) + request, answer

    def get_many(self, request: tuple[bytes, int]) -> memoryview:
        payload, size = request
        self._socket.sendall(payload)
        received = self._socket.recv_into(self._reply, size, socket.MSG_WAITALL)
        assert received == size, received
        return self._reply[:size]

    def server_cpu_s(self) -> float:
        return process_cpu_s(self._process.pid)

    def close(self) -> None:
        self._socket.close()
        self._process.wait()


_ASKED = Struct("<II")  # bytes that follow, bytes to send
_SERVER = """
import socket, struct, sys
peer = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
memory, at, request = memoryview(bytes(range(256)) * (40 << 12)), 0, memoryview(bytearray(1 << 20))
while peer.recv_into(request, 8, socket.MSG_WAITALL) == 8:
    more, size = struct.unpack("<II", request[:8])
    peer.recv_into(request, more, socket.MSG_WAITALL)
    peer.sendall(memory[at : at + size])
    at = (at + size) % (len(memory) - (1 << 20))
"""
