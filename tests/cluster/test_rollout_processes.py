"""A rolling restart of a real world: every process becomes another one, in the right order, and consumers notice
nothing."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_layers_kills import STREAM, Following
from up_world import Trickle, Up

from conftest import wait_until
from etcd_cluster import EtcdCluster, require_etcd

WORLD = """
[tariffs.world]
price_per_gb = 0.01

[clusters.a]
sizes = { cache = 3, reader = 1, writer = 0, scheduler = 1 }
[clusters.b]
sizes = { cache = 0, reader = 0, writer = 1, scheduler = 0 }

[streams.s]
source = "a"
[streams.s.settings]
file_bytes = 300000
"""


def rollout(folder: Path, *options: str) -> tuple[int, list[dict[str, Any]], str]:
    done = subprocess.run(
        [sys.executable, "-m", "tailrace", "rollout", str(folder / "world.toml"), "--json", *options],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_every_process_is_restarted_and_consumers_notice_nothing(tmp_path: Path) -> None:
    with Up(tmp_path, WORLD) as up:
        wait_until(lambda: len(up.processes) == 6, "the processes")
        producing = Trickle(tmp_path / "a")
        following: list[Following] = []
        try:
            for name in ("a", "b"):
                path = tmp_path / name / "streams" / STREAM / "00000"
                wait_until(path.exists, f"the stream in {name}")
                following.append(Following(tmp_path / name))
            before = {name: one["pid"] for name, one in up.processes.items()}
            code, told, said = rollout(tmp_path, "--deadline", "60s")
            assert code == 0, (told, said)
            assert told[-1]["done"]
            assert told[-1]["restarted"] == 6
            waves = [[f"{one['cluster']}/{one['process']}" for one in step["restarting"]] for step in told]
            assert [wave for wave in waves if wave] == [
                ["a/cache-0"],
                ["a/cache-1"],
                ["a/cache-2"],
                ["a/reader-0"],
                ["a/scheduler-0"],
                ["b/writer-0"],
            ]
            wait_until(lambda: all(one["state"] == "running" for one in up.processes.values()), "all to run")
            assert all(up.processes[name]["pid"] != pid for name, pid in before.items())
            assert {one["last_exit"] for one in up.processes.values()} == {75}
            goal = producing.durable + 100
            for one in following:
                wait_until(lambda one=one: one.problem or one.count >= goal, "the consumers to go on")  # type: ignore[misc]
        finally:
            producing.close()
            end = producing.durable
            for one in following:
                wait_until(lambda one=one: one.problem or one.count >= end, "the last messages")  # type: ignore[misc]
                one.close()
        assert [one.count for one in following] == [end, end]


SMALL = """
[clusters.a]
sizes = { cache = 0, reader = 1, writer = 0, scheduler = 1 }
[clusters.b]
sizes = { cache = 0, reader = 0, writer = 1, scheduler = 0 }

[streams.s]
source = "a"

[tariffs.world]
price_per_gb = 0.01

[coordination]
"""


@pytest.fixture
def etcd() -> Iterator[EtcdCluster]:
    require_etcd()
    made = EtcdCluster(members=1, secure=False)
    yield made
    made.stop()


def test_a_world_that_is_coordinated_by_etcd_is_rolled_too(tmp_path: Path, etcd: EtcdCluster) -> None:
    """All that a rollout knows comes from the store: who is there, what to end, who is whole again."""
    with Up(tmp_path, f"{SMALL}etcd = {list(etcd.endpoints)}\n") as up:
        wait_until(lambda: len(up.processes) == 3, "the processes")
        producing = Trickle(tmp_path / "a")
        try:
            wait_until((tmp_path / "b" / "streams" / STREAM / "00000").exists, "the stream in b")
            following = Following(tmp_path / "b")
            before = {name: one["pid"] for name, one in up.processes.items()}
            code, told, said = rollout(tmp_path, "--deadline", "60s")
            assert code == 0, (told, said)
            assert (told[-1]["done"], told[-1]["restarted"]) == (True, 3)
            waves = [[f"{one['cluster']}/{one['process']}" for one in step["restarting"]] for step in told]
            assert [wave for wave in waves if wave] == [["a/reader-0"], ["a/scheduler-0"], ["b/writer-0"]]
            wait_until(lambda: all(one["state"] == "running" for one in up.processes.values()), "all to run")
            assert all(up.processes[name]["pid"] != pid for name, pid in before.items())
            goal = producing.durable + 100
            wait_until(lambda: following.problem or following.count >= goal, "the consumer to go on")
            following.close()
        finally:
            producing.close()
    assert not (tmp_path / "coordination.db").exists()


def test_a_rollout_of_a_world_that_does_not_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "world.toml").write_text(WORLD)
    code, told, said = rollout(tmp_path)
    assert code == 2
    assert "start the world first" in said
    assert told[0]["error"]["took_effect"] is False
