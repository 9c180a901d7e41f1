"""A signal may come at any moment, also while the main thread holds the lock of the event that it is to set."""

import subprocess
import sys

STORY = """
import os, signal
from tailrace.node.stopping import stop_asked

stopping = stop_asked()
with stopping._cond:  # as Event.wait does, for a moment
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):  # by now the handler has run
        pass
assert stopping.wait(60)
print("stopped")
"""


def test_a_signal_in_the_middle_of_a_wait_is_heard() -> None:
    done = subprocess.run([sys.executable, "-c", STORY], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
