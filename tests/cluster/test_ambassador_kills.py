"""An ambassador in a process of its own, killed and started again: consumers of its host go on, byte by byte."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_layers_kills import Following, Producing, wait_for_all

import tailrace
from conftest import wait_until


@contextmanager
def node(folder: Path, host: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tailrace", "node", "--world", str(folder), "--json", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"TAILRACE_HOST": host})
    try:
        assert process.stdout is not None
        json.loads(process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.communicate()


def test_an_ambassador_that_is_killed_costs_time_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors = ["--roles", "cache", "--listen", "127.0.0.1:0", "--engine", "127.0.0.1:0"]
    bring = ["--roles", "ambassador", "--stream", "s", "--memory", "64MiB"]
    monkeypatch.setenv("TAILRACE_HOST", "home")
    with node(tmp_path, "home", *doors):
        producing = Producing(tmp_path)
        monkeypatch.setenv("TAILRACE_HOST", "abroad")
        following = Following(tmp_path)
        try:
            wait_for_all([following], producing)
            assert following.bytes_from("ambassador") == 0
            for _ in range(2):
                with node(tmp_path, "abroad", *bring):
                    before = following.bytes_from("ambassador")
                    wait_until(lambda before=before: following.bytes_from("ambassador") > before, "the ambassador")  # type: ignore[misc]
                    wait_for_all([following], producing)
                wait_for_all([following], producing)  # without one
        finally:
            producing.kill()
            following.close()


LAGGARD = """
import sys, tailrace
total = 0
with tailrace.open(sys.argv[1]) as world:
    sys.stdin.readline()
    for batch in world.consumer("s", start="earliest", follow=False):
        total += batch.end - batch.start
with open("/proc/self/io") as file:
    read = next(int(line.split()[1]) for line in file if line.startswith("read_bytes"))
print(total, read)
"""


def test_consumers_that_lag_together_read_the_disk_once(tmp_path: Path) -> None:
    """The kernel's pages are what they share: what one has read, the others find."""
    with tailrace.open(tmp_path) as world, world.producer("s", shards=1) as producer:
        for _ in range(20):
            producer.send_many([os.urandom(1024)] * 1024)
        producer.flush()
        size = producer.positions[0]
    for path in (tmp_path / "streams").rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    laggards: list[Any] = [
        subprocess.Popen([sys.executable, "-c", LAGGARD, str(tmp_path)], **options) for _ in range(4)
    ]
    for laggard in laggards:
        laggard.stdin.write("\n")
        laggard.stdin.flush()
    told = [[int(word) for word in laggard.communicate()[0].split()] for laggard in laggards]
    assert [total for total, _ in told] == [size] * len(laggards)
    assert sum(read for _, read in told) < 2 * size
