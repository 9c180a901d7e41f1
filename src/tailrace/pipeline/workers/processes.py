"""Tasks in processes of our own, without Spark. A function that ends its process fails its task and no other."""

import os
import resource
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress

from ..work import Job, Performer, Result, Task
from .crew import Hand, drive
from .frames import receive, send, serve, unbuffered
from .interface import Next


class ProcessWorker:
    def __init__(self, job: Job, slots: int, deadline_s: float = 600.0) -> None:
        """`deadline_s`: a task that takes longer is ended, since its function seems to hang."""
        self.slots = slots
        self._job, self._deadline_s = job, deadline_s
        self._idle: deque[Hand] = deque()
        self._changing = threading.Lock()
        self._all: set[_Child] = set()

    def run(self, next_task: Next) -> Iterator[Result]:
        return drive(self, next_task, self._deadline_s)

    def resize(self, slots: int) -> None:
        """Those that are at work finish what they are at."""
        self.slots = slots
        self._let_go()

    def pids(self) -> list[int]:
        return [child.pid for child in self._all]

    def close(self) -> None:
        for child in list(self._all):
            self.end(child)
        self._idle.clear()

    # ---- as a crew

    def ready(self) -> bool:
        return True

    def take(self) -> Hand:
        with self._changing:
            if self._idle:
                return self._idle.popleft()
        child = _Child(self._job)
        with self._changing:
            self._all.add(child)
        return child

    def give_back(self, hand: Hand) -> None:
        with self._changing:
            self._idle.append(hand)
        self._let_go()

    def end(self, hand: Hand) -> str:
        assert isinstance(hand, _Child)
        with self._changing:
            self._all.discard(hand)
        return hand.end()

    def _let_go(self) -> None:
        """Those that are too many and have nothing to do."""
        with self._changing:
            surplus = [self._idle.pop() for _ in range(min(len(self._idle), len(self._all) - self.slots))]
        for hand in surplus:
            self.end(hand)


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
        self._requests, self._answers = self._process.stdin, unbuffered(self._process.stdout)
        self._send(job)

    def fileno(self) -> int:
        return self._answers.fileno()

    def begin(self, task: Task) -> None:
        self._send(task)

    def result(self) -> Result | None:
        found = receive(self._answers)
        return found if isinstance(found, Result) else None

    def end(self) -> str:
        for pipe in (self._requests, self._answers):
            with suppress(OSError):  # it was dead before it had read all
                pipe.close()
        if self._process.poll() is None:
            with suppress(subprocess.TimeoutExpired):  # it may be about to die by itself, and to say of what
                self._process.wait(0.05)
        if self._process.poll() is None:
            self._process.kill()
        code = self._process.wait()
        return f"its process died of signal {-code}" if code < 0 else f"its process ended with code {code}"

    def _send(self, item: object) -> None:
        with suppress(OSError):  # it has died: the next result says so
            send(self._requests, item)


def main() -> None:
    """The child: the job comes first, then tasks."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the user's function prints goes elsewhere
    requests = sys.stdin.buffer
    job = receive(requests)
    if job is not None:
        if job.memory_bytes is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (job.memory_bytes, job.memory_bytes))
        serve(requests, answers, lambda: Performer(job))
