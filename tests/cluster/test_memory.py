"""However long a stream is, its consumer needs the memory of a few batches."""

import subprocess
import sys
from pathlib import Path

import tailrace

CONSUME = """
import resource, sys, tailrace

def peak_mib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

world = tailrace.open(sys.argv[1])
before = peak_mib()
count = sum(len(batch) for batch in world.consumer("s", start="earliest", follow=False))
print(count, round(peak_mib() - before))
"""


def test_a_consumer_of_a_long_stream_stays_small(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world, world.producer("s") as producer:
        for _ in range(75):
            producer.send_many([bytes(1000)] * 4000)
    done = subprocess.run([sys.executable, "-c", CONSUME, str(tmp_path)], capture_output=True, text=True, check=True)
    count, growth_mib = map(int, done.stdout.split())
    assert count == 300_000
    assert growth_mib < 32, "300 MB went through; a few batches of 1 MiB and a window of entries may stay"
