"""Three backends in processes of their own, killed, stopped and started again under load."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from conftest import wait_until
from tailrace.cache import Cache
from tailrace.errors import CacheRefused, CacheUnavailable, CacheUnconfirmed
from tailrace.native.client import CellClient

KEYS = [b"key-%d" % number for number in range(200)]


def value_of(key: bytes, round_: int) -> bytes:
    """Says itself what it is, in sizes that keep memory moving."""
    return b"%s %d " % (key, round_) + b"." * (round_ * 37 % 3000)


def round_in(key: bytes, value: bytes) -> int:
    name, number, _ = value.split(b" ", 2)
    assert name == key
    assert value == value_of(key, int(number))
    return int(number)


class Nodes:
    """`tailrace node` for each backend of one cache."""

    def __init__(self, world: Path) -> None:
        self.world, self.running = world, dict[int, subprocess.Popen[str]]()

    def start(self, backend: int) -> dict[str, Any]:
        command = [sys.executable, "-m", "tailrace", "node", "--cache", "c", "--backend", str(backend)]
        command += ["--listen", "127.0.0.1:0", "--engine", "127.0.0.1:0", "--world", str(self.world), "--json"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.running[backend] = process
        assert process.stdout is not None
        said: dict[str, Any] = json.loads(process.stdout.readline())
        return said

    def signal(self, backend: int, number: signal.Signals) -> None:
        os.kill(self.running[backend].pid, number)

    def kill(self, backend: int) -> None:
        process = self.running.pop(backend)
        process.kill()
        process.wait()
        process.communicate()

    def close(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.communicate()


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with tailrace.open(tmp_path) as world:
        world.create_cache("c", mode="R=3.2", backends=3, memory_bytes=32 << 20, repair_s=0.5)
        three = Nodes(tmp_path)
        try:
            for backend in range(3):
                three.start(backend)
            yield three
        finally:
            three.close()
            world.delete_cache("c")


@pytest.fixture(params=["memory", "engine", "rpc"])
def cache(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[Cache]:
    with tailrace.open(nodes.world) as world:
        yield world.cache("c", serving=False, transport=request.param, deadline_s=10.0, attempts_max=255)


def set_all(cache: Cache, round_: int) -> None:
    cache.set_many({key: value_of(key, round_) for key in KEYS})


def rounds(cache: Cache) -> list[int]:
    """Of all keys; a failed read or a wrong value ends the test."""
    return [round_in(key, value or b"") for key, value in zip(KEYS, cache.get_many(KEYS), strict=True)]


class Load:
    """Sets all keys over and over in a thread; `done` is the last round that everybody has confirmed."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.done, self.failed = cache, 0, list[BaseException]()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                set_all(self.cache, self.done + 1)
                self.done += 1
            except BaseException as failed:
                self.failed.append(failed)
                return

    def __enter__(self) -> "Load":
        set_all(self.cache, 0)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


def read_through(cache: Cache, load: Load, more_rounds: int) -> None:
    """Read until the load went on by so many rounds. What is read is never older than what was done before."""
    end = load.done + more_rounds
    while load.done < end:
        assert not load.failed, load.failed
        before = load.done
        assert min(rounds(cache)) >= before


def contents(world: Path, backend: int) -> dict[bytes, Any]:
    """What one backend has in its memory, read without the others."""
    with tailrace.open(world) as opened:
        standing = opened.cache_standing("c")
    alone = CellClient(1, 1, 1)
    alone.attach_view(0, standing.backends[backend].folder, standing.record.config_id)
    return dict(zip(KEYS, alone.get_many(KEYS, 0, versions=True), strict=True))


def is_whole(cache: Cache, backend: int) -> bool:
    return cache.backend_stats().get(backend, {}).get("whole") == 1


def test_a_killed_backend_costs_no_read_and_comes_back_whole(nodes: Nodes, cache: Cache) -> None:
    with Load(cache) as load:
        read_through(cache, load, 3)
        nodes.kill(1)
        read_through(cache, load, 3)
        nodes.start(1)
        read_through(cache, load, 3)
        wait_until(lambda: is_whole(cache, 1), "the restarted backend to be whole")
    assert not load.failed
    wait_until(
        lambda: contents(nodes.world, 0) == contents(nodes.world, 1) == contents(nodes.world, 2),
        "all three to have the same bytes at the same versions",
    )
    assert None not in contents(nodes.world, 1).values()
    # Now either of the others may fail.
    nodes.kill(0)
    assert rounds(cache) == [load.done] * len(KEYS)


def test_a_stopped_backend_costs_no_read_and_no_mutation(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.signal(2, signal.SIGSTOP)
    assert rounds(cache) == [1] * len(KEYS)
    cache.set_many({key: value_of(key, 2) for key in KEYS[:5]}, deadline_s=2.0)
    found = [round_in(key, cache.get(key) or b"") for key in KEYS[:5]]
    assert found == [2] * 5
    nodes.signal(2, signal.SIGCONT)


def test_two_killed_backends_cost_hits_but_never_truth(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.kill(0)
    set_all(cache, 2)
    nodes.kill(2)
    for key, value in zip(KEYS, cache.get_many(KEYS, deadline_s=1.0), strict=True):
        assert value is None or round_in(key, value) == 2
    with pytest.raises((CacheUnavailable, CacheUnconfirmed), match=r"could be reached|confirmed it") as refused:
        cache.set(KEYS[0], value_of(KEYS[0], 3), deadline_s=1.0)
    assert refused.value.keys == (KEYS[0],)
    assert refused.value.took_effect is (False if isinstance(refused.value, CacheRefused) else None)
    # They come back empty. What only the third had may be old, so it is a miss until it is set again.
    nodes.start(0)
    nodes.start(2)
    wait_until(lambda: is_whole(cache, 0) and is_whole(cache, 2), "both to be whole")
    for key, value in zip(KEYS, cache.get_many(KEYS), strict=True):
        assert value is None or round_in(key, value) >= 2
    set_all(cache, 4)
    assert rounds(cache) == [4] * len(KEYS)


def test_an_erased_key_does_not_come_back_with_a_backend_that_was_away(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.kill(1)
    cache.erase_many(KEYS[:50])
    nodes.start(1)
    wait_until(lambda: is_whole(cache, 1), "the restarted backend to be whole")
    nodes.kill(0)  # one that saw the erase
    assert cache.get_many(KEYS[:50]) == [None] * 50
    nodes.start(0)
    wait_until(lambda: is_whole(cache, 0), "the other to be whole")
    assert cache.get_many(KEYS[:50]) == [None] * 50
    assert None not in cache.get_many(KEYS[50:])


def test_clients_follow_another_configuration(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    with tailrace.open(nodes.world) as world:
        before = world.cache_standing("c").record
        settings = {**tailrace.config.encode(before.config), "ttl_s": 3600.0}
        world.configure_cache("c", tailrace.config.decode(tailrace.CacheConfig, settings))
    wait_until(lambda: cache.settings.ttl_s == 3600.0, "the client to have the new settings")
    wait_until(lambda: all(cache.get_many(KEYS)), "reads under the new configuration")
    set_all(cache, 2)
    assert rounds(cache) == [2] * len(KEYS)
