"""The ocean between clusters that all run on this machine: whoever calls one of them waits as long as light and cables
would take.

Every cluster is reached through a relay of its own, which holds back each byte, in both directions, by the latency of
the link that its copy tree uses at the moment.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import suppress

_PIECE_BYTES = 256 << 10


class WideArea:
    """`latency_s`: one way, of the link by which a cluster is reached now."""

    def __init__(self, latency_s: Callable[[str], float]) -> None:
        self._latency_s = latency_s
        self._loop = asyncio.new_event_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tailrace wide area", daemon=True)
        self._thread.start()

    def door(self, cluster: str, port: int) -> int:
        """A port through which the one of a cluster is reached."""
        return asyncio.run_coroutine_threadsafe(self._open(cluster, port), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _open(self, cluster: str, port: int) -> int:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
                delay_s = self._latency_s(cluster)
                await asyncio.gather(_pass_on(reader, far_writer, delay_s), _pass_on(far_reader, writer, delay_s))
            except (OSError, asyncio.CancelledError):
                pass
            finally:
                writer.close()
                self._tasks.discard(task)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        found: int = server.sockets[0].getsockname()[1]
        return found

    async def _end(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*others, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """One direction of a connection, until it ends."""
    waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=4096)

    async def send() -> None:
        while True:
            due_s, piece = await waiting.get()
            if (left_s := due_s - time.monotonic()) > 0:
                await asyncio.sleep(left_s)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.close()

    sending = asyncio.create_task(send())
    with suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            await waiting.put((time.monotonic() + delay_s, piece))
    await waiting.put((time.monotonic() + delay_s, b""))
    with suppress(OSError):
        await sending
