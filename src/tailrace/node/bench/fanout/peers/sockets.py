"""A connection of a lean client: whole pieces are waited for, and only the first byte of an answer has a time limit."""

import select
import socket

from ...peers.server import Address, PeerFailed, connect


def port_of(address: Address) -> int:
    assert not isinstance(address, str), address
    return address[1]


class Connection:
    def __init__(self, address: Address) -> None:
        self._socket: socket.socket = connect(address)
        self._arrivals = select.poll()
        self._arrivals.register(self._socket, select.POLLIN)

    def send(self, payload: bytes) -> None:
        self._socket.sendall(payload)

    def arrives(self, timeout_s: float) -> bool:
        return bool(self._arrivals.poll(timeout_s * 1e3))

    def read_some(self, room: memoryview) -> int:
        count = self._socket.recv_into(room)
        if not count:
            raise PeerFailed("the server has closed the connection")
        return count

    def read_whole(self, room: memoryview) -> None:
        if (count := self._socket.recv_into(room, len(room), socket.MSG_WAITALL)) != len(room):
            raise PeerFailed(f"the server has closed the connection after {count} of {len(room)} bytes")

    def read_line(self) -> bytes:
        """One byte after the other: for short answers outside of any clock."""
        line = bytearray()
        byte = memoryview(bytearray(1))
        while not line.endswith(b"\r\n"):
            self.read_some(byte)
            line += byte
        return bytes(line[:-2])

    def close(self) -> None:
        self._socket.close()
