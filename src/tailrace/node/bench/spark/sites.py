"""Sites in processes of their own: what a second one brings, and whether the counts are exact when they are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from ....coordination import SqliteCoordination
from ...world import open_world
from ..report import Figure
from .files import remove

_CAMPAIGNS = 1000
_DEADLINE_S = 300.0
_SHARED_UNIT_BYTES = 4 << 20  # large enough for the state store not to be what two sites wait for
_KILLED_UNIT_BYTES = 1 << 20  # small enough for a kill to hit some at work
_LOOK_S = 0.25  # whoever looks takes part of a core

FIGURES = [
    Figure("two_sites_vs_one", "ratio", "two sites against one, each with a core of its own", 1.7),
    Figure("pipeline_kills", "kills", "of sites, after which every message was counted once"),
]


def measure(
    folder: str, *, rounds: int, lines: int, kill_count: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"two_sites_vs_one": []}
    for number in range(rounds):
        one_s, two_s = _sites_time(folder, 1, lines), _sites_time(folder, 2, lines)
        found["two_sites_vs_one"].append(one_s / two_s)
        progress(f"sites: round {number + 1} of {rounds}: one {one_s:.2f} s, two {two_s:.2f} s")
    progress(f"sites: {kill_count} kills")
    found["pipeline_kills"] = [kills(folder, kill_count)]
    return found


def _start(folder: str, site: str, unit_bytes: int, core: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", "tailrace.node.bench.spark.app:pipeline"]
    command += ["--site", site, "--engine", "inline", "--world", os.path.join(folder, "sites")]
    command += ["--state", os.path.join(folder, "sites.db")]
    env = {**os.environ, "TAILRACE_BENCH_OUT": os.path.join(folder, "sites-out")}
    env["TAILRACE_BENCH_UNIT"], env["TAILRACE_BENCH_GATE"] = str(unit_bytes), os.path.join(folder, "gate-is-closed")
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if core is not None:
        os.sched_setaffinity(child.pid, {core})
    return child


def _sites_time(folder: str, count: int, lines: int) -> float:
    """Seconds that so many sites need for all there is, once they are at work. Each has a core."""
    remove(os.path.join(folder, "sites-out"), os.path.join(folder, "sites.db"), os.path.join(folder, "sites"))
    cores = sorted(os.sched_getaffinity(0))
    with open_world(os.path.join(folder, "sites")) as world:
        world.create_stream("lines", shards=2, cached=False)
        with world.producer("lines") as producer:
            producer.send_many([b"campaign-0001" + b"." * 87] * 1000)
        children = [
            _start(folder, f"site-{number}", _SHARED_UNIT_BYTES, cores[number % len(cores)]) for number in range(count)
        ]
        try:
            out = _Outputs(os.path.join(folder, "sites-out"))
            _until(lambda: _runners(folder) == count and out.counted() == 1000, "the sites to begin")
            gate = os.path.join(folder, "gate-is-closed")
            with open(gate, "w"):  # so that nobody works while messages are made, which takes a core
                pass
            values = [b"campaign-%04d" % (number % _CAMPAIGNS) + b"." * 87 for number in range(10_000)]
            with world.producer("lines", buffer_s=float("inf")) as producer:
                for at in range(0, lines, len(values)):
                    producer.send_many(values, shard=at // len(values) % 2)
                sent = 1000 + -(-lines // len(values)) * len(values)
                producer.flush()
                began_s = time.time()
                os.unlink(gate)
                _until(lambda: out.settled() and out.counted() >= sent, "all to be counted", _LOOK_S)
                if (counted := out.counted()) != sent:
                    raise RuntimeError(f"{counted} messages were counted, and {sent} were sent: the pipeline is wrong")
                return out.newest_s() - began_s
        finally:
            _end(children)


def kills(folder: str, rounds: int) -> int:
    """Kill one of two sites again and again while messages come. How many times, if all were counted once."""
    remove(os.path.join(folder, "sites-out"), os.path.join(folder, "sites.db"), os.path.join(folder, "sites"))
    children: dict[str, subprocess.Popen[bytes]] = {}
    out = _Outputs(os.path.join(folder, "sites-out"))
    values, sent = [b"campaign-0001" + b"." * 87] * 20_000, 0
    with open_world(os.path.join(folder, "sites")) as world:
        world.create_stream("lines", shards=2, cached=False)
        try:
            for number in range(rounds):
                before = out.counted()
                with world.producer("lines") as producer:
                    producer.send_many(values, shard=number % 2)
                sent += len(values)
                for site in ("a", "b"):
                    if site not in children:
                        children[site] = _start(folder, site, _KILLED_UNIT_BYTES)
                _until(lambda before=before: out.counted() > before, "the sites to be at work")  # type: ignore[misc]
                victim = children.pop("ab"[number % 2])
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            children["c"] = _start(folder, "c", _KILLED_UNIT_BYTES)
            _until(lambda: out.counted() >= sent, "all to be counted")
        finally:
            _end(list(children.values()))
    if (counted := out.counted()) != sent:
        raise RuntimeError(f"{counted} messages were counted, and {sent} were sent: the pipeline is wrong")
    return rounds


class _Outputs:
    """Counts what is in a folder of Parquet files. Looks at each file once, so as not to be in the way of those who
    are measured."""

    def __init__(self, folder: str) -> None:
        self._folder, self._counts, self._seen = folder, dict[str, int](), 0

    def settled(self) -> bool:
        """Whether nothing came since the last look."""
        before, self._seen = self._seen, len(os.listdir(self._folder))
        return before == self._seen

    def newest_s(self) -> float:
        """When the last output became visible."""
        return max(os.stat(os.path.join(self._folder, name)).st_ctime for name in self._counts)

    def counted(self) -> int:
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        if os.path.isdir(self._folder):
            for name in os.listdir(self._folder):
                if name.startswith("part-") and name not in self._counts:
                    table = pq.read_table(os.path.join(self._folder, name), partitioning=None)
                    self._counts[name] = int(pc.sum(table.column("count_all")).as_py())
        return sum(self._counts.values())


def _runners(folder: str) -> int:
    with SqliteCoordination(os.path.join(folder, "sites.db")) as store:
        return len(store.range("pipelines/bench/members/runners/").entries)


def _until(holds: Callable[[], bool], what: str, look_s: float = 0.02) -> None:
    end_s, pause = time.monotonic() + _DEADLINE_S, threading.Event()
    while not holds():
        if time.monotonic() > end_s:
            raise RuntimeError(f"waited {_DEADLINE_S:g} s in vain for {what}")
        pause.wait(look_s)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.kill()
        child.wait()
