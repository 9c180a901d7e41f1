"""How a thread shares the processor."""

import os
from contextlib import suppress


def give_way() -> None:
    """The calling thread works behind the scenes, in large pieces: from here on, when it has something to do, whoever
    is at work may finish its turn first. It gets no less of the processor's time. Threads that it begins are as any
    other; and one that somebody has given another place than the usual one stays there."""
    with suppress(AttributeError, OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH | os.SCHED_RESET_ON_FORK, os.sched_param(0))
