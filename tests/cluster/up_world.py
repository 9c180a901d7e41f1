"""`tailrace up` in a process of its own, and a producer that leaves room for it."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

from test_layers_kills import STREAM, expected

import tailrace
from conftest import wait_until


class Up:
    def __init__(self, folder: Path, world: str, *options: str) -> None:
        self.path = folder / "world.toml"
        self.path.write_text(world)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tailrace", "up", str(self.path), "--json", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.processes: dict[str, dict[str, Any]] = {}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.processes = {one["name"]: one for one in json.loads(line).get("processes", [])}

    def kill(self, name: str) -> None:
        restarts, pid = self.processes[name]["restarts"], self.processes[name]["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: self.processes[name]["restarts"] > restarts and self.processes[name]["state"] == "running",
            f"{name} to be started again",
        )

    def close(self) -> None:
        self.process.terminate()
        assert self.process.wait(60) == 0
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Trickle:
    """A producer that leaves room for others: what is tested is a restart, not the machine."""

    def __init__(self, folder: Path) -> None:
        self._world = tailrace.open(folder)
        self._producer = self._world.producer(STREAM, buffer_s=0.0)
        self.durable = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            for number in range(self.durable, self.durable + 10):
                self._producer.send(expected(number))
            self._producer.flush()
            self.durable += 10

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()
        self._world.close()
