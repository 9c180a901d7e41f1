"""A world of three clusters as processes of its own: whatever is killed, every cluster gets every byte, in order."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_layers_kills import STREAM, Following, Producing
from up_world import Up

import tailrace
from conftest import wait_until

WORLD = """
[tariffs.world]
price_per_gb = 0.08

[clusters.a]
sizes = { cache = 0 }
[clusters.b]
sizes = { cache = 0 }
[clusters.c]
sizes = { cache = 0 }

[[links]]
between = ["a", "b"]
price_per_gb = 0.01
[[links]]
between = ["b", "c"]
price_per_gb = 0.01

[streams.s]
source = "a"
[streams.s.settings]
file_bytes = 300000
"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path, WORLD, "--together")
    try:
        wait_until(lambda: len(made.processes) == 3, "the processes")
        yield made
    finally:
        made.close()


def test_every_cluster_gets_every_byte_whatever_is_killed(tmp_path: Path, up: Up) -> None:
    producing = Producing(tmp_path / "a")
    following: list[Following] = []
    try:
        for name in ("b", "c"):
            wait_until(lambda name=name: (tmp_path / name / "streams" / STREAM / "00000").exists(), f"{name}")  # type: ignore[misc]
            following.append(Following(tmp_path / name))

        def all_have(goal: int) -> bool:
            assert not [one.problem for one in following if one.problem]
            return all(one.count >= goal for one in following)

        for name in ("b-node-0", "c-node-0", "a-node-0"):
            goal = producing.durable + 500
            wait_until(lambda goal=goal: all_have(goal), "all clusters to be at the head")  # type: ignore[misc]
            up.kill(name)
        producing.kill()
        producing = Producing(tmp_path / "a")  # goes on in a new file
        goal = producing.durable + 500
        wait_until(lambda: all_have(goal), "all clusters to be at the head again")
    finally:
        producing.kill()
        with tailrace.open(tmp_path / "a") as world:
            end = world.stream_status(STREAM)[0]
        for one in following:
            wait_until(lambda one=one: one.problem or one.count >= end.messages, "the last messages")  # type: ignore[misc]
            one.close()
    assert [one.count for one in following] == [end.messages] * 2
    for name in ("b", "c"):  # the files' copy may come after the cache's, which consumers read
        with tailrace.open(tmp_path / name) as world:
            wait_until(lambda world=world: world.stream_status(STREAM)[0] == end, f"the files of {name}")  # type: ignore[misc]
