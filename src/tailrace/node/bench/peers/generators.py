"""The peers' own load generators, in C: redis-benchmark, and memaslap of libmemcached (Debian calls it memcaslap).

They throw the values away, so they say what a client could do that delivers nothing. One connection, one batch at a
time, as with every other client here.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

from .server import PeerFailed

_SECONDS = 1
_REDIS_CALLS = 10_000


class Generator:
    """`run` gives operations a second."""

    def __init__(self, name: str, run: Callable[[], float]) -> None:
        self.name, self.run = name, run


def redis_benchmark(unix_path: str, keys: int, value_bytes: int, batch: int) -> Iterator[Generator]:
    """It sets its keys itself, at random; after five rounds hardly one is missing."""
    program = shutil.which("redis-benchmark")
    if program is None:
        return
    common = [program, "-s", unix_path, "-c", "1", "-P", str(batch), "-r", str(keys), "-d", str(value_bytes), "--csv"]

    def run() -> float:
        _output([*common, "-t", "set", "-n", str(5 * keys)])
        return _found(r'"GET","([0-9.]+)"', _output([*common, "-t", "get", "-n", str(_REDIS_CALLS * batch)]))

    yield Generator(f"redis (unix): redis-benchmark -c 1 -P {batch}", run)


def memaslap(folder: str, port: int, keys: int, value_bytes: int, batch: int) -> Iterator[Generator]:
    """It cannot do without sets altogether: one in a hundred."""
    program = shutil.which("memcaslap") or shutil.which("memaslap")
    if program is None:
        return
    settings = os.path.join(folder, f"memaslap-{value_bytes}.cfg")
    with open(settings, "w") as file:
        file.write(f"key\n16 16 1\nvalue\n{value_bytes} {value_bytes} 1\ncmd\n0 0.01\n1 0.99\n")
    command = [program, "-s", f"127.0.0.1:{port}", "-T", "1", "-c", "1", "-d", str(batch), "-F", settings]

    def run() -> float:
        return _found(r"TPS: ([0-9.]+)", _output([*command, "-w", f"{max(1, keys // 1000)}k", "-t", f"{_SECONDS}s"]))

    yield Generator(f"memcached (tcp, 1 thread): memaslap -c 1 -d {batch}", run)


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    except (subprocess.SubprocessError, OSError) as seen:
        raise PeerFailed(f"{' '.join(command)}: {seen}") from seen


def _found(pattern: str, output: str) -> float:
    rates = re.findall(pattern, output)
    if not rates:
        raise PeerFailed(f"a load generator's output has no {pattern}: {output[-300:]!r}")
    return float(rates[-1])
