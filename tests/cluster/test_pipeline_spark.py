"""A pipeline with Spark as its worker: exact through kills of the driver and of workers; a function on DataFrames."""

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pipeline_sites import Sites

import tailrace
from conftest import wait_until
from tailrace.coordination import SqliteCoordination
from tailrace.pipeline import Pipeline, parquet, stream

pytest.importorskip("pyspark")


@pytest.fixture
def sites(tmp_path: Path) -> Iterator[Sites]:
    made = Sites(tmp_path)
    yield made
    made.end()


def test_a_driver_killed_and_poison_that_kills_workers_leave_every_other_message_counted_once(sites: Sites) -> None:
    sites.produce(30_000, extra=(b"raise me", b"die now"))
    gate = sites.folder / "gate"
    gate.touch()
    first = sites.start("us", "us", "spark", PIPELINE_GATE=str(gate))
    wait_until(lambda: staged_or_held(sites), "Spark to have units in hand", 120)
    first.send_signal(signal.SIGKILL)
    first.wait()
    gate.unlink()
    figures = sites.finish(sites.start("us", "us", "spark", "--until-done", PIPELINE_UNIT="1000"))
    assert figures["messages"] == 30_000
    assert sites.counted() == sites.sent
    bad = {one["end"] - one["begin"]: one["reason"] for one in sites.tell("bad-ranges", "counts")}
    assert set(bad) == {len(b"raise me"), len(b"die now")}, "each of the two alone"
    assert bad[len(b"raise me")].startswith("ValueError: cannot read")
    assert "Python worker of Spark, died" in bad[len(b"die now")]


def staged_or_held(sites: Sites) -> bool:
    try:
        return bool(sites.tell("status", "counts")["units"]["held"])
    except AssertionError:
        return False


def by_campaign(messages: Any) -> Any:
    """DataFrame to DataFrame, in SQL."""
    parsed = messages.selectExpr("split(CAST(value AS string), ' ')[0] AS campaign")
    return parsed.groupBy("campaign").count()


def test_a_function_on_dataframes_is_all_a_user_writes(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "w") as world, world.producer("clicks", shards=2) as producer:
        for number in range(5000):
            producer.send(b"c%d %d" % (number % 3, number))
    pipeline = Pipeline(
        "frames", source=stream("clicks"), frame=by_campaign, sink=parquet(tmp_path / "out"), unit_bytes=30_000
    )
    root = str(tmp_path / "w")
    with SqliteCoordination(tmp_path / "state.db") as store:
        runner = pipeline.runner(root, [store], worker=pipeline.worker(root, "spark", slots=2))
        runner.run(until_done=True)
    found: Counter[str] = Counter()
    for row in ds.dataset(tmp_path / "out").to_table().to_pylist():
        found[row["campaign"]] += row["count"]
    assert found == {"c0": 1667, "c1": 1667, "c2": 1666}
    assert runner.figures()["units"] >= 2
