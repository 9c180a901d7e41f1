"""The processes of a world, as they tell of themselves in the world's store, and what they are asked to do.

processes/CLUSTER/INSTANCE    what it is and whether it does its work, for as long as it says that it is alive
restarts/INSTANCE             somebody asks it to end, so that whatever supervises it starts it again
rollout                       who restarts processes of this world now

Formats: docs/formats/world.md.
"""

import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..coordination import Coordination, Entry, Lease, Put
from ..errors import Corrupt
from .rollout.plan import Process
from .telling import Telling

LEASE_S = 3.0
_FORMAT = 1
_PROCESSES, _RESTARTS = "processes/", "restarts/"
_LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Found:
    """A process, and where it runs."""

    process: Process
    pid: int
    host: str


@dataclass(frozen=True, slots=True)
class State:
    """What changes while a process runs: the backends it serves, and whether it does all of its work."""

    backends: frozenset[tuple[str, int]] = field(default_factory=frozenset)
    ready: bool = True


def process_name(roles: list[str], number: int) -> str:
    """Equal for a process and the one that takes its place."""
    return f"{'+'.join(sorted(roles))}-{number}"


def processes(store: Coordination) -> list[Found]:
    return [_read(entry) for entry in store.range(_PROCESSES).entries]


def ask_to_restart(store: Coordination, instance: str, lease: Lease) -> None:
    """It stays asked for as long as the lease lives."""
    store.transact((), [Put(_RESTARTS + instance, b"", lease.id)])


class ProcessEntry:
    """This process in the registry. `state` is asked now and then; `restart` is called when somebody asks for it."""

    def __init__(
        self,
        store: Coordination,
        cluster: str,
        roles: list[str],
        number: int,
        state: Callable[[], State],
        restart: Callable[[], None],
    ) -> None:
        self._store, self._state, self._restart = store, state, restart
        self._process = Process(
            cluster=cluster,
            name=process_name(roles, number),
            instance=secrets.token_hex(8),
            roles=frozenset(roles),
            started_us=time.time_ns() // 1000,
        )
        self._told: Process | None = None
        self._telling = Telling(store, self._tell, lease_s=LEASE_S, every_s=_LOOK_S, name="tailrace process entry")

    def close(self) -> None:
        self._telling.close()

    def _tell(self, lease: int, anew: bool) -> None:
        state = self._state()
        process = replace(self._process, backends=state.backends, ready=state.ready)
        if anew or process != self._told:
            key = f"{_PROCESSES}{process.cluster}/{process.instance}"
            self._store.transact((), [Put(key, _written(process), lease)])
            self._told = process
        if self._store.get(_RESTARTS + process.instance) is not None:
            self._restart()


def _written(process: Process) -> bytes:
    told = {
        "version": _FORMAT,
        "name": process.name,
        "roles": sorted(process.roles),
        "started_us": process.started_us,
        "backends": sorted(process.backends),
        "ready": process.ready,
        "pid": os.getpid(),
        "host": socket.gethostname(),
    }
    return json.dumps(told).encode()


def _read(entry: Entry) -> Found:
    try:
        _, cluster, instance = entry.key.split("/")
        told = json.loads(entry.value)
        if told["version"] != _FORMAT:
            raise ValueError(f"it is of version {told['version']}")
        process = Process(
            cluster=cluster,
            name=str(told["name"]),
            instance=instance,
            roles=frozenset(told["roles"]),
            started_us=int(told["started_us"]),
            backends=frozenset((str(cache), int(number)) for cache, number in told["backends"]),
            ready=bool(told["ready"]),
        )
        return Found(process, int(told["pid"]), str(told["host"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise Corrupt(
            f"{entry.key} in the coordination store is not a process's entry of version {_FORMAT}: {wrong}; end that "
            "process and start it with this release"
        ) from None
