"""A monitor: what it says of streams that flow, rest, are stuck or have other bytes in the cache than on disk."""

import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from conftest import wait_until
from tailrace.errors import ConfigError
from tailrace.node.metrics import MetricsDoor, text_of
from tailrace.streams import Monitor


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as opened:
        yield opened


def watch(monitor: Monitor, messages: int) -> dict[str, Any]:
    def has_come() -> bool:
        monitor.step(0.05)
        return bool(monitor.report()["messages"] >= messages)

    wait_until(has_come, f"{messages} messages")
    return monitor.report()


def test_a_stream_that_flows(world: tailrace.World, tmp_path: Path) -> None:
    with world.producer("s", shards=2) as producer:
        producer.send(b"before", shard=0)
        producer.flush()
        with tailrace.open(tmp_path) as beside, beside.monitor("s") as monitor:
            for number in range(100):
                producer.send(b"%d" % number * 50, shard=number % 2)
                producer.flush()
            seen = watch(monitor, 100)
        assert seen["messages"] == 100, "what was there before is not counted"
        assert seen["unequal_bytes"] == 0
        assert seen["compared_bytes"] == seen["bytes"] == sum(50 * len(b"%d" % number) for number in range(100))
        assert 0 < seen["delay_p50_ms"] <= seen["delay_p99_ms"] <= seen["delay_p99.99_ms"] < 60_000
        assert [one["state"] for one in seen["shards"]] == ["flowing", "flowing"]
        assert all(one["position"] == one["durable_end"] for one in seen["shards"])


def test_other_bytes_than_on_disk_are_noticed(world: tailrace.World, tmp_path: Path) -> None:
    """Messages have checksums of their own, so a lie must be a good one: here a whole other stream's file."""
    with world.producer("s") as producer, world.producer("other") as other:
        for one, value in ((producer, b"right"), (other, b"wrong")):
            one.send(value)
            one.flush()
        with tailrace.open(tmp_path) as beside, beside.monitor("s") as monitor:
            monitor._shards["s", 0].tail = (
                beside.monitor("other")._shards["other", 0].tail
            )  # compared with the wrong one
            producer.send(b"right again")
            other.send(b"wrong again")
            producer.flush()
            other.flush()
            seen = watch(monitor, 1)
    assert seen["unequal_bytes"] == seen["bytes"] == len(b"right again")


def test_who_is_silent_and_who_is_stuck(world: tailrace.World, tmp_path: Path) -> None:
    """A producer that rests is told from one that was stopped, and both from a consumer that does not move."""
    code = "import sys, tailrace\nw = tailrace.open(sys.argv[1]); p = w.producer('s')\n"
    code += (
        "p.send(b'x'); p.flush(); print(flush=True)\nfor _ in sys.stdin: p.send(b'x'); p.flush(); print(flush=True)\n"
    )
    producing = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert producing.stdin is not None
    assert producing.stdout is not None
    try:
        producing.stdout.readline()

        def send() -> None:
            assert producing.stdin is not None
            assert producing.stdout is not None
            producing.stdin.write("\n")
            producing.stdin.flush()
            producing.stdout.readline()

        wait_until(lambda: world._find_layers() is not None, "the producer's cache")
        with world.monitor("s") as monitor:

            def state() -> str:
                return str(monitor.report()["shards"][0]["state"])

            send()
            watch(monitor, 1)
            assert state() == "flowing"
            wait_until(lambda: state() == "quiet", "a while without messages")
            os.kill(producing.pid, signal.SIGSTOP)
            wait_until(lambda: state() == "producer silent", "a while without a beat")
            os.kill(producing.pid, signal.SIGCONT)
            wait_until(lambda: state() == "quiet", "the beat to go on")
            send()
            wait_until(lambda: state() == "consumer stuck", "a message that nobody takes")
            watch(monitor, 2)
            assert state() == "flowing"
    finally:
        producing.kill()
        producing.communicate()


def test_metrics_for_prometheus(world: tailrace.World) -> None:
    with world.producer("s") as producer, world.monitor("s") as monitor:
        producer.send(b"hello")
        producer.flush()
        watch(monitor, 1)
        report = monitor.report()
    door = MetricsDoor("127.0.0.1:0", lambda: text_of(report))
    try:
        with urllib.request.urlopen(f"http://{door.address}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://{door.address}/", timeout=10)
        with pytest.raises(ConfigError, match="cannot listen"):
            MetricsDoor(door.address, lambda: "")
    finally:
        door.close()
    assert 'tailrace_messages_total{stream="s",shard="0"} 1' in text
    assert 'tailrace_unequal_bytes_total{stream="s",shard="0"} 0' in text
    assert 'tailrace_delay_seconds{stream="s",shard="0",quantile="0.9999"}' in text
    assert 'tailrace_state{stream="s",shard="0",state="flowing"} 1' in text
    for line in text.splitlines():
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2
        if not line.startswith("#"):
            float(line.rsplit(" ", 1)[1])
    with pytest.raises(ConfigError, match="HOST:PORT"):
        MetricsDoor("9464", lambda: "")
