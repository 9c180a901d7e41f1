"""Messages that consumers of a host read where its producer has them in memory: both ends of it.

A producer packs messages into memory that it shares with the consumers of its host (sheets), its disk is written from
there, and when they are durable it says so: nothing is copied, for nobody. Memory is a shortcut here as elsewhere:
whoever does not find its messages there asks the cache, and then the files.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b

from ..env import Clock
from ..files.lengths import hint_slot
from ..native import Packed
from ..native.hints import Hints
from ..native.sheets import SHEETS_MAX, Notice, SheetReader, Sheets, reap
from .shadow import Appended

SHEET_BYTES = 16 << 20
_ENTRIES_AT = 12 << 20  # three quarters are for data: enough for messages of 72 bytes on
SHARDS_MAX = (
    64  # of one producer or consumer: each costs it files and memory, and the more there are, the less each has
)
_AGAIN_S = 1.0  # before sheets that were not there are looked for again


@dataclass(frozen=True, slots=True)
class SheetPaths:
    memory: str
    pins: str

    @classmethod
    def of(cls, folder: str, incarnation: str, shard: int) -> "SheetPaths":
        name = blake2b(f"{incarnation}/{shard}".encode(), digest_size=16).hexdigest()
        return cls(os.path.join(folder, f"{name}.memory"), os.path.join(folder, f"{name}.pins"))


def begin_sheets(folder: str, incarnation: str, shards: Sequence[int], bytes_max: int) -> dict[int, Sheets]:
    """Of the shards of which we are the one producer: for those that can have any. What dead producers of this folder
    left goes."""
    sheets: dict[int, Sheets] = {}
    count = min(bytes_max // SHEET_BYTES, SHEETS_MAX)
    with suppress(OSError):
        os.makedirs(folder, mode=0o700, exist_ok=True)
        for name in os.listdir(folder):
            stem, kind = os.path.splitext(name)
            if kind == ".memory":
                reap(os.path.join(folder, name), os.path.join(folder, f"{stem}.pins"))
    for shard in shards:
        paths = SheetPaths.of(folder, incarnation, shard)
        # An older producer that lives is shut out of the files, and nothing more comes in its sheets.
        reap(paths.memory, paths.pins, living=True)
        if count >= 2 and len(shards) <= SHARDS_MAX:
            with suppress(OSError):
                sheets[shard] = Sheets(paths.memory, paths.pins, count, SHEET_BYTES, _ENTRIES_AT)
    return sheets


class Showing:
    """Says what may be read in the sheets of one producer and wakes those who wait for it, at the moment when it is
    durable; and passes everything on."""

    def __init__(
        self, sheets: Mapping[int, Sheets], hints: Hints, incarnation: str, then: Callable[[Appended], object]
    ) -> None:
        self._sheets, self._hints, self._slot, self._then = sheets, hints, hint_slot(incarnation), then

    def notice(self, shard: int, packed: Packed, created_us: int, first: int) -> Notice | None:
        """Of what is about to be flushed as entries `first` … of a segment. None: it lies in no sheet."""
        sheets, sheet = self._sheets.get(shard), getattr(packed, "sheet", None)  # a run of a transaction has none
        if sheets is None or sheet is None:
            return None
        where = packed.start, packed.data_at, packed.entry_at, packed.count
        return sheets.notice(sheet, created_us, first, *where, self._hints, self._slot)

    def appended(self, one: Appended) -> None:
        if one.notice is not None and one.notice.give():  # nearly always it was given by whoever synced the files
            one = replace(one, shown=True, woken=one.notice.woken)
        elif one.notice is None and (sheets := self._sheets.get(one.shard)) is not None:
            sheets.missed()
        self._then(one)


class Nearby:
    """The reading end, of one shard. Opens sheets when they come, and others when those are over."""

    def __init__(self, paths: SheetPaths, clock: Clock, batch_bytes: int) -> None:
        self._paths, self._clock, self.batch_bytes = paths, clock, batch_bytes
        self.reader: SheetReader | None = None  # to look with, as long as it finds something
        self._next_s = 0.0
        self._read_before = 0

    @property
    def bytes_read(self) -> int:
        return self._read_before + (0 if self.reader is None else self.reader.bytes_read)

    @property
    def at_end(self) -> bool:
        """Whether the last look was certain that nothing was flushed but what it gave."""
        return self.reader is not None and self.reader.at_end

    def reopened(self) -> bool:
        """After a look that found nothing: whether another one may, at other sheets."""
        if self.reader is not None and self.reader.has_ended:
            self.close()
        if self.reader is not None or self._clock.monotonic_s() < self._next_s:
            return False
        self._next_s = self._clock.monotonic_s() + _AGAIN_S
        with suppress(OSError):
            self.reader = SheetReader(self._paths.memory, self._paths.pins)
        return self.reader is not None

    def close(self) -> None:
        """Batches that lie in its memory keep that."""
        self._read_before, self.reader = self.bytes_read, None
