"""The small consistent store, as every implementation offers it: get, range, transact, lease, watch.

What always holds, whoever implements it:
- The store has one revision, 0 while it is new. A transaction that changes something raises it by one, and all its
  changes carry that number.
- A transaction happens whole or not at all, and whoever starts reading after it returned sees it.
- What a lease holds goes with the lease, by an ordinary deletion with a revision of its own. Nobody sees it before
  or without that revision, so a key that was seen gone by expiry does not come back on its own.
- A watch reports each change exactly once, in revision order, and says so when the history it needs is gone.

Values only: nothing here touches a clock, a file or a socket.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

from tailrace.errors import CoordinationError

KEY_BYTES_MAX = 1024  # of UTF-8
VALUE_BYTES_MAX = 1 << 20
OPERATIONS_MAX = 1000  # in each of a transaction's three lists
TRANSACTION_BYTES_MAX = 8 << 20  # keys and values of a transaction's operations together
LEASE_TTL_S_MAX = 86_400.0  # an owner that cannot speak up once a day is not alive


class Compacted(CoordinationError):
    """The history after this revision is gone. Read with range(), then watch from the revision it was read at."""

    def __init__(self, message: str, *, after_revision: int, compacted: int) -> None:
        super().__init__(message)
        self.after_revision = after_revision
        self.compacted = compacted  # changes up to and including this revision are forgotten


@dataclass(frozen=True, slots=True)
class Entry:
    """A key as it stands: `revision` wrote this value, `created` made the key; `lease` takes it away when it ends."""

    key: str
    value: bytes
    revision: int
    created: int
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All entries under a prefix, sorted by key, as they stood together at one revision."""

    entries: tuple[Entry, ...]
    revision: int


@dataclass(frozen=True, slots=True)
class Absent:
    key: str


@dataclass(frozen=True, slots=True)
class AtRevision:
    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class HasValue:
    key: str
    value: bytes


Requirement = Absent | AtRevision | HasValue


@dataclass(frozen=True, slots=True)
class Put:
    """Set the value. The key is bound to this lease from now on, or to none: an earlier binding ends."""

    key: str
    value: bytes
    lease: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove the key. Removing what is not there changes nothing."""

    key: str


Operation = Put | Delete


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a transaction came to. `revision` is the store's after it.

    `conflicts` names the keys of the requirements that were not met, with what was there instead (None: no such key).
    """

    succeeded: bool
    revision: int
    conflicts: Mapping[str, Entry | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One change of one key. `entry` is what it became; None says it was deleted."""

    key: str
    revision: int
    entry: Entry | None


class Lease(Protocol):
    @property
    def id(self) -> int:
        """For Put(lease=...), in this process or another."""
        ...

    @property
    def ttl_s(self) -> float: ...

    def keep_alive(self) -> None:
        """Start the time to live again. LeaseExpired when it is over: what it held is gone, ask for a new lease."""
        ...

    def revoke(self) -> None:
        """End it now and delete what it holds. Nothing happens if it has ended already."""
        ...


class Watch(Protocol):
    """One thread polls; any thread may close. A closed watch ends its iteration and refuses to be polled."""

    @property
    def revision(self) -> int:
        """All changes up to this revision were handed out: the `after_revision` to resume from."""
        ...

    def poll(self, timeout_s: float) -> list[Event]:
        """The next changes, at once if there are any; an empty list when the time is over.

        The changes of one revision are never split over two polls. Raises Compacted if this watch fell too far behind.
        """
        ...

    def close(self) -> None: ...

    def __iter__(self) -> Iterator[Event]:
        """Wait for changes and hand them out one by one, until the watch is closed."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Coordination(Protocol):
    """Safe to share between threads. Whatever cannot be done raises CoordinationError; after close() it is Closed."""

    def get(self, key: str) -> Entry | None: ...

    def range(self, prefix: str) -> Snapshot:
        """Every entry whose key starts with the prefix; an empty prefix means all."""
        ...

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        """If every requirement is met do `then`, if not `otherwise`, as one change. No key twice in either list."""
        ...

    def lease(self, ttl_s: float) -> Lease:
        """A new lease. It ends by revoke(), or ttl_s after the last keep_alive(); never because a wall clock jumped."""
        ...

    def watch(self, prefix: str, after_revision: int | None = None) -> Watch:
        """Changes under the prefix after that revision, or after now. Raises Compacted if they are forgotten."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
