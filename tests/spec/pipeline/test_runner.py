"""Pipelines as a user has them, in one process: what comes out, what is kept, and what is said of it."""

import os
import random
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import tailrace
from conftest import wait_until
from tailrace.coordination import SqliteCoordination
from tailrace.env import SystemClock
from tailrace.errors import ConfigError, CoordinationError
from tailrace.files import PosixFiles
from tailrace.pipeline import Pipeline, PipelineConfig, into_stream, parquet, sqlite_table, stream
from tailrace.pipeline.code import Code, load_named
from tailrace.pipeline.logs import StreamLogs
from tailrace.pipeline.office import Office, PipelineMissing, describe
from tailrace.pipeline.runner import Runner, delays
from tailrace.pipeline.state import State


def values(messages: pa.Table) -> pa.Table:
    return messages.select(["value", "position"])


class Place:
    """A world with a stream, a store for the state, and a folder for the output."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root, self.out = folder, str(folder / "world"), folder / "out"
        self.world = tailrace.open(self.root)
        self.store = SqliteCoordination(folder / "state.db")
        self.problems: list[str] = []

    def produce(self, count: int, name: str = "clicks", first: int = 0) -> None:
        with self.world.producer(name, shards=2) as producer:
            producer.send_many([b"%06d" % number for number in range(first, first + count)], shard=first % 2)

    def pipeline(self, transform: Any = values, **settings: Any) -> Pipeline:
        settings = {"unit_bytes": 600, "linger_s": 0.0, "poll_s": 0.01, "lease_s": 1.0, **settings}
        source = settings.pop("source", stream("clicks"))
        return Pipeline("p", source=source, transform=transform, sink=parquet(self.out), **settings)

    def runner(self, pipeline: Pipeline, site: str = "here", **more: Any) -> Runner:
        worker = pipeline.worker(self.root, "inline")
        describe(self.store, "p", dict.fromkeys(pipeline.source.streams), pipeline.sink.place)
        return pipeline.runner(
            self.root, [self.store], site=site, worker=worker, on_problem=self.problems.append, **more
        )

    def run(self, pipeline: Pipeline, **more: Any) -> dict[str, Any]:
        runner = self.runner(pipeline, **more)
        runner.run(until_done=True)
        return runner.figures()

    def office(self) -> Office:
        return Office("p", [self.store], StreamLogs(PosixFiles(self.root), SystemClock()), SystemClock())

    def seen_so_far(self) -> list[bytes]:
        return self.seen() if list(self.out.glob("part-*")) else []

    def seen(self) -> list[bytes]:
        return sorted(ds.dataset(self.out).to_table().column("value").to_pylist())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.store.close()
    made.world.close()


def numbers(count: int) -> list[bytes]:
    return [b"%06d" % number for number in range(count)]


def test_what_is_there_is_processed_once_and_then_what_comes(place: Place) -> None:
    place.produce(500)
    figures = place.run(place.pipeline())
    assert (figures["messages"], figures["input_bytes"], figures["rows"]) == (500, 3000, 500)
    assert place.run(place.pipeline())["units"] == 0, "nothing is left"
    place.produce(501, first=500)
    assert place.run(place.pipeline())["messages"] == 501
    assert place.seen() == numbers(1001)
    assert place.problems == []


def test_nothing_of_history_stays_in_the_state(place: Place) -> None:
    sizes = []
    for part in range(3):
        place.produce(400, first=400 * part)
        place.run(place.pipeline())
        sizes.append(len(place.store.range("pipelines/").entries))
    assert sizes[0] == sizes[1] == sizes[2]
    assert not place.store.range("pipelines/p/units/").entries


def test_what_was_used_is_told_by_site_and_in_all(place: Place) -> None:
    place.produce(300)
    place.run(place.pipeline())
    place.produce(200, first=300)
    place.run(place.pipeline(), site="there")
    told = place.office().status()["usage"]
    assert [told["sites"][site]["messages"] for site in ("here", "there")] == [300, 200]
    assert [told["sites"][site]["input_bytes"] for site in ("here", "there")] == [1800, 1200]
    sizes = [path.stat().st_size for path in place.out.glob("part-*")]
    everything = told["total"]
    assert (everything["units"], everything["output_bytes"], everything["rows"]) == (len(sizes), sum(sizes), 500)
    assert everything["cpu_s"] > 0
    assert everything["wall_s"] > 0
    assert (everything["failed"], everything["refused"]) == (0, 0)


def test_work_that_came_to_nothing_is_on_the_account_too(place: Place) -> None:
    place.produce(50)
    with place.world.producer("clicks") as producer:
        producer.send(b"poison", shard=0)
    place.run(place.pipeline(poisoned, attempts_max=2, retry_s=0.0))
    told = place.office().status()["usage"]["total"]
    assert told["failed"] >= 2
    assert told["messages"] == 50, "the bad message is in no unit that was committed"


def poisoned(messages: pa.Table) -> pa.Table:
    if b"poison" in messages.column("value").to_pylist():
        raise ValueError("poison")
    return values(messages)


def test_the_forecast_says_when_all_is_done_and_what_holds_the_delay(place: Place) -> None:
    place.produce(400)
    pipeline = place.pipeline(delay_goal_s=5.0)
    runner = place.runner(pipeline)
    assert place.office().status()["forecast"]["drain_s"] is None, "nothing was done yet"
    thread = threading.Thread(target=runner.run)
    thread.start()
    try:
        wait_until(
            lambda: (place.office().status()["forecast"]["slots_needed"] or 0) > 0, "a figure of what can be done"
        )
        wait_until(lambda: place.office().status()["forecast"]["drain_s"] == 0.0, "all to be done")
        told = place.office().status()["forecast"]
        assert (told["slots"], told["delay_goal_s"]) == (1, 5.0)
        assert told["capacity_bytes_per_s"] > 0
    finally:
        runner.stop()
        thread.join()


def test_a_site_has_as_many_processes_as_the_delay_needs(place: Place) -> None:
    """A backlog wants all of them; when it is gone, those that are not needed any more go."""
    pipeline = place.pipeline(slow, delay_goal_s=0.5, unit_bytes=60, lease_s=20.0)
    worker: Any = pipeline.worker(place.root, "processes", 3)
    clock = Hasty()
    runner = pipeline.runner(place.root, [place.store], worker=worker, clock=clock)
    thread = threading.Thread(target=runner.run)
    place.produce(200)
    thread.start()
    try:
        wait_until(lambda: len(worker.pids()) == 3, "all processes to be at work", 60)
        wait_until(lambda: len(place.seen_so_far()) == 200, "all to be done", 60)
        clock.offset_s += 100  # long enough to be sure that they are not needed
        wait_until(lambda: len(worker.pids()) == 1, "the others to go", 60)
        assert worker.slots == 1
        place.produce(400, first=200)
        wait_until(lambda: len(place.seen_so_far()) == 600, "the rest to be done", 60)
    finally:
        runner.stop()
        thread.join()


def slow(messages: pa.Table) -> pa.Table:
    threading.Event().wait(0.1)
    return values(messages)


class Hasty(SystemClock):
    """A clock that a test moves ahead."""

    offset_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.offset_s


def test_a_site_that_hangs_says_so_and_others_have_its_work(place: Place) -> None:
    """It lives, so no lease runs out; and the site ETA is far away."""
    gate = threading.Event()

    def hangs(messages: pa.Table) -> pa.Table:
        gate.wait()
        return values(messages)

    settings: dict[str, Any] = {"local_eta_s": 0.3, "site_eta_s": 3000.0, "open_eta_s": 3000.0}
    here, there = place.pipeline(hangs, **settings), place.pipeline(**settings)
    place.produce(100)
    runners = [place.runner(here)]
    threads = [threading.Thread(target=runners[0].run)]
    threads[0].start()
    try:
        wait_until(lambda: place.office().status()["units"]["held"] > 0, "the first site to begin")
        runners.append(place.runner(there, site="there"))
        threads.append(threading.Thread(target=runners[1].run))
        threads[1].start()
        wait_until(lambda: place.seen_so_far() == numbers(100), "the other site to do all of it")
        told = {one["site"]: one for one in place.office().status()["sites"]}
        assert (told["here"]["stuck"], told["here"]["up"]) == (True, False)
        gate.set()
        wait_until(lambda: place.office().status()["sites"][0]["up"], "the first site to be well again")
        place.produce(100, first=100)
        wait_until(lambda: place.seen_so_far() == numbers(200), "both to go on")
    finally:
        gate.set()
        for runner in runners:
            runner.stop()
        for thread in threads:
            thread.join()
    assert place.seen() == numbers(200)


def test_a_process_that_wants_too_much_memory_fails_its_unit_and_no_other(place: Place) -> None:
    place.produce(30)
    with place.world.producer("clicks") as producer:
        producer.send(b"greedy", shard=0)
    pipeline = place.pipeline(greedy, worker_memory_bytes=600 << 20, attempts_max=1, unit_bytes=60, retry_s=0.0)
    runner = pipeline.runner(place.root, [place.store], worker=pipeline.worker(place.root, "processes", 1))
    runner.run(until_done=True)
    assert place.seen() == numbers(30)
    (bad,) = State("p", [place.store], SystemClock()).bad_ranges()
    assert bad.range.size == len(b"greedy")
    assert "MemoryError" in bad.reason


def greedy(messages: pa.Table) -> pa.Table:
    if b"greedy" in messages.column("value").to_pylist():
        bytearray(2 << 30)
    return values(messages)


def test_retention_learns_what_is_done(place: Place) -> None:
    told: list[dict[tuple[str, int], int]] = []
    place.produce(100)
    runner = place.runner(place.pipeline(), on_floor=told.append)
    runner.site.track()
    units = runner.site.pull(1)
    runner._tend()
    assert told[-1][("clicks", 0)] == min(one.begin for unit in units for one in unit.ranges)
    runner.site.membership.leave()
    place.run(place.pipeline(), on_floor=told.append)
    last = place.runner(place.pipeline(), on_floor=told.append)
    last._tend()
    last.site.membership.leave()
    assert told[-1] == {("clicks", 0): 600}


def test_a_pipeline_may_begin_with_what_comes_later(place: Place) -> None:
    place.produce(100)
    pipeline = place.pipeline(source=stream("clicks", start="latest"))
    place.run(pipeline)
    place.produce(50, first=100)
    place.run(pipeline)
    assert place.seen() == numbers(150)[100:]


def test_several_streams_are_told_apart(place: Place) -> None:
    place.produce(30, "clicks")
    place.produce(20, "queries")
    pipeline = place.pipeline(lambda table: table.select(["stream", "value"]), source=stream("clicks", "queries"))
    place.run(pipeline)
    counts = ds.dataset(place.out).to_table().group_by("stream").aggregate([([], "count_all")]).to_pylist()
    assert sorted((row["stream"], row["count_all"]) for row in counts) == [("clicks", 30), ("queries", 20)]


def test_messages_that_make_it_raise_are_named_and_the_rest_is_done(place: Place) -> None:
    place.produce(300)

    def picky(table: pa.Table) -> pa.Table:
        if pc.any(pc.equal(table.column("value"), pa.scalar(b"000123", pa.binary()))).as_py():
            raise ValueError("not this one")
        return values(table)

    place.run(place.pipeline(picky, attempts_max=2, retry_s=0.0))
    (bad,) = place.office().state.bad_ranges()
    assert (bad.range.begin, bad.range.end, bad.reason) == (738, 744, "ValueError: not this one")
    assert place.seen() == [value for value in numbers(300) if value != b"000123"]
    assert "positions 738 to 744" in place.problems[-1]

    place.office().state.retry_bad(None, "here")  # the code was mended
    place.run(place.pipeline())
    assert place.seen() == numbers(300)
    assert place.office().state.bad_ranges() == []


def test_code_that_always_fails_gives_up_nothing_and_waits(place: Place) -> None:
    place.produce(200)
    broken = place.runner(place.pipeline(lambda table: 1 / 0, attempts_max=2, retry_s=0.0, retry_s_max=0.01))
    thread = threading.Thread(target=broken.run, daemon=True)
    thread.start()
    wait_until(lambda: broken.figures()["failures"] > 10, "failures")
    broken.stop()
    thread.join()
    told = place.office().status()
    assert told["bad_ranges"] == 0
    assert told["backlog_bytes"] == 1200
    assert "ZeroDivisionError" in told["failing"][0]["reason"]
    place.run(place.pipeline())
    assert place.seen() == numbers(200)


def test_status_is_true_before_during_and_after(place: Place) -> None:
    place.produce(300)
    with pytest.raises(PipelineMissing, match="none yet"):
        place.office()
    gate = threading.Event()

    def waiting(table: pa.Table) -> pa.Table:
        gate.wait()
        return values(table)

    runner = place.runner(place.pipeline(waiting))
    thread = threading.Thread(target=runner.run, kwargs={"until_done": True}, daemon=True)
    thread.start()
    wait_until(lambda: place.office().status()["units"]["held"], "a unit to be held")
    told = place.office().status()
    assert (told["state"], told["backlog_bytes"]) == ("working", 1800)
    assert told["oldest"]["begin"] == 0
    assert told["sites"][0]["up"]
    gate.set()
    thread.join()
    told = place.office().status()
    assert (told["state"], told["backlog_bytes"], told["backlog_s"]) == ("stopped", 0, 0.0)
    place.produce(100, first=300)  # nobody tracks it, and yet it is counted
    told = place.office().status()
    assert told["backlog_bytes"] == 600
    assert told["oldest"]["begin"] == 1800


def test_draining_stops_at_a_clean_line(place: Place) -> None:
    place.produce(100)
    place.run(place.pipeline())
    place.office().state.drain(True)
    place.produce(100, first=100)
    runner = place.runner(place.pipeline())
    thread = threading.Thread(target=runner.run, daemon=True)
    thread.start()
    wait_until(lambda: place.office().status()["state"] == "drained", "the drain to be known")
    assert place.seen() == numbers(100)
    place.office().state.drain(False)
    wait_until(lambda: len(place.seen()) == 200, "to go on")
    runner.stop()
    thread.join()


def test_the_state_is_repartitioned_while_it_runs(place: Place) -> None:
    place.produce(200)
    place.run(place.pipeline())
    layout = place.office().state.repartition(5, SystemClock().time_us() + 100_000)
    assert [epoch.partitions for epoch in layout.epochs] == [1, 5]
    wait_until(lambda: SystemClock().time_us() > layout.epochs[1].from_us, "the new epoch")
    place.produce(200, first=200)
    place.produce(201, first=400 + 1)
    place.run(place.pipeline())
    assert len(place.seen()) == 601
    assert place.store.range("pipelines/p/shards/1.").entries, "new files are elsewhere"


def test_an_output_that_is_lost_before_it_was_published_is_made_again(place: Place) -> None:
    place.produce(100)
    pipeline = place.pipeline()
    runner = place.runner(pipeline)
    site = runner.site
    site.track()
    units = site.pull(10)
    outputs = []
    for unit in units:
        name = f"{unit.id}.{site.membership.holder.runner}.0.parquet"
        folder = place.out / "_staging"
        (folder / name).touch()
        outputs.append((unit, {"name": name, "folder": str(folder), "rows": 0}))
    assert len(site.commit(outputs, site.membership)) == len(units)
    site.membership.leave()  # it dies, and its disk with it
    shutil.rmtree(place.out / "_staging")
    place.run(pipeline)
    assert place.seen() == numbers(100)


def test_an_output_that_would_differ_is_not_made_again(place: Place) -> None:
    place.produce(100)
    there = place.folder / "there"
    pipeline = place.pipeline(deterministic=False, replicas=[str(there)])
    runner = place.runner(pipeline)
    site, worker = runner.site, pipeline.worker(place.root, "inline")
    site.track()
    tasks = [runner._next_task()]
    results = list(worker.run(lambda: tasks.pop() if tasks else None))
    (unit, membership) = next(iter(runner._held.values()))
    assert len(site.commit([(unit, results[0].receipt)], membership)) == 1  # type: ignore[union-attr]
    site.membership.leave()
    copies = os.listdir(there)
    assert len(copies) == 1, "it was copied before it was committed"
    shutil.rmtree(place.out / "_staging")
    other = place.runner(pipeline)
    other._tend()
    assert not place.store.range(f"pipelines/p/units/0.0/{unit.id}").entries, "published from the copy"
    assert place.seen() == sorted(place.seen())
    other.site.membership.leave()


def test_rate_limits_hold_a_site_back(place: Place) -> None:
    place.produce(10)
    runner = place.runner(place.pipeline(unit_bytes=12, bytes_per_s=0.001))
    runner.site.track()
    assert runner._next_task() is not None
    runner._buffer.clear()
    assert runner._next_task() is None, "the first unit has used up what may be read for hours"
    runner.site.membership.leave()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"unit_bytes": 0}, "unit_bytes=0"),
        ({"local_eta_s": 50.0, "site_eta_s": 10.0}, "site_eta_s"),
        ({"bytes_per_s": -1}, "bytes_per_s"),
        ({"delay_goal_s": 0}, "delay_goal_s"),
        ({"slots_min": 0}, "slots_min"),
        ({"worker_memory_bytes": 1 << 20}, "worker_memory_bytes"),
        ({"no_such": 1}, "no_such"),
    ],
)
def test_settings_that_cannot_be_are_refused(place: Place, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        place.pipeline(**settings)


def test_wrong_pipelines_are_refused_with_advice(tmp_path: Path) -> None:
    sink = parquet(tmp_path)
    with pytest.raises(ConfigError, match=r"stream\('clicks'\)"):
        Pipeline("p", source="clicks", transform=values, sink=sink)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one of the two"):
        Pipeline("p", source=stream("clicks"), sink=sink)
    with pytest.raises(ConfigError, match="top of a module"):
        Code.of(lambda table: table)
    with pytest.raises(ConfigError, match=r"app\.py:pipeline"):
        load_named("app.py")
    with pytest.raises(ConfigError, match="not a Python file"):
        load_named(f"{tmp_path}/missing.py:pipeline")
    assert PipelineConfig().etas.site_us == 10 * PipelineConfig().etas.local_us


def test_delays_are_percentiles() -> None:
    assert delays([]) == {"delay_p50_s": None, "delay_p90_s": None}
    assert delays(range(100)) == {"delay_p50_s": 50, "delay_p90_s": 90}


@pytest.mark.parametrize("kind", ["table", "stream"])
def test_the_state_is_rebuilt_from_an_account_of_what_was_published(place: Place, kind: str) -> None:
    """Of a sink that keeps no note for each unit: over several files, and with a hole."""
    sink = into_stream(place.root, "out", shards=1) if kind == "stream" else sqlite_table(f"{place.folder}/t.db", "t")
    for first in (0, 300, 600):  # each time a new file
        place.produce(300, first=first)

    def pipeline(transform: Any) -> Pipeline:
        settings: dict[str, Any] = {"unit_bytes": 300, "linger_s": 0.0, "poll_s": 0.01, "lease_s": 1.0}
        settings |= {"attempts_max": 1, "retry_s": 0.0}
        return Pipeline("p", source=stream("clicks"), transform=transform, sink=sink, **settings)

    def seen() -> list[bytes]:
        if kind == "table":
            with sqlite3.connect(f"{place.folder}/t.db") as db:
                return sorted(value for (value,) in db.execute("SELECT value FROM t"))
        with place.world.consumer("out", start="earliest", follow=False) as consumer:
            return sorted(message.value for batch in consumer for message in batch if message.value)

    def with_a_hole(messages: pa.Table) -> pa.Table:
        if b"000450" in messages.column("value").to_pylist():
            raise ValueError("not this one")
        return messages.select(["value"])

    place.run(pipeline(with_a_hole))
    assert seen() == [one for one in numbers(900) if one != b"000450"]
    office = place.office()
    place.produce(100, first=900)
    rebuilt = office.rebuild(sink, {"clicks": "earliest"}, "here")
    assert (rebuilt.units, rebuilt.hole_bytes) == (1, 6)
    place.run(pipeline(lambda messages: messages.select(["value"])))
    assert seen() == numbers(1000), "each once, and the hole is filled"


class Flaky:
    """A store that loses every few answers: what was asked may have been done."""

    def __init__(self, store: SqliteCoordination, seed: int) -> None:
        self._store, self._dice = store, random.Random(seed)
        self.lost = 0

    def transact(self, *asked: Any) -> Any:
        roll = self._dice.random()
        if roll < 0.15:
            self.lost += 1
            raise CoordinationError("the member did not answer")
        done = self._store.transact(*asked)
        if roll > 0.85:
            self.lost += 1
            raise CoordinationError("the answer was lost")
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("seed", range(4))
def test_answers_that_are_lost_cost_nothing_but_a_retry(place: Place, seed: int) -> None:
    """Neither the runner nor a unit: a commit that was done is known again, and one that was not is done."""
    place.produce(300)
    pipeline = place.pipeline(unit_bytes=60, local_eta_s=3000.0, site_eta_s=3000.0, open_eta_s=3000.0)
    calm = place.runner(pipeline)
    calm.site.leave()
    store: Any = Flaky(place.store, seed)
    while True:
        try:
            runner = pipeline.runner(place.root, [store], site="here", worker=pipeline.worker(place.root, "inline"))
            break
        except CoordinationError:
            continue
    runner.run(until_done=True)
    assert store.lost > 10
    assert place.seen() == numbers(300)
    told = place.office().status()["usage"]["total"]
    assert (told["messages"], told["refused"]) == (300, 0)
