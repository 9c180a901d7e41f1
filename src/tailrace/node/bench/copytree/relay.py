"""A relay that delays: a wide area between a reader and a writer. Bytes leave it `delay_s` after they came, in order
and in both directions; it holds as much as is on its way. It says its port and runs until it is ended."""

import asyncio
import contextlib
import sys
import time

_PIECE_BYTES = 256 << 10


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
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
    with contextlib.suppress(OSError):
        while piece := await reader.read(_PIECE_BYTES):
            await waiting.put((time.monotonic() + delay_s, piece))
    await waiting.put((time.monotonic() + delay_s, b""))
    with contextlib.suppress(OSError):
        await sending


async def _serve(port: int, delay_s: float) -> None:
    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, far_writer, delay_s), pass_on(far_reader, writer, delay_s))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
