"""A relay that delays: a wide area between a reader and a writer. Bytes leave it `delay_s` after they came, in order
and in both directions; it holds as much as is on its way. It says its port and runs until it is ended.

What it costs the machine is none of the copy's, but whoever is measured waits for it. So it is one loop over plain
sockets and buffers that it uses again: a third of what asyncio's streams cost, which copy each byte three times more.
"""

import contextlib
import select
import socket
import sys
import time
from collections import deque
from collections.abc import Callable

_PIECE_BYTES = 256 << 10
_HELD_MAX = 1024  # pieces, in one direction


class _Way:
    """One direction of a connection."""

    def __init__(self, origin: socket.socket, goal: socket.socket, delay_s: float, spare: list[bytearray]) -> None:
        self.origin, self.goal, self._delay_s, self._spare = origin, goal, delay_s, spare
        self._held: deque[tuple[float, bytearray, int]] = deque()  # when it is due, and so much of a buffer
        self._sent = 0  # of the first one
        self._ended_s: float | None = None  # nothing more comes: tell the goal then

    @property
    def due_s(self) -> float | None:
        return self._held[0][0] if self._held else self._ended_s

    @property
    def has_room(self) -> bool:
        return self._ended_s is None and len(self._held) < _HELD_MAX

    def receive(self) -> None:
        buffer = self._spare.pop() if self._spare else bytearray(_PIECE_BYTES)
        size = self.origin.recv_into(buffer)
        due_s = time.monotonic() + self._delay_s
        if size:
            self._held.append((due_s, buffer, size))
        else:
            self._ended_s = due_s

    def send(self, now_s: float) -> bool:
        """What is due; whether the goal takes no more for now. OSError or EOFError: the connection is over."""
        while self._held and self._held[0][0] <= now_s:
            _, buffer, size = self._held[0]
            with contextlib.suppress(BlockingIOError):
                self._sent += self.goal.send(memoryview(buffer)[self._sent : size])
            if self._sent < size:
                return True
            self._held.popleft()
            self._spare.append(buffer)
            self._sent = 0
        if not self._held and self._ended_s is not None and self._ended_s <= now_s:
            raise EOFError
        return False


def serve(door: socket.socket, port: int, delay_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
    ways: list[_Way] = []
    spare: list[bytearray] = []

    def end(socket_: socket.socket) -> None:
        for way in [way for way in ways if socket_ in (way.origin, way.goal)]:
            ways.remove(way)
            way.origin.close()
            way.goal.close()

    while not is_over():
        now_s, full, over = time.monotonic(), [], []
        for way in ways:
            try:
                if way.send(now_s):
                    full.append(way.goal)
            except (OSError, EOFError):
                over.append(way.goal)
        for goal in over:
            end(goal)
        waits = [way.due_s - now_s for way in ways if way.due_s is not None and way.goal not in full]
        reading = [door, *(way.origin for way in ways if way.has_room)]
        # Not epoll, which counts in milliseconds: that much would be added to each hop.
        ready, _, _ = select.select(reading, full, [], max(0.0, min(waits, default=0.1)))
        for one in ready:
            if one is door:
                with contextlib.suppress(OSError):
                    ways += _connect(door.accept()[0], port, delay_s, spare)
                continue
            for way in [way for way in ways if way.origin is one]:
                try:
                    way.receive()
                except BlockingIOError:
                    pass
                except OSError:
                    end(one)


def _connect(near: socket.socket, port: int, delay_s: float, spare: list[bytearray]) -> list[_Way]:
    try:
        far = socket.create_connection(("127.0.0.1", port))
    except OSError:
        near.close()
        return []
    for one in (near, far):
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return [_Way(near, far, delay_s, spare), _Way(far, near, delay_s, spare)]


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as door:
        print(door.getsockname()[1], flush=True)
        serve(door, int(sys.argv[1]), float(sys.argv[2]))
