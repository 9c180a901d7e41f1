"""Where the processes of a world's clusters are to be found, and which tree each stream takes: in the world's store.

    copytree/doors/CLUSTER/ROLE/NAME    an address, for as long as the process says that it is alive
    copytree/trees/STREAM               {"stream": …, "source": …, "hops": [{"upstream": …, "downstream": …}, …]}

The revision of a tree's entry is its epoch: writers refuse an operation of an older one.
"""

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from ..coordination import Coordination, Delete, Lease, Put
from ..errors import ConfigError, Corrupt, TailraceError
from ..model import CopyTree, Hop

LEASE_S = 3.0
_PREFIX = "copytree/"


@dataclass(frozen=True, slots=True)
class Planted:
    """A tree, and since when it holds."""

    tree: CopyTree
    epoch: int


class ClusterRegistry:
    def __init__(self, store: Coordination) -> None:
        self._store = store

    def announce(self, cluster: str, role: str, name: str, address: str) -> "Announcement":
        return Announcement(self._store, f"{_PREFIX}doors/{cluster}/{role}/{name}", address)

    def doors(self, cluster: str, role: str) -> dict[str, str]:
        """Addresses by name."""
        prefix = f"{_PREFIX}doors/{cluster}/{role}/"
        return {entry.key[len(prefix) :]: entry.value.decode() for entry in self._store.range(prefix).entries}

    def plant(self, trees: Iterable[CopyTree]) -> None:
        """These trees and no others. One that is as it was keeps its epoch."""
        wanted = {f"{_PREFIX}trees/{tree.stream}": _encode(tree) for tree in trees}
        there = {entry.key: entry.value for entry in self._store.range(f"{_PREFIX}trees/").entries}
        changes: list[Put | Delete] = [Put(key, value) for key, value in wanted.items() if there.get(key) != value]
        changes += [Delete(key) for key in there if key not in wanted]
        if changes:
            self._store.transact((), changes)

    def trees(self) -> list[Planted]:
        found = self._store.range(f"{_PREFIX}trees/").entries
        return [Planted(_decode(entry.value, entry.key), entry.revision) for entry in found]

    def follow(self, changed: Callable[[], None]) -> "Following":
        """Call whenever a door or a tree changes."""
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
        while not self._closed.is_set():
            with suppress(TailraceError), self._store.watch(_PREFIX) as watch:
                self._changed()
                while not self._closed.is_set():
                    if watch.poll(0.25):
                        self._changed()
            self._closed.wait(0.5)


def _encode(tree: CopyTree) -> bytes:
    hops = []
    for hop in tree.hops:
        table: dict[str, object] = {"upstream": hop.upstream, "downstream": hop.downstream}
        if hop.bytes_per_s_max != float("inf"):
            table["bytes_per_s_max"] = hop.bytes_per_s_max
        if hop.joining:
            table["joining"] = True
        hops.append(table)
    return json.dumps({"stream": tree.stream, "source": tree.source, "hops": hops}).encode()


def _decode(raw: bytes, key: str) -> CopyTree:
    try:
        table = json.loads(raw)
        hops = tuple(
            Hop(
                upstream=hop["upstream"],
                downstream=hop["downstream"],
                bytes_per_s_max=float(hop.get("bytes_per_s_max", "inf")),
                joining=bool(hop.get("joining", False)),
            )
            for hop in table["hops"]
        )
        return CopyTree(stream=table["stream"], source=table["source"], hops=hops)
    except (ValueError, KeyError, TypeError, ConfigError) as wrong:
        raise Corrupt(f"{key} in the world's store is not a copy tree: {wrong}") from None
