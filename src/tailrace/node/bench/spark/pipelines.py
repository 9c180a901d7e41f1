"""Pipelines: a partial GROUP BY over raw messages, with Spark as the worker, beside the same aggregation as a plain
DataFrame job over Spark's text reader, and beside the same work without Spark. Then what a unit costs, and how long a
message waits for its output.

All on the same bytes, in one session, in turns; a first round is thrown away, since the JVM compiles while it runs.
"""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from ....coordination import SqliteCoordination
from ....pipeline import Pipeline, parquet, stream
from ....pipeline.workers import Worker
from ...world import open_world
from ..report import Figure
from . import app
from .files import remove

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
]


def measure(
    folder: str, *, rounds: int, lines: int, live_s: float, units: int, progress: Callable[[str], None]
) -> dict[str, list[float]]:
    """The values of each of FIGURES, one for each round. live_s: how long messages come where delays are measured."""
    world, found = os.path.join(folder, "world"), dict[str, list[float]]()
    progress(f"pipelines: {lines:,} lines of {LINE_BYTES} bytes")
    texts = _fill(world, folder, lines)
    from ....pipeline.spark import session

    def note(name: str, value: float) -> float:
        found.setdefault(name, []).append(value)
        progress(f"{name}: {value:,.3f}" if value < 1000 else f"{name}: {value:,.0f}")
        return value

    with ExitStack() as stack:
        # As a user of plain Spark has it: a pipeline's own session starts faster, with a JVM that compiles less.
        session("bench", master=f"local[{len(os.sched_getaffinity(0))}]")
        spark = _worker(folder, world, "spark", app.by_campaign)
        stack.callback(spark.end)
        processes = _worker(folder, world, "processes", app.by_campaign)
        stack.callback(processes.end)
        progress("pipelines: warm-up, not counted")
        for _ in range(2):
            _plain(spark, texts, folder)
        _pass(folder, world, spark, "lines", lines)
        _pass(folder, world, processes, "lines", lines)
        for number in range(rounds):
            progress(f"pipelines: round {number + 1} of {rounds}")
            ours = note("pipeline_records_per_s", lines / _pass(folder, world, spark, "lines", lines))
            plain = note("plain_spark_records_per_s", lines / _plain(spark, texts, folder))
            alone = note("no_spark_records_per_s", lines / _pass(folder, world, processes, "lines", lines))
            note("pipeline_vs_plain_spark", ours / plain)
            note("pipeline_vs_no_spark", ours / alone)
        progress("pipelines: delays")
        for _ in range(rounds):
            note("overhead_p90_s", _delay(folder, world, spark, live_s))
            note("overhead_processes_p90_s", _delay(folder, world, processes, live_s))
    for engine in ("spark", "processes"):
        progress(f"pipelines: empty units, {engine}")
        for value in _empty(folder, world, engine, units, rounds):
            note(f"unit_overhead_{engine}_ms", value)
    return found


def _fill(world: str, folder: str, lines: int) -> str:
    """The same lines as a stream and as text files; the folder of the latter."""
    import pyarrow as pa

    texts = os.path.join(folder, "text")
    os.makedirs(texts)
    payload = "." * (LINE_BYTES - app.KEY_BYTES)
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
    remove(out, state)
    pipeline = _pipeline(out, streams, app.by_campaign, poll_s=0.02)
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
    frame = spark.read.text(texts).selectExpr(f"substring(value, 1, {app.KEY_BYTES}) AS campaign")
    frame.groupBy("campaign").count().write.parquet(out)
    return time.perf_counter() - began_s


def _delay(folder: str, world: str, worker: Worker, seconds: float) -> float:
    """p90 from sending a message to its output being there, with messages flushed every 100 ms."""
    out, state, name = os.path.join(folder, "out"), os.path.join(folder, "state.db"), f"live-{os.urandom(3).hex()}"
    remove(out, state)
    over = threading.Event()
    with open_world(world) as opened, SqliteCoordination(state) as store:
        opened.create_stream(name, shards=2, cached=False)
        pipeline = _pipeline(out, name, app.by_campaign, poll_s=0.02, linger_s=0.1)
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


def _empty(folder: str, world: str, engine: Any, units: int, rounds: int) -> Iterator[float]:
    """Milliseconds for one unit that does nothing, in a run of many."""
    out, state, name = os.path.join(folder, "out"), os.path.join(folder, "state.db"), f"tiny-{os.urandom(3).hex()}"
    with open_world(world) as opened:
        opened.create_stream(name, shards=1, cached=False)
        with opened.producer(name) as producer:
            producer.send_many([b"." * LINE_BYTES] * units)
        pipeline = _pipeline(out, name, app.nothing, unit_bytes=LINE_BYTES, poll_s=0.02)
        worker = _Kept(pipeline.worker(world, engine))
        try:
            for number in range(rounds + 1):  # the first one warms up
                remove(out, state)
                with SqliteCoordination(state) as store:
                    runner = pipeline.runner(world, [store], worker=worker)
                    worker.begin()
                    began_s = time.perf_counter()
                    runner.run(until_done=True)
                    if number:
                        yield 1000 * (time.perf_counter() - began_s) / int(runner.figures()["units"])
        finally:
            worker.end()
        opened.delete_stream(name)
