"""Hops of a running world: what each adds, and whether a worker is stuck or the producer is silent."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tailrace
from conftest import wait_until
from tailrace.copytree.hops import StreamReport
from tailrace.node.cli import app
from tailrace.node.deployed import Deployed, open_store, publish
from tailrace.node.hop_monitor import WorldMonitor, described, told_sights
from tailrace.node.metrics import hops_text_of
from tailrace.node.world_file import read_world_file

WORLD = """
[tariffs.world]
price_per_gb = 1.0
[clusters.a]
[clusters.b]
[clusters.c]
[[links]]
between = ["a", "b"]
price_per_gb = 0.01
[[links]]
from = "b"
to = "c"
price_per_gb = 0.01
[streams.s]
source = "a"
stays_in = []
[streams.s.settings]
shards = 2
[routing]
hop = 0.0
"""


class Pouring:
    """A producer that sends something now and then until it is told to rest."""

    def __init__(self, folder: Path) -> None:
        self._world = tailrace.open(folder)
        self._producer = self._world.producer("s", buffer_s=0.005)
        self.resting, self._closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        while not self._closed.wait(0.01):
            if not self.resting.is_set():
                self._producer.send(b"%d" % number, shard=number % 2)
                number += 1

    def close(self) -> None:
        self._closed.set()
        self._thread.join()
        self._producer.close()
        self._world.close()


class Nodes:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: dict[str, ExitStack] = {}

    def start(self, cluster: str, *roles: str, number: int = 0) -> None:
        with ExitStack() as stack:
            opened = stack.enter_context(tailrace.open(self._path.parent / cluster))
            stack.enter_context(Deployed(str(self._path), cluster).node(opened, roles, number=number))
            self._running[f"{cluster}-{number}"] = stack.pop_all()

    def stop(self, name: str) -> None:
        self._running.pop(name).close()

    def close(self) -> None:
        for name in list(self._running):
            self.stop(name)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tuple[Path, Nodes]]:
    path = tmp_path / "world.toml"
    path.write_text(WORLD)
    file = read_world_file(path)
    with open_store(str(path), file) as store:
        publish(str(path), file, store)
    nodes = Nodes(path)
    try:
        for cluster in "ac":
            nodes.start(cluster, "reader", "writer", "scheduler", "monitor")
        nodes.start("b", "writer", "scheduler", "monitor")
        nodes.start("b", "reader", number=1)
        yield path, nodes
    finally:
        nodes.close()


@contextmanager
def pouring(folder: Path) -> Iterator[Pouring]:
    made = Pouring(folder)
    try:
        yield made
    finally:
        made.close()


def test_delays_a_stuck_worker_and_a_silent_producer(world: tuple[Path, Nodes]) -> None:
    path, nodes = world
    with WorldMonitor(str(path)) as monitor:
        seen: list[StreamReport] = []

        def until(holds: Callable[[StreamReport], Any], what: str) -> StreamReport:
            def looked() -> bool:
                seen[:] = monitor.look()
                return bool(seen) and bool(holds(seen[0]))

            wait_until(looked, what)
            return seen[0]

        with pouring(path.parent / "a") as producing:
            report = until(lambda one: all(hop.samples > 5 for hop in one.hops), "both hops to be timed")
            assert [(hop.upstream, hop.downstream) for hop in report.hops] == [("a", "b"), ("b", "c")]
            assert all(hop.delay_p50_ms is not None and hop.delay_p99_ms is not None for hop in report.hops)
            until(lambda one: {hop.state for hop in one.hops} == {"flowing"}, "it to flow")
            text = hops_text_of(described(seen))
            assert 'tailrace_hop_delay_seconds{stream="s",from="a",to="b",quantile="0.99"} ' in text
            assert 'tailrace_hop_state{stream="s",from="b",to="c",state="flowing"} 1' in text
            _check_commands(path)
            nodes.stop("b-1")  # nobody hands it on from b
            report = until(lambda one: one.words == "stuck at b > c", "the hop that is stuck")
            assert report.hops[0].state == "flowing"
            nodes.start("b", "reader", number=1)
            until(lambda one: not one.words and one.hops[1].state == "flowing", "it to go on")
            producing.resting.set()
            until(lambda one: one.producer == "quiet" and not one.words, "the quiet")
        until(lambda one: one.words == "the producer is silent", "the producer to be missed")


def _check_commands(path: Path) -> None:
    """What monitors told in the store is what people see."""
    with open_store(str(path), read_world_file(path)) as store:
        wait_until(lambda: told_sights(store).keys() == set("abc"), "all monitors to have told")

    def hops() -> list[dict[str, Any]]:
        told = CliRunner().invoke(app, ["topology", "show", str(path), "--live", "--json"])
        (stream,) = json.loads(told.stdout)["streams"]
        return list(stream["hops"])

    # What a monitor told may just have run out, when it had no turn for that long.
    wait_until(lambda: all(hop.get("seen", {}).get("samples", 0) > 0 for hop in hops()), "what all of them have told")
    in_words = ["topology", "show", str(path), "--live"]
    wait_until(lambda: " adds " in CliRunner().invoke(app, in_words).stdout, "the same in words")
    told = CliRunner().invoke(app, ["monitor", "s", "--world-file", str(path), "--for", "1s", "--json"])
    assert told.exit_code == 0, told.output
    (stream,) = json.loads(told.stdout)["streams"]
    assert {"from", "to", "state", "delay_p50_ms", "delay_p99_ms", "behind_bytes", "samples"} <= stream["hops"][
        0
    ].keys()
    assert CliRunner().invoke(app, ["monitor"]).exit_code == 2
