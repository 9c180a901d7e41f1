"""Our cache as the benchmark asks it. The backend is a process of its own, so that its CPU time is a server's."""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...native.cell import CellView
from .system import System, process_cpu_s


class SharedMemory(System):
    """Gets through the backend's memory, one backend. It takes no sets: they need the cache's client."""

    name = "shared memory: CellView.get_many"
    can_set = False

    def __init__(self, capacity_bytes: int) -> None:
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._folder = tempfile.TemporaryDirectory(prefix="tailrace-bench-", dir=memory)
        command = [sys.executable, "-m", "tailrace.node.bench.backend", self._folder.name, str(capacity_bytes)]
        self._backend = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._view: CellView | None = None

    def load(self, items: Mapping[bytes, bytes]) -> None:
        assert self._backend.stdin is not None
        assert self._backend.stdout is not None
        pickle.dump(dict(items), self._backend.stdin)
        self._backend.stdin.flush()
        told = self._backend.stdout.readline()
        assert told == b"%d items\n" % len(items), told
        if self._view is None:
            self._view = CellView(self._folder.name)

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return list(keys)

    def get_many(self, request: list[bytes]) -> Any:
        assert self._view is not None
        return self._view.get_many(request, int(time.time()))

    def values(self, answer: Any) -> list[bytes | None]:
        return [None if found is None else found[0] for found in answer]

    def prepare_set(self, items: Mapping[bytes, bytes]) -> Any:
        raise NotImplementedError

    def set_many(self, request: Any) -> None:
        raise NotImplementedError

    def server_cpu_s(self) -> float:
        return process_cpu_s(self._backend.pid)

    def close(self) -> None:
        self._view = None
        self._backend.communicate()  # its input ends, and so does it
        self._folder.cleanup()
