"""Processes that serve a cache and are killed, stopped, told to end, or told to change: what the others see."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from cache_load import KEYS, Load, numbers, set_all
from cache_loops import described, is_true, process
from cache_nodes import contents, started_nodes, wait_whole

import tailrace
from conftest import wait_until
from tailrace.errors import CacheUnavailable, CacheUnconfirmed, TailraceError
from tailrace.native.client import replicas_of
from tailrace.node.cache_registry import LEASE_S
from tailrace.node.hosts import cell_folder

SMALL: dict[str, Any] = {"memory_bytes": 8 << 20, "clock_error_s": 0.1}
MODES: dict[str, dict[str, Any]] = {
    "R=1": {"mode": "R=1", "backends": 2, **SMALL},
    "R=2/immutable": {"mode": "R=2/immutable", "backends": 2, **SMALL},
    "R=3.2": {"mode": "R=3.2", "backends": 3, **SMALL},
}


# ---- without servers: whoever has it open serves it


@pytest.mark.parametrize("mode", MODES)
def test_a_killed_host_is_succeeded_by_whoever_sets_something_next(tmp_path: Path, mode: str) -> None:
    folder = os.path.dirname(cell_folder(str(tmp_path), "c", 0))
    keys = [b"key %d" % number for number in range(40)]
    with process("host", str(tmp_path), "c", **MODES[mode]) as host:
        host.hear()
        with tailrace.open(tmp_path) as world, world.cache("c") as cache:
            assert {backend.pid for backend in world.cache_standing("c").backends.values()} == {host.popen.pid}
            cache.set_many({key: described(key, 1, 0) for key in keys})
            host.kill()
            # Its memory is still there, and nobody has to be asked for it.
            assert cache.get_many(keys) == [described(key, 1, 0) for key in keys]
            assert cache.get_many(keys, relaxed=True) == [described(key, 1, 0) for key in keys]

            try:
                cache.set(b"new", described(b"new", 1, 1))
            except CacheUnconfirmed:  # the connection broke, and who knows what the dead one did; but now it is known
                cache.set(b"new", described(b"new", 1, 1))
            assert cache.get(b"new") == described(b"new", 1, 1)
            standing = world.cache_standing("c").backends
            served = [backend for backend in standing.values() if backend.pid == os.getpid()]
            assert served, "this process serves now"
            for backend in served:
                files = sorted(os.listdir(backend.folder))
                assert [name for name in files if name.startswith("index.")] == ["index.1"], "nothing of the dead one's"
            for key, value in zip(keys, cache.get_many(keys), strict=True):
                assert value in (None, described(key, 1, 0))
            cache.set_many({key: described(key, 1, 2) for key in keys if cache.get(key) is None})
            assert all(is_true(key, value or b"") for key, value in zip(keys, cache.get_many(keys), strict=True))
            with process("host", str(tmp_path), "c") as another:
                another.hear()
                another.ask("third 0")
                assert is_true(b"third", cache.get(b"third") or b"")
    assert not os.path.exists(folder), os.listdir(folder)


def test_a_dead_host_that_nobody_has_waited_for_is_succeeded_too(tmp_path: Path) -> None:
    """Its process id is still there, and so is its entry in the registry. The lock of its folder is not."""
    with process("host", str(tmp_path), "c", **MODES["R=3.2"]) as host:
        host.hear()
        with tailrace.open(tmp_path) as world, world.cache("c") as cache:
            cache.set(b"k", b"v")
            host.popen.send_signal(signal.SIGKILL)
            os.waitid(os.P_PID, host.popen.pid, os.WEXITED | os.WNOWAIT)
            with suppress(CacheUnconfirmed):
                cache.set(b"k", b"w")
            assert {backend.pid for backend in world.cache_standing("c").backends.values()} == {os.getpid()}
            cache.set(b"k", b"x")
            assert cache.get(b"k") == b"x"


def test_processes_beside_the_host_read_and_write(tmp_path: Path) -> None:
    with (
        process("host", str(tmp_path), "c", **MODES["R=3.2"]) as host,
        tailrace.open(tmp_path) as world,
    ):
        assert host.hear() == {"ways": ["memory"] * 3}
        cache = world.cache("c")
        assert set(cache.ways().values()) == {"memory"}
        assert os.getpid() not in {backend.pid for backend in world.cache_standing("c").backends.values()}
        for turn in range(3):
            told = host.ask(f"shared {turn}")
            found = cache.get_with_version(b"shared")
            assert found is not None
            assert list(found[1]) == told["version"]
            assert found[0] == described(b"shared", 0, turn)
            assert cache.set(b"shared", b"ours") > found[1]
            assert cache.get(b"shared") == b"ours"
        with process("host", str(tmp_path), "c") as third:
            assert third.hear() == {"ways": ["memory"] * 3}
            third.ask("shared 7")
            assert cache.get(b"shared") == described(b"shared", 0, 7)
        assert cache.get(b"shared") == described(b"shared", 0, 7), "who serves nothing takes nothing along"


# ---- processes of their own


@pytest.mark.parametrize("transport", ["memory", "engine"])
def test_nodes_end_and_start_and_change_one_after_the_other_under_load(tmp_path: Path, transport: str) -> None:
    """What an operator does: restart all, one at a time, and change a setting. Nobody who uses the cache notices."""
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        cache = world.cache("c", serving=False, transport=transport, deadline_s=10.0, attempts_max=255)
        with Load(cache) as load:
            load.go_on()
            three.signal(1, signal.SIGTERM)
            assert three.end(1) == 0
            load.go_on()
            three.start(1)
            wait_whole(cache, 1)
            load.go_on()
            before = world.cache_standing("c").record
            world.configure_cache("c", replace(before.config, ttl_s=3600.0))
            wait_until(lambda: cache.settings.ttl_s == 3600.0, "the client to follow")
            wait_until(lambda: set(cache.ways().values()) == {transport}, "all ways to be there again")
            load.go_on()
            three.kill(0)
            load.go_on()
        final = cache.get_many(KEYS)
        three.start(0)
        wait_whole(cache, 0)
        wait_until(
            lambda: contents(tmp_path, 0, KEYS) == contents(tmp_path, 1, KEYS) == contents(tmp_path, 2, KEYS),
            "all three to have the same",
        )
        assert [value for value, _ in contents(tmp_path, 0, KEYS)] == final


def test_a_backend_that_hangs_for_longer_than_its_lease_comes_back_by_itself(tmp_path: Path) -> None:
    """It is taken for dead, and nobody waits for it; then it goes on where it was, and learns what it missed."""
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        cache = world.cache("c", serving=False, deadline_s=5.0)
        set_all(cache, 1)
        three.pause(2)
        for number in (2, 3):
            set_all(cache, number)
            assert numbers(cache) == [number] * len(KEYS)
        cache.erase_many(KEYS[:20])
        wait_until(lambda: 2 not in world.cache_standing("c").backends, "its lease to end")
        wait_until(lambda: cache.ways()[2] in ("memory", "gone"), "the client to know")
        assert cache.get_many(KEYS) == [None] * 20 + [described(key, 0, 3) for key in KEYS[20:]]
        cache.set(KEYS[30], described(KEYS[30], 0, 4))
        three.signal(2, signal.SIGCONT)
        wait_until(lambda: 2 in world.cache_standing("c").backends, "it to be back")
        wait_until(
            lambda: contents(tmp_path, 2, KEYS) == contents(tmp_path, 1, KEYS) == contents(tmp_path, 0, KEYS),
            "it to have what the others have",
        )
        assert contents(tmp_path, 2, KEYS)[:20] == [None] * 20, "what was erased meanwhile has not come back"
        three.kill(0)
        assert cache.get(KEYS[30]) == described(KEYS[30], 0, 4)


def test_a_registry_that_nobody_can_change_costs_no_backend(tmp_path: Path) -> None:
    """As when a process is stopped while it changes something there. Leases pass their time, and nobody notices."""
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        # Patient, as wherever something sets these keys all the time: a slow machine makes replicas differ for longer.
        cache = world.cache("c", serving=False, deadline_s=10.0, attempts_max=255)
        before = world.cache_standing("c").backends
        with Load(cache) as load:
            held = apsw.Connection(str(tmp_path / "coordination.db"))
            held.execute("BEGIN IMMEDIATE")
            end_s = time.monotonic() + LEASE_S + 1.0
            while time.monotonic() < end_s:
                load.go_on()
            assert world.cache_standing("c").backends == before
            three.kill(1)  # its lease cannot end, but nobody waits for it either
            load.go_on()
            held.execute("ROLLBACK")
            held.close()
            load.go_on()
            wait_until(lambda: 1 not in world.cache_standing("c").backends, "the lease of the dead one to end")
            assert {0, 2} <= set(world.cache_standing("c").backends)
            load.go_on()


def test_a_compare_and_set_waits_for_the_home_as_long_as_it_may(tmp_path: Path) -> None:
    """Whose word is needed is not left out, however quick the others would be."""
    key = next(key for key in KEYS if replicas_of(key, 3, 3)[0] == 1)
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        cache = world.cache("c", serving=False, deadline_s=60.0)
        version = cache.set(key, b"before")
        assert cache.cas(key, b"first", version) is not None  # everybody is connected
        found = cache.get_with_version(key)
        assert found is not None
        three.pause(1)
        began_s = time.monotonic()
        with pytest.raises(CacheUnconfirmed):
            cache.cas(key, b"second", found[1], deadline_s=0.3)
        assert time.monotonic() - began_s > 0.25
        three.signal(1, signal.SIGCONT)


def test_without_a_quorum_mutations_say_so_and_reads_are_true_or_none(tmp_path: Path) -> None:
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        cache = world.cache("c", serving=False, deadline_s=1.0)
        set_all(cache, 1)
        three.kill(0)
        three.kill(1)
        known = {key: {None, described(key, 0, 1)} for key in KEYS}
        for number in range(2, 6):
            for key, call in (
                (KEYS[0], lambda number=number: cache.set(KEYS[0], described(KEYS[0], 0, number))),
                (KEYS[1], lambda: cache.erase(KEYS[1])),
                (KEYS[2], lambda number=number: cache.cas(KEYS[2], described(KEYS[2], 0, number), None)),
            ):
                with pytest.raises(TailraceError) as refused:
                    call()
                assert isinstance(refused.value, CacheUnavailable | CacheUnconfirmed)
                assert refused.value.keys == (key,)
                assert refused.value.took_effect is (None if isinstance(refused.value, CacheUnconfirmed) else False)
                known[key].add(described(key, 0, number))
            for key, value in zip(KEYS, cache.get_many(KEYS), strict=True):
                assert value in known[key]
        three.start(0, 1)
        wait_whole(cache, 0, 1, 2)
        for key, value in zip(KEYS, cache.get_many(KEYS), strict=True):
            assert value in known[key]
        set_all(cache, 9)
        assert numbers(cache) == [9] * len(KEYS)


def test_two_nodes_for_one_backend_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    """The second one finds the folder taken, and says so; the first one goes on."""
    with started_nodes(tmp_path) as three, tailrace.open(tmp_path) as world:
        cache = world.cache("c", serving=False)
        cache.set(b"k", b"v")
        command = [sys.executable, "-m", "tailrace", "node", "--cache", "c", "--backend", "1", "--world", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode != 0
        assert "nothing to serve" in done.stderr
        assert "Traceback" not in done.stderr
        assert cache.get(b"k") == b"v"
        cache.set(b"k", b"w")
        assert world.cache_standing("c").backends[1].pid == three.running[1].pid
