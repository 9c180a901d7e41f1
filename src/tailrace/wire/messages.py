"""What travels between a cache's backends and clients, as plain types. Nothing here knows how it travels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

#: Clock in microseconds, client, sequence; compared in this order.
Version = tuple[int, int, int]

HASH_BYTES = 16
RECORD_BYTES = 32  # a hash and a version, packed
TICKET_BYTES = 32
PARTITIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Who answered: a restarted backend has another instance, a changed one another configuration."""

    instance: int
    config_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """Where one-sided reads are served to other hosts, and a ticket that opens one connection."""

    host: str
    port: int
    ticket: bytes = field(repr=False)  # whoever holds it may read, so it stays out of logs


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachReply(Reply):
    cache: str
    backend: int  # its index among the cache's backends
    host: str  # opaque: two processes share memory iff theirs are equal
    folder: str  # of the shared memory
    engine: Engine | None
    time_us: int
    mode: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MutateReply(Reply):
    outcomes: bytes  # one for each mutation of the frame; none if the backend is not the instance that was meant
    floor: Version  # the highest that was met


@dataclass(frozen=True, slots=True)
class Answer:
    value: bytes
    version: Version
    expiry_s: int  # 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupReply(Reply):
    answers: Sequence[Answer | None]  # one for each key, None for a miss; none if the instance is another one


@dataclass(frozen=True, slots=True, kw_only=True)
class TouchReply(Reply):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """Keys that the same backends have: those at home at one of them, and of these some partitions (a bit each).

    `start`: of who asks for a list. Whoever tells it refuses mutations at or below that from then on.
    """

    home: int
    backends: int
    partitions: int
    start: Version = (0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestReply(Reply):
    digests: bytes  # PARTITIONS of 8 bytes each


@dataclass(frozen=True, slots=True, kw_only=True)
class ListPart(Reply):
    records: bytes  # hash and version of stored keys, 32 bytes each
    tombstones: bytes  # hash and version of erased keys, 32 bytes each
    summary: Version
    complete: bool  # true in the last part only


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchPart(Reply):
    frame: bytes | memoryview  # entries as the mutations that would store them


@dataclass(frozen=True, slots=True, kw_only=True)
class StatsReply(Reply):
    counters: Mapping[str, int]
