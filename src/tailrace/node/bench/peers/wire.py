"""The ideal client of a socket protocol, which knows every answer's shape beforehand: no real one can be as lean.

Requests are encoded beforehand. All values of a request have one known length, so the length of the reply is known as
well: one system call sends, one waits for all of the reply, and one call of `struct` cuts the values out as bytes. It
cannot miss, and does not look at what it cuts. So it says what the peer's server could do, not what its users get.
"""

import socket
import struct
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from ..system import System
from .server import Address, PeerFailed, Server, connect

_REPLY_DEADLINE_S = 20
_LOAD_AT_ONCE = 64

#: The request, what cuts the values out of the reply, and the reply's length.
GetRequest = tuple[bytes, Callable[[memoryview], tuple[Any, ...]], int]
#: The parts of the request, and the reply that says that all went well.
SetRequest = tuple[list[bytes], bytes]


class Wire(System):
    """A dialect of a protocol over one connection."""

    def __init__(self, name: str, server: Server, address: Address) -> None:
        self.name, self._server = name, server
        self.through_tcp = not isinstance(address, str)
        self._socket = connect(address)
        # Not settimeout(), with which Python would poll() before every call.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _REPLY_DEADLINE_S, 0))
        self._reply = memoryview(bytearray(1 << 20))
        self._cuts: dict[tuple[int, int, int, int], struct.Struct] = {}

    @abstractmethod
    def encode_get(self, keys: Sequence[bytes], value_bytes: int) -> tuple[bytes, int, int, int]:
        """The request; in the reply: the bytes before everything, before each value, and after everything."""

    @abstractmethod
    def encode_set(self, items: Mapping[bytes, bytes]) -> tuple[list[bytes], bytes]: ...

    def load(self, items: Mapping[bytes, bytes]) -> None:
        left = iter(items.items())
        while some := dict(islice(left, _LOAD_AT_ONCE)):
            self.set_many(self.encode_set(some))

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> GetRequest:
        payload, before_all, before_each, after_all = self.encode_get(keys, value_bytes)
        # One cutter for all requests of a shape: hundreds of them would push the values out of the processor's cache.
        shape = (before_all, before_each, value_bytes, len(keys))
        if (cut := self._cuts.get(shape)) is None:
            each = f"{before_each}x{value_bytes}s2x"
            cut = self._cuts[shape] = struct.Struct(f"{before_all}x" + each * len(keys) + f"{after_all}x")
        if cut.size > len(self._reply):
            self._reply = memoryview(bytearray(cut.size))
        return payload, cut.unpack_from, cut.size

    def get_many(self, request: GetRequest) -> tuple[bytes, ...]:
        payload, cut, size = request
        self._socket.sendall(payload)
        self._receive(size)
        return cut(self._reply)

    def prepare_set(self, items: Mapping[bytes, bytes]) -> SetRequest:
        return self.encode_set(items)

    def set_many(self, request: SetRequest) -> None:
        parts, expected = request
        self._socket.sendall(b"".join(parts))
        self._receive(len(expected))
        if self._reply[: len(expected)] != expected:
            raise PeerFailed(f"{self.name} did not confirm a set: {bytes(self._reply[: len(expected)])[:80]!r}")

    def _receive(self, size: int) -> None:
        try:
            received = self._socket.recv_into(self._reply, size, socket.MSG_WAITALL)
        except BlockingIOError:
            received = 0
        if received != size:
            raise PeerFailed(
                f"{self.name} sent {received} bytes instead of {size}: {bytes(self._reply[: min(received, 80)])!r}"
            )

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()

    def close(self) -> None:
        self._socket.close()
