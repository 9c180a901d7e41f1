"""`tailrace topology keep` as processes: one keeps the trees, it is killed, and the other goes on."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import wait_until
from tailrace.coordination import SqliteCoordination, put
from tailrace.copytree import load, report
from tailrace.node.world_file import read_world_file, write_world_file

SHOP = Path(__file__).parents[2] / "examples" / "worlds" / "shop.toml"
COMMAND = [sys.executable, "-m", "tailrace", "topology"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def keeping(world: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*COMMAND, "keep", str(world), "--name", name, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_keeper_is_killed_and_another_goes_around_the_next_outage(tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text(write_world_file(read_world_file(SHOP)))
    subprocess.run([*COMMAND, "apply", str(world)], check=True, env=ENVIRONMENT, capture_output=True)
    with SqliteCoordination(tmp_path / "coordination.db") as store, keeping(world, "first") as first:
        assert first.stdout is not None
        told = json.loads(first.stdout.readline())
        assert (told["stream"], told["why"]) == ("prices", "the world's configuration changed")
        with keeping(world, "second") as second:
            assert second.stderr is not None
            assert second.stdout is not None
            assert second.stderr.readline() == "second keeps the copy trees of shop\n"
            first.send_signal(signal.SIGKILL)

            def second_leads() -> bool:
                leader = load(store).router
                return leader is not None and leader.value == b"second"

            wait_until(second_leads, "the second one to take over")
            put(store, "world/map", b"{")  # damage does not end it either …
            wait_until(lambda: "it waits: world/map" in second.stderr.readline(), "its complaint")  # type: ignore[union-attr]
            # … and the right map ends the damage.
            subprocess.run([*COMMAND, "apply", str(world)], check=True, env=ENVIRONMENT, capture_output=True)
            assert load(store).trees["prices"].downstream("japan")
            report(store, "japan", late=frozenset({"prices"}))
            wait_until(lambda: not load(store).trees["prices"].downstream("japan"), "a way around")
            second.send_signal(signal.SIGTERM)
            assert second.wait(60) == 0
