"""Processes that share one coordination file: they race, watch each other, and are killed in the middle.

Run as a script, this file is one of those processes: `python test_coordination_processes.py ROLE PATH ARGUMENTS`.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw
import pytest

from tailrace.coordination import Put, SqliteCoordination, compare_and_swap, put, put_if_absent

DEADLINE_S = 60.0


# --- what the other processes do


def increment(path: str, times: str) -> None:
    with SqliteCoordination(path) as store:
        for _ in range(int(times)):
            seen = store.get("counter")
            while True:
                value = b"%d" % (int(seen.value) + 1 if seen else 1)
                outcome = compare_and_swap(store, "counter", seen, value)
                if outcome.succeeded:
                    break
                seen = outcome.conflicts["counter"]


def write_pairs(path: str, name: str) -> None:
    """Two keys a transaction, forever; a line on stdout for each that was acknowledged."""
    with SqliteCoordination(path, history_max=50) as store:
        number = 0
        while True:
            store.transact((), [Put(f"{name}/left/{number:06}", b"x" * 300), Put(f"{name}/right/{number:06}", b"")])
            print(number, flush=True)
            number += 1


def own(path: str, ttl_s: str) -> None:
    """Take the ownership under a lease and keep it alive until killed; tell when it has outlived its time to live."""
    with SqliteCoordination(path) as store:
        old_at_s = time.monotonic() + float(ttl_s)
        lease = store.lease(float(ttl_s))
        assert put_if_absent(store, "owner", b"%d" % os.getpid(), lease=lease.id).succeeded
        print("owned", flush=True)
        while time.monotonic() < old_at_s:
            lease.keep_alive()
        print("outlived", flush=True)
        while True:
            lease.keep_alive()


def write_marked(path: str, name: str, times: str) -> None:
    with SqliteCoordination(path) as store:
        for number in range(int(times)):
            put(store, f"events/{name}", b"%d" % number)


# --- helpers


@contextmanager
def started(role: Callable[..., None], path: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, __file__, role.__name__, str(path), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, f"process {process.pid} said nothing more and ended with {process.wait()}"
    return line


def killed(process: subprocess.Popen[str]) -> list[str]:
    """Kill it with no chance to tidy up; the whole lines it had written by then and nobody had read."""
    process.send_signal(signal.SIGKILL)
    assert process.stdout is not None
    return [line.strip() for line in process.stdout if line.endswith("\n")]


def integrity(path: Path) -> str:
    connection = apsw.Connection(str(path))
    try:
        return str(connection.pragma("integrity_check"))
    finally:
        connection.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "coordination.db"


# --- the tests


def test_processes_that_open_a_new_file_at_once_count_exactly(path: Path) -> None:
    with (
        started(increment, path, 100) as one,
        started(increment, path, 100) as two,
        started(increment, path, 100) as three,
        started(increment, path, 100) as four,
    ):
        for process in (one, two, three, four):
            assert process.wait(DEADLINE_S) == 0
    with SqliteCoordination(path) as store:
        counter = store.get("counter")
        assert counter is not None
        assert (counter.value, counter.revision) == (b"400", 400)
    assert integrity(path) == "ok"


def test_what_was_acknowledged_survives_kill_9_and_nothing_is_half_done(path: Path) -> None:
    chance = random.Random(7)
    acknowledged: dict[str, int] = {}
    for life in range(10):
        with started(write_pairs, path, f"a{life}") as one, started(write_pairs, path, f"b{life}") as two:
            for _ in range(chance.randrange(1, 50)):
                last = [line_of(one), line_of(two)]
            for name, process in zip((f"a{life}", f"b{life}"), (one, two), strict=True):
                acknowledged[name] = int([last.pop(0), *killed(process)][-1])
    with SqliteCoordination(path) as store:
        for name, newest in acknowledged.items():
            left = [entry.key.rpartition("/")[2] for entry in store.range(f"{name}/left/").entries]
            right = [entry.key.rpartition("/")[2] for entry in store.range(f"{name}/right/").entries]
            assert left == right == [f"{number:06}" for number in range(len(left))]
            assert newest + 1 <= len(left) <= newest + 2  # at most one more, whose line never came out
        revision = store.range("").revision
        assert revision == len(store.range("").entries) // 2
        assert put(store, "still", b"going") == revision + 1
    assert integrity(path) == "ok"


def test_a_watch_sees_the_events_of_all_processes_once_and_in_order(path: Path) -> None:
    times = 100
    with SqliteCoordination(path) as store, store.watch("events/") as watch:
        with started(write_marked, path, "one", times) as one, started(write_marked, path, "two", times) as two:
            seen: dict[str, list[int]] = {"events/one": [], "events/two": []}
            revisions: list[int] = []
            deadline_s = time.monotonic() + DEADLINE_S
            while len(revisions) < 2 * times and time.monotonic() < deadline_s:
                for event in watch.poll(1.0):
                    assert event.entry is not None
                    seen[event.key].append(int(event.entry.value))
                    revisions.append(event.revision)
            assert one.wait(DEADLINE_S) == two.wait(DEADLINE_S) == 0
        assert seen == {"events/one": list(range(times)), "events/two": list(range(times))}
        assert revisions == list(range(1, 2 * times + 1))
        assert watch.poll(0) == []


def test_the_lease_of_a_process_lasts_until_it_is_killed(path: Path) -> None:
    with SqliteCoordination(path) as store, started(own, path, 1.5) as owner:
        assert line_of(owner) == "owned"
        with store.watch("owner") as watch:
            assert line_of(owner) == "outlived"
            lost = put_if_absent(store, "owner", b"me").conflicts["owner"]
            assert lost is not None
            assert lost.value == b"%d" % owner.pid
            killed(owner)
            (event,) = watch.poll(DEADLINE_S)
            assert (event.key, event.entry) == ("owner", None)
        assert put_if_absent(store, "owner", b"me").succeeded


if __name__ == "__main__":
    roles = {role.__name__: role for role in (increment, write_pairs, own, write_marked)}
    roles[sys.argv[1]](*sys.argv[2:])
