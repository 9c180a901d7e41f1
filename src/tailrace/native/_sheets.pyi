from typing import TypeVar

from typing_extensions import Buffer

from ._core import Block, Records
from ._hints import Hints, Waiter
from ._vigil import Vigil

_B = TypeVar("_B", bound=Records)

SHEETS_MAX: int
PLACES: int

def reap(memory: str, pins: str, *, living: bool = False) -> bool: ...

class Sheet:
    def blocks(self) -> tuple[Block, Block]: ...
    def extend(self, data: Block, entries: Block, length: int) -> bool: ...
    def rest(self, data: Block, entries: Block) -> tuple[Block, Block] | None: ...

class Sheets:
    def __init__(self, memory: str, pins: str, sheets: int, sheet_bytes: int, entries_at: int) -> None: ...
    def begin(self, skip: int, length: int) -> Sheet | None: ...
    def notice(
        self,
        sheet: Sheet,
        created_us: int,
        first: int,
        start: int,
        data_at: int,
        entry_at: int,
        count: int,
        hints: Hints,
        slot: int,
    ) -> Notice: ...
    def missed(self) -> None: ...
    def close(self) -> None: ...

class Notice:
    @property
    def capsule(self) -> object: ...
    @property
    def woken(self) -> int: ...
    def give(self) -> bool: ...

class Held(Buffer):
    def __len__(self) -> int: ...

class SheetReader:
    @property
    def created_us(self) -> int: ...
    @property
    def at_end(self) -> bool: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def has_ended(self) -> bool: ...
    @property
    def held_sheets(self) -> int: ...
    def __init__(self, memory: str, pins: str) -> None: ...
    def read(
        self, kind: type[_B], stream: str, shard: int, created_us: int, entry: int, position: int, bytes_max: int
    ) -> _B | None: ...

class SheetVigil(Vigil[_B]):
    def __init__(
        self,
        reader: SheetReader,
        waiter: Waiter,
        batch: type[_B],
        stream: str,
        shard: int,
        created_us: int,
        entry: int,
        position: int,
        bytes_max: int,
        patience_s: float,
        *,
        drained: bool,
        streams: bool,
    ) -> None: ...
