"""How a thread shares the processor, and threads that help others."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress


class Helpers:
    """A few threads that begin when they are first needed. A process that was forked has none of its parent's, so it
    begins its own."""

    def __init__(self, threads_max: int) -> None:
        self._threads_max = threads_max
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def submit(self, act: Callable[[], None]) -> Future[None]:
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(self._threads_max, thread_name_prefix="tailrace disk")
        return self._pool[1].submit(act)


def give_way() -> None:
    """The calling thread works behind the scenes, in large pieces: from here on, when it has something to do, whoever
    is at work may finish its turn first. It gets no less of the processor's time. Threads that it begins are as any
    other; and one that somebody has given another place than the usual one stays there."""
    with suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
