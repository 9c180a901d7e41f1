"""A cluster dies, and its consumers read in a near one, from where they were; it comes back, and they come home."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from test_layers_kills import STREAM, Following
from up_world import Trickle

import tailrace
from conftest import wait_until
from tailrace.node.deployed import open_store, publish
from tailrace.node.membership import write_membership
from tailrace.node.world_file import read_world_file

WORLD = """
[tariffs.world]
price_per_gb = 0.01
[clusters.a]
[clusters.b]
[streams.s]
source = "a"
[streams.s.settings]
file_bytes = 300000
"""


class Node:
    """All of a cluster in one process, which nobody starts again."""

    def __init__(self, world: Path, cluster: str, *options: str) -> None:
        roles = "reader,writer,scheduler"
        command = ["node", "--roles", roles, "--world-file", str(world), "--cluster", cluster, *options]
        self._process = subprocess.Popen([sys.executable, "-m", "tailrace", *command], stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def consumer_of(one: Following) -> tailrace.Consumer:
    return one._consumer


@pytest.fixture
def world(tmp_path: Path) -> Path:
    path = tmp_path / "world.toml"
    path.write_text(WORLD)
    file = read_world_file(path)
    with open_store(str(path), file) as store:
        publish(str(path), file, store)
    return path


def all_end(producing: Trickle, following: Iterable[Following], nodes: Mapping[str, Node]) -> int:
    """The producer, then consumers when they have all, then the world. How many messages there were."""
    producing.close()
    end = producing.durable
    for one in following:
        wait_until(lambda one=one: one.problem or one.count >= end, "the last messages")  # type: ignore[misc]
        one.close()
    for node in nodes.values():
        node.kill()
    return end


def test_consumers_of_a_dead_cluster_go_on_elsewhere_and_come_home(tmp_path: Path, world: Path) -> None:
    nodes = {name: Node(world, name) for name in "ab"}
    producing = Trickle(tmp_path / "a")
    following: list[Following] = []
    try:
        wait_until((tmp_path / "b" / "streams" / STREAM / "00000").exists, "the copy")
        following.append(Following(tmp_path / "b"))
        (one,) = following

        def goes_on(more: int = 100) -> None:
            goal = producing.durable + more
            wait_until(lambda: one.problem or one.count >= goal, "the consumer to be at the head")
            assert one.problem is None, one.problem

        goes_on()
        assert consumer_of(one).clusters == {STREAM: "b"}
        nodes.pop("b").kill()
        goes_on()  # what b has not
        assert consumer_of(one).clusters == {STREAM: "a"}
        with tailrace.open(tmp_path / "b") as behind:
            assert behind.stream_status(STREAM)[0].messages < one.count
        nodes["b"] = Node(world, "b")
        wait_until(lambda: one.problem or consumer_of(one).clusters == {STREAM: "b"}, "it to come home")
        goes_on()
    finally:
        end = all_end(producing, following, nodes)
    assert [one.count for one in following] == [end]  # each once, in order: it checks every number


def test_a_consumer_goes_on_when_its_files_are_gone(tmp_path: Path, world: Path) -> None:
    """The file system of the cluster is away. What was handed out is not handed out again."""
    nodes = {name: Node(world, name) for name in "ab"}
    try:
        with tailrace.open(tmp_path / "a") as source, source.producer(STREAM) as producer:
            producer.send(b"0")
            producer.flush()
            wait_until((tmp_path / "b" / "streams" / STREAM / "00000").exists, "the copy")
            with tailrace.open(tmp_path / "b") as there, there.consumer(STREAM, start="earliest") as consumer:
                seen: list[bytes | None] = []

                def sees(value: bytes) -> bool:
                    batch = consumer.poll(0.1)
                    seen.extend(message.value for message in batch or ())
                    return value in seen

                wait_until(lambda: sees(b"0"), "the first")
                nodes.pop("b").kill()
                shutil.move(tmp_path / "b", tmp_path / "elsewhere")
                os.makedirs(tmp_path / "b")
                producer.send(b"1")
                producer.flush()
                wait_until(lambda: sees(b"1"), "the second")
                assert consumer.clusters == {STREAM: "a"}
                assert seen == [b"0", b"1"]
    finally:
        for node in nodes.values():
            node.kill()


def test_a_consumer_that_is_told_to_stay_stays(tmp_path: Path, world: Path) -> None:
    write_membership(str(tmp_path / "a"), "a", str(world))
    with tailrace.open(tmp_path / "a") as source:
        with source.producer(STREAM) as producer:
            producer.send(b"0")
        with source.consumer(STREAM) as consumer:
            assert consumer.clusters == {STREAM: "a"}
        with source.consumer(STREAM, moves=False) as consumer:
            assert consumer.clusters == {}
