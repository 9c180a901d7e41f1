"""`tailrace node` processes for the backends of one cache."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tailrace
from conftest import freeze, wait_until
from tailrace.cache import Cache
from tailrace.native.client import CellClient

#: Restarted backends wait for twice the clocks' error, and repairs come often.
QUICK: dict[str, Any] = {"clock_error_s": 0.1, "repair_s": 0.3}


class Nodes:
    def __init__(self, world: Path, cache: str = "c") -> None:
        self.world, self.cache = world, cache
        self.running: dict[int, subprocess.Popen[str]] = {}

    def start(self, *backends: int) -> None:
        """All at once; returns when all of them serve."""
        for backend in backends:
            command = [sys.executable, "-m", "tailrace", "node", "--cache", self.cache, "--backend", str(backend)]
            command += ["--listen", "127.0.0.1:0", "--engine", "127.0.0.1:0", "--world", str(self.world), "--json"]
            self.running[backend] = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        for backend in backends:
            output = self.running[backend].stdout
            assert output is not None
            assert json.loads(output.readline())["backend"] == backend

    def signal(self, backend: int, number: signal.Signals) -> None:
        os.kill(self.running[backend].pid, number)

    def pause(self, backend: int) -> None:
        """Until SIGCONT; returns when all its threads stand still."""
        freeze(self.running[backend].pid)

    def kill(self, backend: int) -> None:
        self.signal(backend, signal.SIGKILL)
        self.end(backend)

    def end(self, backend: int) -> int:
        """Its exit code, once it has ended."""
        process = self.running.pop(backend)
        process.communicate()
        return process.wait()

    def close(self) -> None:
        for backend in list(self.running):
            self.signal(backend, signal.SIGCONT)
            self.kill(backend)


@contextmanager
def started_nodes(world: Path, cache: str = "c", **settings: Any) -> Iterator[Nodes]:
    """A cache of three backends, each in a process of its own."""
    with tailrace.open(world) as opened:
        opened.create_cache(cache, **{"mode": "R=3.2", "backends": 3, "memory_bytes": 32 << 20} | QUICK | settings)
        made = Nodes(world, cache)
        try:
            made.start(*range(3))
            yield made
        finally:
            made.close()
            opened.delete_cache(cache)


def contents(world: Path, backend: int, keys: list[bytes], cache: str = "c") -> list[Any]:
    """What one backend has in its memory, read without the others."""
    with tailrace.open(world) as opened:
        standing = opened.cache_standing(cache)
    alone = CellClient(1, 1, 1)
    alone.attach_view(0, standing.backends[backend].folder, standing.record.config_id)
    found: list[Any] = alone.get_many(keys, 0, versions=True)
    return found


def wait_whole(cache: Cache, *backends: int) -> None:
    wait_until(
        lambda: all(cache.backend_stats().get(backend, {}).get("whole") == 1 for backend in backends),
        f"backends {backends} to be whole",
    )
