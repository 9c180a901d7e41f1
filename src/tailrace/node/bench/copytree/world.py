"""A world for the benchmark: a folder, its processes, and what its followers have seen."""

import bisect
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from ....errors import PeerFailed
from ...deployed import open_store, publish
from ...world_file import read_world_file

STREAM = "bench"
_START_S = 60.0


class Process:
    """A child that says a line when it is ready."""

    def __init__(self, *arguments: str, module: str = "tailrace") -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments], stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdout is not None
        self.first = self._process.stdout.readline().strip()
        if not self.first:
            raise PeerFailed(f"{module} {' '.join(arguments)} ended before it was ready")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lines(self) -> "Sequence[str] | object":
        assert self._process.stdout is not None
        return self._process.stdout

    def kill(self, *, wait: bool = True) -> None:
        self._process.kill()
        if wait:
            self._process.wait()

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Follower(Process):
    """When each position was there, in one place."""

    def __init__(self, *arguments: str, module: str = "tailrace.node.bench.copytree.follow") -> None:
        super().__init__(*arguments, module=module)
        self.ends: list[int] = []
        self.times_s: list[float] = []
        self.problem = ""
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        for line in self.lines:  # type: ignore[attr-defined]
            end, _, when = line.partition(" ")
            if end == "problem":
                self.problem = when
                return
            self.times_s.append(float(when))
            self.ends.append(int(end))

    def position(self) -> int:
        return self.ends[-1] if self.ends else 0

    def when(self, position: int) -> float:
        """When this position was there."""
        return self.times_s[bisect.bisect_left(self.ends, position)]


class BenchWorld:
    def __init__(self, folder: str, clusters: Sequence[str], links: Sequence[tuple[str, str]], settings: str) -> None:
        self.folder, self.path = folder, os.path.join(folder, "world.toml")
        self._processes: list[Process] = []
        lines = ["[tariffs.world]", "price_per_gb = 1.0", ""]
        for cluster in clusters:
            lines += [f"[clusters.{cluster}]", "sizes = { cache = 0 }"]
        for one, other in links:
            lines += ["", "[[links]]", f'between = ["{one}", "{other}"]', "price_per_gb = 0.01"]
        lines += ["", f"[streams.{STREAM}]", f'source = "{clusters[0]}"', f"[streams.{STREAM}.settings]", settings]
        with open(self.path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
        read = read_world_file(self.path)
        with open_store(self.path, read) as store:
            publish(self.path, read, store)

    def cluster(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def node(self, cluster: str, roles: str, number: int = 0, *, delay_s: float = 0.0) -> Process:
        """`delay_s`: others reach it through a relay that delays by so much, each way."""
        command = ["node", "--roles", roles, "--world-file", self.path, "--cluster", cluster, "--number", str(number)]
        if delay_s:
            port = _free_port()
            relay = self.keep(Process(str(port), str(delay_s), module="tailrace.node.bench.copytree.relay"))
            command += ["--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{relay.first}"]
        return self.keep(Process(*command))

    def follower(self, cluster: str) -> Follower:
        follower = Follower(self.cluster(cluster), STREAM)
        self._processes.append(follower)
        return follower

    def keep(self, process: Process) -> Process:
        self._processes.append(process)
        return process

    def drop(self, process: Process) -> None:
        """It was killed: another takes its place."""
        self._processes.remove(process)
        process.close()

    def close(self) -> None:
        for process in reversed(self._processes):
            process.close()


def wait_for(holds: Callable[[], bool], what: str, deadline_s: float = _START_S) -> float:
    """When it held."""
    end_s = time.monotonic() + deadline_s
    while not holds():
        if time.monotonic() > end_s:
            raise PeerFailed(f"waited {deadline_s:g} s in vain for {what}")
        time.sleep(0.005)
    return time.monotonic()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
