"""Tasks in processes of our own, without Spark. A function that ends its process fails its task and no other."""

import os
import pickle
import selectors
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any

from ..failure import Failure
from ..work import Failed, Job, Performer, Result, Task
from .interface import Next

_SIZE = struct.Struct("<I")
_FRAME_BYTES_MAX = 64 << 20
_LOOK_S = 0.05  # how soon a free slot asks again while others are at work


class ProcessWorker:
    def __init__(self, job: Job, slots: int, deadline_s: float = 600.0) -> None:
        """`deadline_s`: a task that takes longer is ended, since its function seems to hang."""
        self.slots = slots
        self._job, self._deadline_s = job, deadline_s
        self._idle: deque[_Child] = deque()
        self._closing = threading.Lock()
        self._all: set[_Child] = set()

    def run(self, next_task: Next) -> Iterator[Result]:
        busy: dict[_Child, Task] = {}
        try:
            with selectors.DefaultSelector() as ready:
                while True:
                    while len(busy) < self.slots and (task := next_task()) is not None:
                        child = self._idle.popleft() if self._idle else self._start()
                        busy[child] = task
                        child.begin(task)
                        ready.register(child.answers, selectors.EVENT_READ, child)
                    if not busy:
                        return
                    for key, _ in ready.select(timeout=_LOOK_S if len(busy) < self.slots else 1.0):
                        child = key.data
                        ready.unregister(child.answers)
                        task = busy.pop(child)
                        result = child.result()
                        if result is None:
                            self._end(child)
                            yield Failed(task.unit, Failure(child.epitaph()))
                        else:
                            self._idle.append(child)
                            yield result
                    for child in [child for child in busy if child.age_s() > self._deadline_s]:
                        ready.unregister(child.answers)
                        task = busy.pop(child)
                        self._end(child)
                        yield Failed(
                            task.unit, Failure(f"no result within {self._deadline_s:g} s; its process was ended")
                        )
        finally:
            for child in busy:  # whoever asked does not want the rest
                self._end(child)

    def pids(self) -> list[int]:
        return [child.pid for child in self._all]

    def close(self) -> None:
        for child in list(self._all):
            self._end(child)
        self._idle.clear()

    def _start(self) -> "_Child":
        child = _Child(self._job)
        with self._closing:
            self._all.add(child)
        return child

    def _end(self, child: "_Child") -> None:
        child.kill()
        with self._closing:
            self._all.discard(child)


class _Child:
    def __init__(self, job: Job) -> None:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.pipeline.workers.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self.answers = self._process.stdin, self._process.stdout
        self._since_s = time.monotonic()
        self._send(job)

    def begin(self, task: Task) -> None:
        self._since_s = time.monotonic()
        self._send(task)

    def age_s(self) -> float:
        return time.monotonic() - self._since_s

    def result(self) -> Result | None:
        """None: it has died."""
        found = _receive(self.answers)
        return found if isinstance(found, Result) else None

    def epitaph(self) -> str:
        code = self._process.wait()
        return f"its process died of signal {-code}" if code < 0 else f"its process ended with code {code}"

    def kill(self) -> None:
        for pipe in (self._requests, self.answers):
            with suppress(OSError):  # it was dead before it had read all
                pipe.close()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def _send(self, item: object) -> None:
        with suppress(OSError):  # it has died: the next result says so
            _send(self._requests, item)


def _send(pipe: IO[bytes], item: object) -> None:
    content = pickle.dumps(item)
    pipe.write(_SIZE.pack(len(content)) + content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    if size > _FRAME_BYTES_MAX:
        return None
    content = pipe.read(size)
    return pickle.loads(content) if len(content) == size else None


def serve() -> None:
    """The child: tasks in, results out, until nobody asks any more."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's function prints goes elsewhere
    requests = sys.stdin.buffer
    job = _receive(requests)
    if job is None:
        return
    waiting: deque[Task] = deque()
    more = threading.Semaphore(0)

    def listen() -> None:
        while (task := _receive(requests)) is not None:
            waiting.append(task)
            more.release()
        os._exit(0)  # whoever asked is gone: what is under way is of no more use

    performer: Performer | Exception
    try:
        performer = Performer(job)
    except Exception as problem:
        performer = problem
    threading.Thread(target=listen, daemon=True).start()
    while True:
        more.acquire()
        task = waiting.popleft()
        if isinstance(performer, Exception):
            failure = Failure(
                f"the transform cannot be loaded: {type(performer).__name__}: {performer}", everywhere=True
            )
            _send(answers, Failed(task.unit, failure))
        else:
            _send(answers, performer.perform(task))
