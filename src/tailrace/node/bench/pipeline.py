"""Pipelines: a partial GROUP BY over raw messages, with Spark as the worker, beside the same aggregation as a plain
DataFrame job over Spark's text reader, and beside the same work without Spark. Then what a unit costs, how long a
message waits for its output, what a second site brings, and whether the counts are exact when sites are killed.

All on the same bytes, in one session, in turns; a first round is thrown away, since the JVM compiles while it runs.
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from ...coordination import SqliteCoordination
from ...pipeline import Pipeline, parquet, stream
from ...pipeline.workers import Worker
from ..world import open_world
from . import pipeline_app
from .report import Figure

LINE_BYTES = 100
_CAMPAIGNS = 1000
_SHARDS = 4
_DEADLINE_S = 300.0
_UNIT_BYTES = 32 << 20

FIGURES = [
    Figure("pipeline_records_per_s", "records/s", "partial GROUP BY, exactly once, Spark as the worker"),
    Figure(
        "plain_spark_records_per_s", "records/s", "the same aggregation as a DataFrame job over Spark's text reader"
    ),
    Figure("no_spark_records_per_s", "records/s", "the pipeline with processes instead of Spark"),
    Figure("pipeline_vs_plain_spark", "ratio", "the first against the second", 2.5),
    Figure("pipeline_vs_no_spark", "ratio", "the first against the third"),
    Figure("unit_overhead_spark_ms", "ms", "an empty unit, all of its life, with Spark"),
    Figure("unit_overhead_processes_ms", "ms", "an empty unit, all of its life, without"),
    Figure("overhead_p90_s", "s", "sent to published, p90, messages flushed every 100 ms, with Spark", 2.0),
    Figure("overhead_processes_p90_s", "s", "the same without Spark"),
    Figure("two_sites_vs_one", "ratio", "two sites against one, each with a core of its own", 1.7),
    Figure("pipeline_kills", "kills", "of sites, after which every message was counted once"),
]


def measure(
    folder: str, *, scale: float = 1.0, progress: Callable[[str], None] = lambda line: None
) -> dict[str, float]:
    """One value for each of FIGURES. `scale` below 1 shrinks every amount."""
    lines = max(20_000, round(4_000_000 * scale))
    world, found = os.path.join(folder, "world"), dict[str, float]()
    progress(f"pipelines: {lines:,} lines of {LINE_BYTES} bytes")
    texts = _fill(world, folder, lines)
    from ...pipeline.spark import session

    with ExitStack() as stack:
        # As a user of plain Spark has it: a pipeline's own session starts faster, with a JVM that compiles less.
        session("bench", master=f"local[{len(os.sched_getaffinity(0))}]")
        spark = _worker(folder, world, "spark", pipeline_app.by_campaign)
        stack.callback(spark.end)
        processes = _worker(folder, world, "processes", pipeline_app.by_campaign)
        stack.callback(processes.end)
        progress("pipelines: warm-up, not counted")
        _pass(folder, world, spark, "lines", lines)
        _plain(spark, texts, folder)
        _pass(folder, world, processes, "lines", lines)
        progress("pipelines: with Spark, a plain Spark job, without Spark")
        found["pipeline_records_per_s"] = lines / _pass(folder, world, spark, "lines", lines)
        found["plain_spark_records_per_s"] = lines / _plain(spark, texts, folder)
        found["no_spark_records_per_s"] = lines / _pass(folder, world, processes, "lines", lines)
        found["pipeline_vs_plain_spark"] = found["pipeline_records_per_s"] / found["plain_spark_records_per_s"]
        found["pipeline_vs_no_spark"] = found["pipeline_records_per_s"] / found["no_spark_records_per_s"]
        progress("pipelines: delays")
        found["overhead_p90_s"] = _delay(folder, world, spark, max(3.0, 12 * scale))
        found["overhead_processes_p90_s"] = _delay(folder, world, processes, max(3.0, 12 * scale))
    for engine in ("spark", "processes"):
        progress(f"pipelines: empty units, {engine}")
        found[f"unit_overhead_{engine}_ms"] = _empty(folder, world, engine, max(16, round(128 * scale)))
    progress("pipelines: two sites against one")
    found["two_sites_vs_one"] = _sites_time(folder, 1, lines // 2) / _sites_time(folder, 2, lines // 2)
    progress("pipelines: kills")
    found["pipeline_kills"] = kills(folder, rounds=max(2, round(6 * scale)))
    return found


def _fill(world: str, folder: str, lines: int) -> str:
    """The same lines as a stream and as text files; the folder of the latter."""
    import pyarrow as pa

    texts = os.path.join(folder, "text")
    os.makedirs(texts)
    payload = "." * (LINE_BYTES - pipeline_app.KEY_BYTES)
    some = [f"campaign-{number * 7 % _CAMPAIGNS:04d}{payload}" for number in range(20_000)]
    values, block = pa.array(some, pa.binary()), ("\n".join(some) + "\n").encode()
    with (
        ExitStack() as stack,
        open_world(world) as opened,
        opened.producer("lines", shards=_SHARDS, buffer_bytes=8 << 20) as producer,
    ):
        files = [stack.enter_context(open(os.path.join(texts, f"{number}.txt"), "wb")) for number in range(8)]
        for at in range(0, lines, len(some)):
            count = min(len(some), lines - at)
            producer.send_many(values[:count], shard=at // len(some) % _SHARDS)
            files[at // len(some) % 8].write(block if count == len(some) else block[: count * (LINE_BYTES + 1)])
    return texts


def _pipeline(out: str, streams: str, transform: Any, **settings: Any) -> Pipeline:
    settings = {"unit_bytes": _UNIT_BYTES, **settings}
    return Pipeline("bench", source=stream(streams), transform=transform, sink=parquet(out), **settings)


def _worker(folder: str, world: str, engine: Any, transform: Any) -> "_Kept":
    """Kept for several runs, since starting it is not what is measured."""
    return _Kept(_pipeline(os.path.join(folder, "out"), "lines", transform).worker(world, engine))


class _Kept:
    """A worker that a runner does not close."""

    def __init__(self, worker: Worker) -> None:
        self.worker: Any = worker
        self.slots, self.run = worker.slots, worker.run
        self._is_spark = hasattr(worker, "spark")

    def begin(self) -> None:
        """Be there when the clock starts: starting is not what is measured."""
        if self._is_spark:
            self.worker.begin()

    def rest(self) -> None:
        """Leave the cores to others."""
        if self._is_spark:
            self.worker.rest()

    def close(self) -> None:
        pass

    def end(self) -> None:
        self.worker.close()


def _pass(folder: str, world: str, worker: _Kept, streams: str, lines: int) -> float:
    """Seconds for all there is, from nothing to published; the count must be right."""
    out, state = os.path.join(folder, "out"), os.path.join(folder, "state.db")
    _remove(out, state)
    pipeline = _pipeline(out, streams, pipeline_app.by_campaign, poll_s=0.02)
    with SqliteCoordination(state) as store:
        runner = pipeline.runner(world, [store], worker=worker)
        worker.begin()
        began_s = time.perf_counter()
        runner.run(until_done=True)
        took_s = time.perf_counter() - began_s
    worker.rest()
    _check(out, lines)
    return took_s


def _check(out: str, lines: int) -> None:
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    counted = pc.sum(ds.dataset(out).to_table().column("count_all")).as_py()
    if counted != lines:
        raise RuntimeError(f"{counted} of {lines} messages were counted: the pipeline is wrong, not slow")


def _plain(worker: _Kept, texts: str, folder: str) -> float:
    """What a user of Spark would write: the text reader, a GROUP BY, Parquet out."""
    out = os.path.join(folder, "plain")
    shutil.rmtree(out, ignore_errors=True)
    spark = worker.worker.spark
    began_s = time.perf_counter()
    frame = spark.read.text(texts).selectExpr(f"substring(value, 1, {pipeline_app.KEY_BYTES}) AS campaign")
    frame.groupBy("campaign").count().write.parquet(out)
    return time.perf_counter() - began_s


def _delay(folder: str, world: str, worker: Worker, seconds: float) -> float:
    """p90 from sending a message to its output being there, with messages flushed every 100 ms."""
    out, state, name = os.path.join(folder, "out"), os.path.join(folder, "state.db"), f"live-{os.urandom(3).hex()}"
    _remove(out, state)
    over = threading.Event()
    with open_world(world) as opened, SqliteCoordination(state) as store:
        opened.create_stream(name, shards=2, cached=False)
        pipeline = _pipeline(out, name, pipeline_app.by_campaign, poll_s=0.02, linger_s=0.1)
        runner = pipeline.runner(world, [store], worker=worker)
        thread = threading.Thread(target=runner.run)
        thread.start()
        try:
            with opened.producer(name, buffer_s=0.1) as producer:
                end_s = time.monotonic() + seconds
                while time.monotonic() < end_s:
                    producer.send(b"campaign-0001" + b"." * 87)
                    over.wait(0.01)
            wait_s = time.monotonic() + _DEADLINE_S
            while not runner.is_done() and time.monotonic() < wait_s:
                over.wait(0.05)
        finally:
            runner.stop()
            thread.join()
        opened.delete_stream(name)
    return float(runner.figures()["delay_p90_s"])


def _empty(folder: str, world: str, engine: Any, units: int) -> float:
    """Milliseconds for one unit that does nothing, in a run of many."""
    out, state, name = os.path.join(folder, "out"), os.path.join(folder, "state.db"), f"tiny-{os.urandom(3).hex()}"
    with open_world(world) as opened:
        opened.create_stream(name, shards=1, cached=False)
        with opened.producer(name) as producer:
            producer.send_many([b"." * LINE_BYTES] * units)
        pipeline = _pipeline(out, name, pipeline_app.nothing, unit_bytes=LINE_BYTES, poll_s=0.02)
        worker = _Kept(pipeline.worker(world, engine))
        try:
            for _ in range(2):  # the first one warms up
                _remove(out, state)
                with SqliteCoordination(state) as store:
                    runner = pipeline.runner(world, [store], worker=worker)
                    worker.begin()
                    began_s = time.perf_counter()
                    runner.run(until_done=True)
                    took_s = time.perf_counter() - began_s
                    made = runner.figures()["units"]
        finally:
            worker.end()
        opened.delete_stream(name)
    return 1000 * took_s / int(made)


# ---- sites in processes of their own


def _start(folder: str, site: str, core: int | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", "tailrace.node.bench.pipeline_app:pipeline"]
    command += ["--site", site, "--engine", "inline", "--world", os.path.join(folder, "sites")]
    command += ["--state", os.path.join(folder, "sites.db")]
    env = {**os.environ, "TAILRACE_BENCH_OUT": os.path.join(folder, "sites-out")}
    if "TAILRACE_BENCH_UNIT" not in env:
        env["TAILRACE_BENCH_UNIT"] = str(1 << 20)
    child = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if core is not None:
        os.sched_setaffinity(child.pid, {core})
    return child


def _sites_time(folder: str, count: int, lines: int) -> float:
    """Seconds that so many sites need for all there is, once they are at work. Each has a core."""
    _remove(os.path.join(folder, "sites-out"), os.path.join(folder, "sites.db"), os.path.join(folder, "sites"))
    cores = sorted(os.sched_getaffinity(0))
    with open_world(os.path.join(folder, "sites")) as world:
        world.create_stream("lines", shards=2, cached=False)
        with world.producer("lines") as producer:
            producer.send_many([b"campaign-0001" + b"." * 87] * 1000)
        children = [_start(folder, f"site-{number}", cores[number % len(cores)]) for number in range(count)]
        try:
            out = _Outputs(os.path.join(folder, "sites-out"))
            _until(lambda: _runners(folder) == count and out.counted() == 1000, "the sites to begin")
            values = [b"campaign-%04d" % (number % _CAMPAIGNS) + b"." * 87 for number in range(10_000)]
            with world.producer("lines", buffer_s=float("inf")) as producer:
                for at in range(0, lines, len(values)):
                    producer.send_many(values, shard=at // len(values) % 2)
                sent = 1000 + -(-lines // len(values)) * len(values)
                producer.flush()
                began_s = time.perf_counter()
                _until(lambda: out.counted() >= sent, "all to be counted")
                return time.perf_counter() - began_s
        finally:
            _end(children)


def kills(folder: str, rounds: int) -> int:
    """Kill one of two sites again and again while messages come. How many times, if all were counted once."""
    _remove(os.path.join(folder, "sites-out"), os.path.join(folder, "sites.db"), os.path.join(folder, "sites"))
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
                        children[site] = _start(folder, site)
                _until(lambda before=before: out.counted() > before, "the sites to be at work")  # type: ignore[misc]
                victim = children.pop("ab"[number % 2])
                victim.send_signal(signal.SIGKILL)
                victim.wait()
            children["c"] = _start(folder, "c")
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
        self._folder, self._counts = folder, dict[str, int]()

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


def _until(holds: Callable[[], bool], what: str) -> None:
    end_s, pause = time.monotonic() + _DEADLINE_S, threading.Event()
    while not holds():
        if time.monotonic() > end_s:
            raise RuntimeError(f"waited {_DEADLINE_S:g} s in vain for {what}")
        pause.wait(0.02)


def _end(children: list[subprocess.Popen[bytes]]) -> None:
    for child in children:
        child.kill()
        child.wait()


def _remove(*paths: str) -> None:
    for path in paths:
        shutil.rmtree(path, ignore_errors=True)
        for name in (path, f"{path}-wal", f"{path}-shm", f"{path}-journal"):
            if os.path.isfile(name):
                os.unlink(name)
