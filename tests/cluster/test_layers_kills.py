"""Whatever happens to the cache and to producers: consumers get every message once, in order, byte by byte."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cache_nodes import Nodes, started_nodes
from test_kills import LOOPS

import tailrace
from conftest import wait_until
from tailrace.config import DATA_CACHE, LENGTHS_CACHE, ConsumerConfig, WorldConfig

STREAM = "s"


def expected(number: int) -> bytes:
    return b"%d " % number + b"." * (number % 300)


class Following:
    """A consumer in a world of its own that checks every message; a wrong one ends it. `in_place`: it may read what a
    producer of this host has in memory, and comes to the cache only behind that."""

    def __init__(self, folder: Path, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self._world = tailrace.open(folder, config=WorldConfig(consumer=ConsumerConfig(in_place=in_place)))
        self._consumer = self._world.consumer(STREAM, start="earliest")
        self.count = 0
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._consumer:
                for message in batch:
                    assert message.value == expected(self.count)
                    self.count += 1
        except BaseException as problem:
            self.problem = problem

    def bytes_from(self, source: Any) -> int:
        layers = self._world._find_layers()
        return 0 if layers is None else layers.bytes_from[source]

    def close(self) -> None:
        self._consumer.close()
        self._thread.join()
        self._world.close()
        assert self.problem is None, self.problem


class Producing:
    """A process that produces until it is killed; `durable` is how many messages it has said to be durable."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(LOOPS), "produce", str(folder), STREAM], stdout=subprocess.PIPE, text=True
        )
        self.durable = 0
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        wait_until(lambda: self.durable > 0, "the producer to have begun")

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith("\n"):  # the last one may be cut off
                self.durable = int(line.split()[1])

    def kill(self) -> None:
        self.process.kill()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process.wait()


@contextmanager
def followers(folder: Path, count: int) -> Iterator[list[Following]]:
    made: list[Following] = []
    try:
        made += [Following(folder, in_place=number % 2 > 0) for number in range(count)]
        yield made
    finally:
        for one in made:
            one.close()


def wait_for_all(those: list[Following], producing: Producing, more: int = 2000) -> None:
    """Until everybody has come so much further."""
    goal = producing.durable + more
    for one in those:
        wait_until(lambda one=one: one.problem or one.count >= goal, f"a consumer to have {goal} messages")  # type: ignore[misc]
        assert one.problem is None, one.problem


def wait_for_cache(those: list[Following], producing: Producing) -> None:
    """Until bytes come from the cache again, and none from the files."""

    def is_normal(one: Following) -> bool:
        relaxed, durable, goal = one.bytes_from("relaxed"), one.bytes_from("durable"), one.count + 500
        wait_until(lambda: one.problem or one.count >= goal, "it to go on")
        return one.bytes_from("relaxed") > relaxed and one.bytes_from("durable") == durable

    for one in those:
        if one.in_place:
            continue
        wait_until(lambda one=one: one.problem or is_normal(one), "the cache to be used again")  # type: ignore[misc]


FAULTS: dict[str, tuple[list[str], list[int]]] = {
    "the data cache": ([DATA_CACHE], [0, 1, 2]),
    "the lengths cache": ([LENGTHS_CACHE], [0, 1, 2]),
    "both": ([DATA_CACHE, LENGTHS_CACHE], [0, 1, 2]),
    "one backend of each": ([DATA_CACHE, LENGTHS_CACHE], [1]),
    "two backends of each": ([DATA_CACHE, LENGTHS_CACHE], [0, 2]),
}


@pytest.fixture
def cells(tmp_path: Path) -> Iterator[dict[str, Nodes]]:
    with started_nodes(tmp_path, DATA_CACHE, ttl_s=60.0) as data, started_nodes(tmp_path, LENGTHS_CACHE) as lengths:
        yield {DATA_CACHE: data, LENGTHS_CACHE: lengths}


@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("what", FAULTS)
def test_a_cache_that_is_away_costs_time_and_nothing_else(
    tmp_path: Path, cells: dict[str, Nodes], what: str, how: str
) -> None:
    names, backends = FAULTS[what]
    act: Callable[[Nodes, int], None] = Nodes.kill if how == "killed" else Nodes.pause
    producing = Producing(tmp_path)
    try:
        with followers(tmp_path, 2) as those:
            wait_for_all(those, producing)
            wait_for_cache(those, producing)
            for name in names:
                for backend in backends:
                    act(cells[name], backend)
            wait_for_all(those, producing)
            for name in names:
                for backend in backends:
                    if how == "stopped":
                        cells[name].signal(backend, signal.SIGCONT)
            # Whoever was killed is succeeded by the producer, which serves what nobody does.
            wait_for_cache(those, producing)
    finally:
        producing.kill()


def test_a_producer_killed_again_and_again_and_new_consumers_at_once(tmp_path: Path) -> None:
    """Without servers: the producer's memory goes with it each time, and the next one begins anew."""
    with followers_later(tmp_path) as those:
        for turn in range(4):
            producing = Producing(tmp_path)
            try:
                if turn == 2:
                    # None of them has read anything yet.
                    those += [Following(tmp_path, in_place=number % 2 > 0) for number in range(6)]
                if not those:
                    those += [Following(tmp_path, in_place=number > 0) for number in range(2)]
                wait_for_all(those, producing)
            finally:
                producing.kill()
        with tailrace.open(tmp_path) as world:
            total = world.stream_status(STREAM)[0].messages
        for one in those:
            wait_until(lambda one=one: one.problem or one.count == total, "everything to be read")  # type: ignore[misc]


@contextmanager
def followers_later(folder: Path) -> Iterator[list[Following]]:
    """A list to be filled."""
    made: list[Following] = []
    try:
        yield made
    finally:
        for one in made:
            one.close()


def test_nothing_of_the_killed_is_in_the_way_of_the_next(tmp_path: Path) -> None:
    """Everybody is killed at once. Whoever comes next finds the messages, and a cache that works."""
    producing = Producing(tmp_path)
    consuming = subprocess.Popen(
        [sys.executable, str(LOOPS), "consume", str(tmp_path), STREAM], stdout=subprocess.PIPE, text=True
    )
    assert consuming.stdout is not None
    consuming.stdout.readline()
    os.kill(consuming.pid, signal.SIGKILL)
    producing.kill()
    consuming.communicate()
    producing = Producing(tmp_path)
    try:
        with followers(tmp_path, 1) as those:
            wait_for_all(those, producing)
            wait_for_cache(those, producing)
    finally:
        producing.kill()
