"""Compare one backend with its cohort, and take from it what is missing. What to take is decided in repair.py.

Why this is safe, whatever fails: docs/decisions/quorum.md.
"""

import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ..config import CacheConfig
from ..errors import TailraceError, Unreachable
from ..native.cell import PARTITIONS, Cell
from ..wire import ListPart, Shared
from .peer import Peer
from .repair import Told, orders
from .versions import NOTHING, Version

_KNOWN = struct.Struct("<16sQII")
_FETCH_KEYS = 4096
_ALL = (1 << PARTITIONS) - 1


@dataclass(frozen=True, slots=True)
class _Group:
    """Keys with one home: who else has them."""

    home: int
    others: tuple[int, ...]


class Healed(Protocol):
    """What a healer has to know of its backend. `fenced`: how often others have told it of a later start, which they
    do under the lock `fencing`."""

    @property
    def index(self) -> int: ...

    @property
    def start(self) -> Version: ...

    @property
    def fenced(self) -> int: ...

    @property
    def fencing(self) -> threading.Lock: ...


class Healer:
    """Belongs to one of its backend's threads; `whole` and the counts may be read by any."""

    def __init__(self, backend: Healed, cell: Cell, peer: Callable[[int], Peer], config: CacheConfig) -> None:
        self._backend, self._cell, self._peer, self._config = backend, cell, peer, config
        self._groups = [
            _Group(home, tuple(number for number in _replicas(home, config) if number != backend.index))
            for home in ((backend.index - back) % config.backends for back in range(config.copies))
        ]
        self.whole = False
        self._counts = {"repairs": 0, "repaired_keys": 0, "repair_erases": 0, "repairs_waiting": 0}

    def heal(self) -> bool:
        """Compare all that is shared. False: someone whose word is needed could not be asked."""
        complete = True
        for group in self._groups:
            try:
                self._compare(group)
            except (TailraceError, ValueError):  # ValueError: one of this process was shut while it answered
                complete = False
                self._counts["repairs_waiting"] += 1
        self.whole = self.whole or complete
        return complete

    def _compare(self, group: _Group) -> None:
        peers = [self._peer(number) for number in group.others]
        dirty = self._dirty(group.home, peers)
        if not dirty:
            return
        fenced = self._backend.fenced
        shared = Shared(home=group.home, backends=self._config.backends, partitions=dirty, start=self._backend.start)
        words = [_word(peer.list_hashes(shared)) for peer in peers]
        todo = orders(self._own(shared), tuple(told for told, _ in words))
        for peer, keys, (_, instance) in zip(peers, todo.fetch, words, strict=True):
            self._take(peer, sorted(keys), instance, fenced)
        for key, version in todo.erase.items():
            self._cell.erase_known(key, version)
            self._counts["repair_erases"] += 1
        self._counts["repairs"] += 1

    def _own(self, shared: Shared) -> Told:
        """Its start is for others: what it lost when it started is exactly what it wants back."""
        stored = _known(self._cell.known(shared.home, shared.backends, shared.partitions))
        erased = {key: Version(*version) for key, version in self._cell.tombstones()}
        return Told(stored, erased, Version(*self._cell.summary_version))

    def _dirty(self, home: int, peers: list[Peer]) -> int:
        """A bit for each partition in which not everybody has the same keys at the same versions."""
        shared = Shared(home=home, backends=self._config.backends, partitions=_ALL)
        digests = [self._cell.digest(home, self._config.backends), *(peer.digest(shared).digests for peer in peers)]
        return sum(
            1 << part for part in range(PARTITIONS) if len({digest[8 * part : 8 * part + 8] for digest in digests}) > 1
        )

    def _take(self, peer: Peer, keys: list[bytes], instance: int, fenced: int) -> None:
        for at in range(0, len(keys), _FETCH_KEYS):
            for part in peer.fetch(b"".join(keys[at : at + _FETCH_KEYS])):
                with self._backend.fencing:
                    if self._backend.fenced != fenced or part.instance != instance:
                        raise Unreachable("another backend started meanwhile, so that the lists do not count any more")
                    self._counts["repaired_keys"] += self._cell.repair(part.frame).count(0)

    def stats(self) -> dict[str, int]:
        return dict(self._counts)


def _replicas(home: int, config: CacheConfig) -> Iterator[int]:
    return ((home + copy) % config.backends for copy in range(config.copies))


def _known(packed: bytes) -> dict[bytes, Version]:
    return {key: Version(*version) for key, *version in _KNOWN.iter_unpack(packed)}


def _word(parts: Iterable[ListPart]) -> tuple[Told, int]:
    """What was told, and by which instance."""
    stored: dict[bytes, Version] = {}
    erased: dict[bytes, Version] = {}
    summary, instance = NOTHING, 0
    for part in parts:
        stored |= _known(part.records)
        erased |= _known(part.tombstones)
        summary, instance = max(summary, Version(*part.summary)), part.instance
    return Told(stored, erased, summary), instance
