"""A large stream: how long it takes to open it, to seek in it by time and position and to resume, and its memory.

    python bench/large_stream.py --gigabytes 10

Not part of `make bench`: it writes as much as you say to the folder for temporary files.
"""

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

import tailrace

STREAM = "large"


def measure(folder: str, gigabytes: float) -> dict[str, Any]:
    rows = pa.array([os.urandom(1000)] * 4000, pa.binary())
    calls = max(2, int(gigabytes * 1e9) // (4000 * 1000))
    begin_s = time.perf_counter()
    with tailrace.open(folder) as world, world.producer(STREAM) as producer:
        for call in range(calls):
            if call == calls // 2:
                producer.flush()
                middle = datetime.now(UTC)
            producer.send_many(rows)
    result: dict[str, Any] = {"gigabytes": calls * 4e6 / 1e9, "write_s": time.perf_counter() - begin_s}

    def timed(name: str, act: Callable[[], Any]) -> Any:
        begin_s = time.perf_counter()
        value = act()
        result[name] = 1e3 * (time.perf_counter() - begin_s)
        return value

    def first_batch(**settings: Any) -> int:
        with world.consumer(STREAM, follow=False, **settings) as consumer:
            batch = consumer.poll()
            assert batch is not None
            if "checkpoint" in settings:
                consumer.commit()
            return batch.start

    world = tailrace.open(folder)
    status = timed("open_and_status_ms", lambda: tailrace.open(folder).stream_status(STREAM))[0]
    result |= {"messages": status.messages, "files": status.files}
    position = timed("seek_by_time_ms", lambda: first_batch(start=middle))
    assert position == timed("seek_by_position_ms", lambda: first_batch(start={0: position}))
    timed("first_checkpoint_ms", lambda: first_batch(start="earliest", checkpoint="bench"))
    assert timed("resume_ms", lambda: first_batch(start="earliest", checkpoint="bench")) > 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin_s = time.perf_counter()
    with world.consumer(STREAM, start="earliest", follow=False) as consumer:
        size = sum(len(batch.data) for batch in consumer)
    result["read_gb_per_s"] = size / 1e9 / (time.perf_counter() - begin_s)
    result["memory_growth_mib"] = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    timed("producer_reopen_ms", lambda: world.producer(STREAM).close())
    world.close()
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in result.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    options = parser.parse_args()
    print(f"writing {options.gigabytes:g} GB …", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="tailrace-large-") as folder:
        print(json.dumps(measure(folder, options.gigabytes), indent=2))


if __name__ == "__main__":
    main()
