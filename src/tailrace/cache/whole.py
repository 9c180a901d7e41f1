"""Compare one backend with its cohort, and take from it what is missing. What to take is decided in repair.py.

A backend that starts in place of an earlier one is not *whole* until it has heard everyone it shares keys with. Until
then its word does not count for others: what it does not have, it may have lost. If several replicas of a key lost
everything at once, what the remaining one has may be old, and is not taken: it stays a miss until it is set again.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class _Word:
    """What one peer told, and whether its word counts."""

    told: Told
    whole: bool


class Healer:
    """Belongs to its backend's keeper thread; `whole` and the counts may be read by any."""

    def __init__(
        self,
        own: Peer,
        cell: Cell,
        peer: Callable[[int], Peer],
        config: CacheConfig,
        index: int,
        *,
        started_us: int,
        whole: bool,
    ) -> None:
        self._own, self._cell, self._peer, self._config = own, cell, peer, config
        # Whatever was nominated before it started is below this.
        self._start = Version(started_us + int(config.clock_error_s * 1e6), (1 << 32) - 1, (1 << 32) - 1)
        self._groups = [
            _Group(home, tuple(number for number in _replicas(home, config) if number != index))
            for home in ((index - back) % config.backends for back in range(config.copies))
        ]
        self.whole = whole
        self._counts = {"repairs": 0, "repaired_keys": 0, "repair_erases": 0, "repairs_waiting": 0}

    def heal(self) -> bool:
        """Compare all that is shared. False: someone whose word is needed could not be asked, or is not whole."""
        complete, heard = True, []
        for group in self._groups:
            try:
                heard += self._compare(group)
            except TailraceError:
                complete = False
                self._counts["repairs_waiting"] += 1
        if complete and not self.whole:
            # It started empty, and knows nothing of what it once saw erased or dropped. Its cohort does, and the next
            # one to start empty will ask for it. After all taking, since it forbids to take what is older.
            for told in heard:
                for key, version in told.erased.items():
                    self._cell.bury(key, version)
                self._cell.raise_summary(told.summary)
            self.whole = True
        return complete

    def _compare(self, group: _Group) -> list[Told]:
        """What the others told, after what follows from it was done."""
        peers = [self._peer(number) for number in group.others]
        dirty = self._dirty(group.home, peers) if self.whole else _ALL
        if not dirty:
            return []
        shared = Shared(home=group.home, backends=self._config.backends, partitions=dirty)
        words = [_word(peer.list_hashes(shared)) for peer in peers]
        told = [word.told for word in words]
        if not all(word.whole for word in words):
            if self.whole:
                raise Unreachable("a backend of the cohort is not whole yet")
            if any(word.whole for word in words):
                told.append(Told({}, {}, self._start))
            return told
        todo = orders(_word(self._own.list_hashes(shared)).told, tuple(told))
        for peer, keys in zip(peers, todo.fetch, strict=True):
            self._take(peer, sorted(keys))
        for key, version in todo.erase.items():
            self._cell.erase_known(key, version)
            self._counts["repair_erases"] += 1
        self._counts["repairs"] += 1
        return told

    def _dirty(self, home: int, peers: list[Peer]) -> int:
        """A bit for each partition in which not everybody has the same keys at the same versions."""
        shared = Shared(home=home, backends=self._config.backends, partitions=_ALL)
        digests = [peer.digest(shared).digests for peer in (self._own, *peers)]
        return sum(
            1 << part for part in range(PARTITIONS) if len({digest[8 * part : 8 * part + 8] for digest in digests}) > 1
        )

    def _take(self, peer: Peer, keys: list[bytes]) -> None:
        for at in range(0, len(keys), _FETCH_KEYS):
            for part in peer.fetch(b"".join(keys[at : at + _FETCH_KEYS])):
                outcomes, _ = self._cell.apply(part.frame, 0, (1 << 64) - 1)
                self._counts["repaired_keys"] += outcomes.count(0)

    def stats(self) -> dict[str, int]:
        return dict(self._counts)


def _replicas(home: int, config: CacheConfig) -> Iterator[int]:
    return ((home + copy) % config.backends for copy in range(config.copies))


def _known(packed: bytes) -> dict[bytes, Version]:
    return {key: Version(*version) for key, *version in _KNOWN.iter_unpack(packed)}


def _word(parts: Iterable[ListPart]) -> _Word:
    stored: dict[bytes, Version] = {}
    erased: dict[bytes, Version] = {}
    summary, whole = NOTHING, True
    for part in parts:
        stored |= _known(part.records)
        erased |= _known(part.tombstones)
        summary, whole = max(summary, Version(*part.summary)), whole and part.whole
    return _Word(Told(stored, erased, summary), whole)
