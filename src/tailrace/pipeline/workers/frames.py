"""Tasks and results between a runner and the processes that work for it, over a pipe or a socket.

A frame is its length, four bytes little-endian, and a pickle; only processes of the same pipeline talk like this.
"""

import os
import pickle
import struct
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import IO, Any

from ..failure import Failure
from ..work import Failed, Performer, Task, told

_SIZE = struct.Struct("<I")
_FRAME_BYTES_MAX = 64 << 20


class End:
    """Nothing follows: whoever works may go."""


def send(pipe: IO[bytes], item: object) -> None:
    content = pickle.dumps(item)
    pipe.write(_SIZE.pack(len(content)) + content)
    pipe.flush()


def receive(pipe: IO[bytes]) -> Any:
    """None: the other side is gone."""
    try:
        head = _exactly(pipe, _SIZE.size)
        if head is None:
            return None
        (size,) = _SIZE.unpack(head)
        content = _exactly(pipe, size) if size <= _FRAME_BYTES_MAX else None
    except OSError:
        return None
    return None if content is None else pickle.loads(content)


def _exactly(pipe: IO[bytes], size: int) -> bytes | None:
    """Pipes that are waited for with select have no buffer, and give what there is."""
    found = bytearray()
    while len(found) < size:
        part = pipe.read(size - len(found))
        if not part:
            return None
        found += part
    return bytes(found)


def unbuffered(pipe: IO[bytes]) -> IO[bytes]:
    """For select, which knows nothing of results that lie in a buffer already."""
    return pipe.detach()  # type: ignore[attr-defined,no-any-return]


def serve(requests: IO[bytes], answers: IO[bytes], load: Callable[[], Performer]) -> None:
    """Tasks in, results out, until End. When nobody asks any more the process ends at once, in the middle of whatever
    it does: that is of no more use."""
    waiting: SimpleQueue[Task | End] = SimpleQueue()

    def listen() -> None:
        while (task := receive(requests)) is not None:
            waiting.put(task)
            if isinstance(task, End):
                return
        os._exit(0)

    performer: Performer | None = None
    trouble = ""
    try:
        performer = load()
    except Exception as problem:
        trouble = f"the transform cannot be loaded: {told(problem)}"
    threading.Thread(target=listen, daemon=True).start()
    while not isinstance(task := waiting.get(), End):
        if performer is None:
            send(answers, Failed(task.unit, Failure(trouble, everywhere=True)))
        else:
            send(answers, performer.perform(task))
