"""Where the processes of a world's clusters are to be found: in the world's store.

doors/CLUSTER/ROLE/NAME    an address, for as long as the process says that it is alive
"""

import threading
from collections.abc import Callable
from contextlib import suppress

from ..coordination import Coordination, Lease, Put
from ..errors import TailraceError

LEASE_S = 3.0
_PREFIX = "doors/"
_NOTHING = "\x7f"  # no key begins so
_LOOK_S = 0.2


class ClusterRegistry:
    def __init__(self, store: Coordination) -> None:
        self._store = store

    def announce(self, cluster: str, role: str, name: str, address: str) -> "Announcement":
        return Announcement(self._store, f"{_PREFIX}{cluster}/{role}/{name}", address)

    def doors(self, cluster: str, role: str) -> dict[str, str]:
        """Addresses by name."""
        prefix = f"{_PREFIX}{cluster}/{role}/"
        return {entry.key[len(prefix) :]: entry.value.decode() for entry in self._store.range(prefix).entries}

    def all_doors(self) -> dict[str, dict[str, list[str]]]:
        """Addresses by cluster and role."""
        found: dict[str, dict[str, list[str]]] = {}
        for entry in self._store.range(_PREFIX).entries:
            match entry.key.split("/"):
                case [_, cluster, role, _]:
                    found.setdefault(cluster, {}).setdefault(role, []).append(entry.value.decode())
        return found

    def follow(self, changed: Callable[[], None]) -> "Following":
        """Call whenever something in the store changes."""
        return Following(self._store, changed)


class Announcement:
    """Kept alive by a thread of its own; made again if it was lost."""

    def __init__(self, store: Coordination, key: str, address: str) -> None:
        self._store, self._key, self._address = store, key, address
        self._closed = threading.Event()
        self._lease = self._enter()
        self._thread = threading.Thread(target=self._run, name=f"tailrace {key}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        with suppress(TailraceError):
            self._lease.revoke()

    def _enter(self) -> Lease:
        lease = self._store.lease(LEASE_S)
        self._store.transact((), [Put(self._key, self._address.encode(), lease.id)])
        return lease

    def _run(self) -> None:
        while not self._closed.wait(LEASE_S / 4):
            try:
                self._lease.keep_alive()
            except TailraceError:
                with suppress(TailraceError):  # the store is away: next time
                    self._lease = self._enter()


class Following:
    def __init__(self, store: Coordination, changed: Callable[[], None]) -> None:
        self._store, self._changed = store, changed
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace registry", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        seen = -1
        while not self._closed.is_set():
            with suppress(TailraceError):
                # The revision alone, which costs next to nothing: what has changed, whoever is told looks up.
                now = self._store.range(_NOTHING).revision
                if now != seen:
                    seen = now
                    self._changed()
            self._closed.wait(_LOOK_S)
