"""What readers, writers and schedulers of the copy tree tell each other. Plain types; `copy_codec` makes them bytes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from ..model.message_file import Track
from ..model.segment import Segment

Storage = Literal["durable", "cache"]
STORAGES: tuple[Storage, ...] = get_args(Storage)
State = Literal["starting", "running", "superseded", "failed"]
STATES: tuple[State, ...] = get_args(State)


@dataclass(frozen=True, slots=True, order=True)
class Operation:
    """Tail-copy of one shard into one storage type of one cluster, message file after message file."""

    stream: str
    shard: int
    storage: Storage
    target: str

    def __str__(self) -> str:
        return f"{self.stream}/{self.shard} {self.storage} to {self.target}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How an operation begins at the writer."""

    operation: Operation
    source: str  # the cluster it comes from
    origin: str  # the cluster where the stream is produced
    settings: bytes  # of the stream, as they lie in the durable layer
    epoch: int = 0  # of the copy tree: an older one does not displace a newer one
    reader: str = ""  # for logs


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of bytes of one file. raw_bytes: 0, or the content is zstd and this long without it."""

    track: Track
    offset: int
    content: bytes | memoryview
    raw_bytes: int = 0

    @property
    def size(self) -> int:
        return self.raw_bytes or len(self.content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Pieces of one segment. Without a segment it only says that the reader is alive.

    oldest_us: creation time of the oldest segment that the source still has. beat_us: when the producer was last heard
    of. The rest is for copies in the cache: how large chunks are, below what nothing comes, and up to where the data go
    that the index pieces speak of.
    """

    segment: Segment | None = None
    pieces: tuple[Piece, ...] = ()
    oldest_us: int = 0
    beat_us: int = 0
    data_chunk_bytes: int = 0
    index_chunk_bytes: int = 0
    data_start: int = 0
    index_start: int = 0
    data_needed: int = 0
    behind_bytes: int = 0  # what the source has beyond this batch

    @property
    def size(self) -> int:
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a copy goes: its newest segment, and what of it is there. taken_bytes: of all batches of this call that
    are done with; at most window_bytes more may be on their way."""

    segment: Segment | None = None
    data_length: int = 0
    index_length: int = 0
    taken_bytes: int = 0
    window_bytes: int = 0

    def length(self, track: Track) -> int:
        return self.data_length if track == "data" else self.index_length


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    operation: Operation
    writers: tuple[str, ...]  # addresses of the target, best first
    origin: str
    epoch: int = 0
    compression: str = ""
    bytes_per_s: int = 0  # 0: as fast as it can


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """All operations that a reader is to run: what is not here is to be stopped."""

    orders: tuple[Order, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    operation: Operation
    writer: str = ""
    state: State = "starting"
    copied_bytes: int = 0
    behind_bytes: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    reader: str
    running: tuple[Running, ...] = field(default=())


#: Raises Denied, or lets a call through. Called with the names in the caller's certificate (None without TLS).
Admit = Callable[[tuple[str, ...] | None], None]


class CopyService(Protocol):
    """What a writer does. Called from several threads at once; each call lives as long as its operation."""

    def copy(self, opening: Opening, batches: Iterator[Batch], stop: Callable[[], None]) -> Iterator[Standing]:
        """`batches` blocks, ends with the call, and may be read in a thread of its own; stop() makes it end."""
        ...


class WorkService(Protocol):
    """What a scheduler does for the readers of its cluster."""

    def work(self, reports: Iterator[Report]) -> Iterator[Orders]: ...
