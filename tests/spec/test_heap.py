"""Memory that was freed is still there: taking it again costs no page faults."""

import resource
import subprocess
import sys

import pytest

_CHURN = """
import resource, sys
from tailrace.node.heap import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
def churn():
    for _ in range(50):
        blocks = [bytearray(1 << 20) for _ in range(16)]
        del blocks
churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(int(kept), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_taken_again_without_faults():
    answer = subprocess.run([sys.executable, "-c", _CHURN, "keep"], capture_output=True, text=True, check=True)
    kept, faults = map(int, answer.stdout.split())
    if not kept:
        pytest.skip("this C library has no mallopt")
    pages = 50 * 16 * (1 << 20) // resource.getpagesize()
    assert faults < pages / 50
