"""What all tests share: waiting for conditions instead of sleeping, and worlds that run in memory."""

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's business.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

# A shell starts what runs in its background deaf to Ctrl-C, and children inherit that: here some are to hear it.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_until(holds: Callable[[], object], what: str, deadline_s: float = 60.0) -> None:
    """Return when it holds; fail with `what` when it does not come true in time."""
    end_s = time.monotonic() + deadline_s
    pause = threading.Event()
    while not holds():
        if time.monotonic() > end_s:
            pytest.fail(f"waited {deadline_s:g} s in vain for: {what}")
        pause.wait(0.005)


def freeze(pid: int) -> None:
    """Stop a child until SIGCONT. A signal is only sent when `kill` returns: here all its threads stand still."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
