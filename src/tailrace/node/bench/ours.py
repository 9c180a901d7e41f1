"""Our cache as the benchmark asks it: through its public client.

Every backend is a process of its own, so that a server's CPU time is really a server's, its heartbeat included.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal

from ...errors import TailraceError
from ..world import open_world
from .system import System, process_cpu_s

_LOAD_AT_ONCE = 64
_DEADLINE_S = 30.0  # a disturbed machine makes a call slow, not an error
_SPARE_BYTES = 64 << 20
Transport = Literal["memory", "engine"]


class Backends:
    """A world with one cache, made here and served by other processes until this is closed."""

    name = "bench"

    def __init__(self, folder: str, mode: str, count: int, keys: int, bytes_each: int) -> None:
        self.folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        with open_world(folder) as world:
            world.create_cache(
                self.name,
                mode=mode,
                backends=count,
                # What an operator would set who knows what is coming; nothing is evicted.
                memory_bytes=2 * bytes_each + _SPARE_BYTES,
                keys_expected=keys,
            )
        try:
            for index in range(count):
                command = [sys.executable, "-m", "tailrace.node.bench.backend", folder, self.name, str(index)]
                self._processes.append(
                    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
                )
            for process in self._processes:
                assert process.stdout is not None
                if process.stdout.readline() != b"serving\n":
                    raise TailraceError(f"a backend of the benchmark's cache in {folder} did not start")
        except BaseException:
            self.close()
            raise

    def cpu_s(self) -> float:
        return sum(process_cpu_s(process.pid) for process in self._processes)

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.communicate()  # its input ends, and so does it


class Ours(System):
    """One client of them. Backends are shared by several clients, and closed by who made them."""

    def __init__(self, backends: Backends, mode: str, transport: Transport) -> None:
        self.name = f"ours ({mode}, {transport})"
        self.through_tcp = transport == "engine"
        self._backends = backends
        self._world = open_world(backends.folder)
        self._cache = self._world.cache(
            backends.name, serving=False, create=False, transport=transport, deadline_s=_DEADLINE_S
        )

    def load(self, items: Mapping[bytes, bytes]) -> None:
        left = iter(items.items())
        while some := list(islice(left, _LOAD_AT_ONCE)):
            self._cache.set_many(some)

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return list(keys)

    def get_many(self, request: list[bytes]) -> list[bytes | None]:
        if len(request) == 1:
            return [self._cache.get(request[0])]
        return self._cache.get_many(request)

    def prepare_set(self, items: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        return list(items.items())

    def set_many(self, request: list[tuple[bytes, bytes]]) -> None:
        self._cache.set_many(request)

    def server_cpu_s(self) -> float:
        return self._backends.cpu_s()

    def stats(self) -> dict[str, int]:
        return self._cache.stats()

    def close(self) -> None:
        self._cache.close()
        self._world.close()
