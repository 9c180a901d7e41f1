"""How a thread shares the processor."""

import os
from contextlib import suppress


def give_way() -> None:
    """The calling thread works behind the scenes, in large pieces: from here on, when it has something to do, whoever
    is at work may finish its turn first. It gets no less of the processor's time."""
    with suppress(AttributeError, OSError):
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
