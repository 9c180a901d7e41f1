"""What consumers feel when the cache or the producer fails: delay and bytes from the files before, during and after.

    python bench/faults.py
    python bench/faults.py --seconds 5 --consumers 8 --json

Real processes: a cache of three backends and one for lengths, each backend a process; a producer at a constant rate;
consumers that check every message and read through the cache: those that read in place do not notice what happens to
it. Each fault is made, lasts, and is mended. Normal is a second in which every consumer gets all bytes from memory, and
99 of 100 of them about as soon as before; the time until then counts from the beginning of the fault if it comes while
that lasts, else from its mending. Not part of `make bench`: it takes a few minutes.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import tailrace
from tailrace.config import DATA_CACHE, LENGTHS_CACHE

STREAM, RATE, VALUE_BYTES = "faulty", 500, 1000
BACKENDS = 3
_TELL_S = 0.05
_NORMAL_S = 1.0
_SOON_MS, _SLACK_MS = 1000.0, 50.0
_PATIENCE_S = 60.0


# ---- the processes


def produce(folder: str) -> None:
    """Goes on where the stream ends; each message has its number and when it was sent."""
    with tailrace.open(folder) as world, world.producer(STREAM, shards=1, buffer_s=0.0) as producer:
        number = world.stream_status(STREAM)[0].messages
        next_s = time.monotonic()
        while True:
            producer.send(b"%d %d " % (number, time.monotonic_ns()) + bytes(VALUE_BYTES))
            number += 1
            next_s = max(next_s + 1 / RATE, time.monotonic() - 1)
            time.sleep(max(0.0, next_s - time.monotonic()))


def consume(folder: str) -> None:
    """Tells delays and where bytes came from, many times a second; ends when a message is wrong."""
    with tailrace.open(folder) as world:
        consumer = world.consumer(STREAM, start="earliest", in_place=False)
        number, delays, told_s = 0, [], 0.0
        while True:
            for message in consumer.poll(_TELL_S) or ():
                assert message.value is not None
                count, sent_ns, rest = message.value.split(b" ", 2)
                if int(count) != number or rest != bytes(VALUE_BYTES):
                    raise SystemExit(f"message {int(count)} where {number} was to come, or other bytes")
                number += 1
                delays.append(round((time.monotonic_ns() - int(sent_ns)) / 1e6, 3))
            if (now_s := time.monotonic()) >= told_s + _TELL_S:
                layers = world._find_layers()
                sources = {} if layers is None else dict(layers.bytes_from)
                print(json.dumps({"s": now_s, "number": number, "ms": delays, "sources": sources}), flush=True)
                delays, told_s = [], now_s


# ---- the one who breaks things


@dataclass
class Consumer:
    process: subprocess.Popen[str]
    told: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    def between(self, begin_s: float, end_s: float) -> list[dict[str, Any]]:
        return [one for one in list(self.told) if begin_s <= one["s"] < end_s]

    def durable_bytes(self, begin_s: float, end_s: float) -> int:
        seen = [int(one["sources"].get("durable", 0)) for one in self.between(begin_s, end_s)]
        return seen[-1] - seen[0] if seen else 0

    def is_normal(self, since_s: float, delay_ms_max: float) -> bool:
        """In this second messages came, all of them from memory, and soon."""
        window = self.between(since_s, since_s + _NORMAL_S)
        delays = sorted(delay for one in window for delay in one["ms"])
        soon = bool(delays) and delays[int(0.99 * len(delays))] <= delay_ms_max
        return soon and not self.durable_bytes(since_s, since_s + _NORMAL_S)


class Stage:
    def __init__(self, folder: str, consumers: int) -> None:
        self._folder, self._count = folder, consumers
        self._nodes: dict[tuple[str, int], subprocess.Popen[bytes]] = {}
        with tailrace.open(folder) as world:
            for name in (DATA_CACHE, LENGTHS_CACHE):
                world.create_cache(name, mode="R=3.2", backends=BACKENDS, repair_s=1.0, embedded=False)
            world.create_stream(STREAM, shards=1)
        for name in (DATA_CACHE, LENGTHS_CACHE):
            for number in range(BACKENDS):
                self.serve(name, number)
        self._producer = self._run("produce")
        self.consumers: list[Consumer] = []
        self.add_consumers()

    def _run(self, what: str) -> subprocess.Popen[str]:
        command = [sys.executable, __file__, "--process", what, self._folder]
        return subprocess.Popen(command, stdout=subprocess.PIPE if what == "consume" else None, text=True)

    def serve(self, name: str, number: int) -> None:
        command = [sys.executable, "-m", "tailrace", "node", "--world", self._folder, "--roles", "cache"]
        self._nodes[name, number] = subprocess.Popen(
            [*command, "--cache", name, "--backend", str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self, name: str, number: int) -> None:
        self._nodes[name, number].kill()
        self._nodes[name, number].wait()

    def add_consumers(self) -> None:
        self.consumers += [Consumer(self._run("consume")) for _ in range(self._count)]

    def drop_consumers(self) -> None:
        for one in self.consumers:
            one.process.kill()
            one.process.wait()
        self.consumers = []

    def kill_producer(self) -> None:
        self._producer.kill()
        self._producer.wait()

    def restart_producer(self) -> None:
        self._producer = self._run("produce")

    def check(self) -> None:
        for one in self.consumers:
            if one.process.poll() is not None:
                raise SystemExit(f"a consumer has ended with {one.process.returncode}; it says why")

    def wait(self, seconds: float) -> tuple[float, float]:
        begin_s = time.monotonic()
        time.sleep(seconds)
        self.check()
        return begin_s, time.monotonic()

    def wait_until_normal(self, since_s: float, delay_ms_max: float) -> float | None:
        """Seconds from then on until all consumers are back to normal; None: not in time."""
        at_s = since_s
        while at_s < since_s + _PATIENCE_S:
            self.wait(max(0.0, at_s + _NORMAL_S - time.monotonic()) + 0.1)
            if self.consumers and all(one.is_normal(at_s, delay_ms_max) for one in self.consumers):
                return at_s - since_s
            at_s += 0.1
        return None

    def close(self) -> None:
        self.drop_consumers()
        self.kill_producer()
        for process in self._nodes.values():
            process.send_signal(signal.SIGTERM)
            process.wait()


def cells(stage: Stage, names: list[str], backends: list[int]) -> tuple[Callable[[], None], Callable[[], None]]:
    """How to break these backends, and how to mend them."""
    places = [(name, number) for name in names for number in backends]

    def break_() -> None:
        for place in places:
            stage.kill(*place)

    def mend() -> None:
        for place in places:
            stage.serve(*place)

    return break_, mend


def faults(stage: Stage) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    both, everybody = [DATA_CACHE, LENGTHS_CACHE], list(range(BACKENDS))
    yield "one backend of each cache killed", *cells(stage, both, [1])
    yield "two backends of each cache killed", *cells(stage, both, [0, 2])
    yield "data cache down", *cells(stage, [DATA_CACHE], everybody)
    yield "lengths cache down", *cells(stage, [LENGTHS_CACHE], everybody)
    yield "both caches down", *cells(stage, both, everybody)
    yield "producer killed", stage.kill_producer, stage.restart_producer
    yield "all consumers at once, from the beginning", stage.drop_consumers, stage.add_consumers


def phase(stage: Stage, begin_s: float, end_s: float) -> dict[str, float | None]:
    windows = [one.between(begin_s, end_s) for one in stage.consumers]
    delays = sorted(delay for window in windows for one in window for delay in one["ms"])
    durable = sum(one.durable_bytes(begin_s, end_s) for one in stage.consumers)
    return {
        "p50_ms": delays[len(delays) // 2] if delays else None,
        "p99_ms": delays[int(0.99 * len(delays))] if delays else None,
        "durable_kb_per_s": durable / 1e3 / (end_s - begin_s) / max(1, len(stage.consumers)),
    }


@contextmanager
def staged(consumers: int) -> Iterator[Stage]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-faults-", ignore_cleanup_errors=True))
        stage = Stage(folder, consumers)
        stack.callback(stage.close)
        yield stage


def run(consumers: int, seconds: float) -> list[dict[str, Any]]:
    results = []
    with staged(consumers) as stage:
        if stage.wait_until_normal(time.monotonic(), _SOON_MS) is None:
            raise SystemExit("consumers never got everything from memory, although nothing was broken")
        for name, break_, mend in faults(stage):
            print(name, file=sys.stderr)
            before = phase(stage, *stage.wait(seconds))
            delay_ms_max = 3 * (before["p99_ms"] or 0.0) + _SLACK_MS
            broken_s = time.monotonic()
            break_()
            during = phase(stage, *stage.wait(seconds))
            lasting = [one.is_normal(broken_s + seconds - _NORMAL_S, delay_ms_max) for one in stage.consumers]
            mended_s = time.monotonic()
            mend()
            since_s = broken_s if lasting and all(lasting) else mended_s
            back_s = stage.wait_until_normal(since_s, delay_ms_max)
            after = phase(stage, *stage.wait(seconds))
            results.append({"fault": name, "before": before, "during": during, "after": after, "back_s": back_s})
    return results


def show(results: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Delays in milliseconds (p50 / p99), and KB/s that a consumer reads from files")
    for heading in ("fault", "before", "during", "after", "files before", "during", "after", "back after s"):
        table.add_column(heading, justify="left" if heading == "fault" else "right")
    for one in results:
        phases = [one[name] for name in ("before", "during", "after")]
        delays = [f"{p['p50_ms']:.1f} / {p['p99_ms']:.1f}" if p["p50_ms"] is not None else "" for p in phases]
        back = "never" if one["back_s"] is None else f"{one['back_s']:.1f}"
        table.add_row(one["fault"], *delays, *(f"{p['durable_kb_per_s']:.0f}" for p in phases), back)
    Console(width=160).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--consumers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=4.0, help="how long each phase is watched")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--process", nargs=2, metavar=("WHAT", "FOLDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.process:
        what, folder = chosen.process
        {"produce": produce, "consume": consume}[what](folder)
        return
    results = run(chosen.consumers, chosen.seconds)
    print(json.dumps(results, indent=2)) if chosen.json else show(results)
    if any(one["back_s"] is None for one in results):
        sys.exit(1)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
