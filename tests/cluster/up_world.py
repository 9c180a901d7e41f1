"""`tailrace up` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

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
