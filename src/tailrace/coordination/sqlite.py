"""The coordination store in one SQLite file, for the processes and threads of one machine.

Invariants:
- Expiry is a write. Whoever meets a lease past its deadline first deletes what it holds, under the write lock, and
  only then looks. A read that merely hid such keys could be overtaken by a keep_alive that is just being committed,
  and the key would be gone and back again.
- Time in which nobody could write does not count: owners could not renew their leases, and nobody could end them.
  A read then shows what was committed last.
- Leases live on the machine's monotonic clock, which all its processes share and no one can set. It starts anew with
  the machine, so the store remembers which boot its times belong to: leases of another boot are over.
- The history holds at least the last `history_max` revisions, and at most a quarter more; fewer only if their bytes
  would exceed `history_bytes`.
"""

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self, TypeVar

from apsw import Connection

from tailrace.env import Clock, SystemClock
from tailrace.errors import Closed, ConfigError, CoordinationError, LeaseExpired

from . import tables
from .database import Database, StoreBusy
from .interface import (
    TRANSACTION_BYTES_MAX,
    Compacted,
    Coordination,
    Entry,
    Event,
    Lease,
    Operation,
    Outcome,
    Put,
    Requirement,
    Snapshot,
    Watch,
)
from .transaction import changes, check_key, check_prefix, check_transaction, check_ttl, key_bounds, shown, unmet

_LOOK_PATIENCE_S = 0.01  # so long does a read wait to end leases that are due: whoever writes meanwhile ends them, too
_STANDSTILL_S = 0.5  # a store that works never makes anybody wait for so long

_T = TypeVar("_T")


class SqliteCoordination(Coordination):
    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        boot: str | None = None,
        history_max: int = 10_000,
        history_bytes: int = 64 << 20,
        leases_max: int = 10_000,
        busy_timeout_s: float = 10.0,
        poll_interval_s: float = 0.02,
    ) -> None:
        """Open the store; make it if the file is not there. The clock's monotonic time must be that of the machine."""
        for name, value, least in (
            ("history_max", history_max, 1),
            ("history_bytes", history_bytes, 4 * TRANSACTION_BYTES_MAX),  # so that the newest revisions always fit
            ("leases_max", leases_max, 1),
        ):
            if value < least:
                raise ConfigError(f"{name}={value} is too small; use {least} or more")
        if not 0 < poll_interval_s <= 1:
            raise ConfigError(f"poll_interval_s={poll_interval_s} is not between 0 and 1 second")
        self._clock = clock or SystemClock()
        self._history_max = history_max
        self._history_bytes = history_bytes
        self._leases_max = leases_max
        self._poll_interval_s = poll_interval_s
        self._watches: weakref.WeakSet[_SqliteWatch] = weakref.WeakSet()
        self._watches_lock = threading.Lock()
        self._busy_since_s: float | None = None  # others have the store since then, as far as we know
        self._database = Database(path, busy_timeout_s=busy_timeout_s)
        self._start_boot(_machine_boot() if boot is None else boot)

    def _start_boot(self, boot: str) -> None:
        """Writes only if nobody has since the machine is up: hundreds of processes may open the store at once."""
        tried, now_s = "open the coordination store", self._clock.monotonic_s()
        with self._database.reading(tried) as db:
            if tables.boot_started(db, boot, now_s):
                return
        with self._database.writing(tried) as db:
            tables.start_boot(db, boot, now_s)

    def get(self, key: str) -> Entry | None:
        raw = check_key(key)
        return self._read(f"get {shown(key)}", lambda db: tables.entry(db, raw))

    def range(self, prefix: str) -> Snapshot:
        bounds = key_bounds(check_prefix(prefix))
        return self._read(
            f"range {shown(prefix)}", lambda db: Snapshot(tables.entries(db, bounds), tables.revision(db))
        )

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        check_transaction(requires, then, otherwise)
        with self._write("transact") as db:
            conflicts = unmet(requires, tables.present(db, (need.key for need in requires)))
            operations = otherwise if conflicts else then
            for operation in operations:
                if isinstance(operation, Put) and operation.lease is not None:
                    self._check_lives(db, operation.lease, f"put {shown(operation.key)} under lease {operation.lease}")
            present = tables.present(db, (operation.key for operation in operations))
            tables.apply(db, changes(operations, present, tables.revision(db) + 1))
            return Outcome(not conflicts, tables.revision(db), conflicts)

    def lease(self, ttl_s: float) -> Lease:
        ttl_s = check_ttl(ttl_s)
        with self._write("lease") as db:
            if tables.lease_count(db) >= self._leases_max:
                raise CoordinationError(
                    f"lease in {self._database.path}: {self._leases_max} leases are alive, which is the limit; "
                    "revoke some, or raise leases_max"
                )
            return _SqliteLease(tables.start_lease(db, ttl_s, self._clock.monotonic_s()), ttl_s, self)

    def watch(self, prefix: str, after_revision: int | None = None) -> Watch:
        bounds = key_bounds(check_prefix(prefix))
        tried = f"watch {shown(prefix)}"
        after = self._read(tried, tables.revision) if after_revision is None else after_revision
        self._read(tried, lambda db: self._check_reachable(db, tried, after))
        watch = _SqliteWatch(self, tried, bounds, after)
        with self._watches_lock:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        self._database.close()
        self._wake_watches()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, tried: str, look: Callable[[Connection], _T]) -> _T:
        """Look at a state in which no lease is past its deadline as of this call; if nobody can write, at the last."""
        now_s = self._clock.monotonic_s()
        with self._database.reading(tried) as db:
            if (due_s := tables.next_due_s(db)) is None or now_s < due_s:
                self._busy_since_s = None  # somebody has ended those that were
                return look(db)
        try:
            with self._write(tried, _LOOK_PATIENCE_S) as db:
                return look(db)
        except StoreBusy:
            with self._database.reading(tried) as db:
                return look(db)

    @contextmanager
    def _write(self, tried: str, patience_s: float | None = None) -> Iterator[Connection]:
        asked_s = self._clock.monotonic_s()
        changed = False
        try:
            with self._database.writing(tried, patience_s) as db:
                before = tables.revision(db)
                self._end_due_leases(db, asked_s)
                yield db
                changed = tables.revision(db) != before
                if changed:
                    tables.compact(db, self._history_max, self._history_bytes)
        except StoreBusy:
            self._busy_since_s = asked_s if self._busy_since_s is None else self._busy_since_s
            raise
        if changed:
            self._wake_watches()

    def _end_due_leases(self, db: Connection, asked_s: float) -> None:
        now_s = self._clock.monotonic_s()
        waited_s = now_s - (asked_s if self._busy_since_s is None else self._busy_since_s)
        self._busy_since_s = None
        if waited_s >= _STANDSTILL_S:
            tables.spare_leases(db, now_s, waited_s)
        tables.end_due_leases(db, now_s)

    def _wake_watches(self) -> None:
        with self._watches_lock:
            for watch in self._watches:
                watch.wake.set()

    def _check_reachable(self, db: Connection, tried: str, after: int) -> None:
        latest, compacted, _ = tables.history(db)
        tried = f"{tried} after revision {after} in {self._database.path}"
        advice = "read with range() and watch from the revision it gives"
        if not 0 <= after <= latest:
            raise CoordinationError(f"{tried}: the store is at {latest}, so this is not its revision; {advice}")
        if after < compacted:
            message = f"{tried}: changes up to revision {compacted} are forgotten; {advice}"
            raise Compacted(message, after_revision=after, compacted=compacted)

    def _check_lives(self, db: Connection, lease: int, tried: str) -> None:
        if not tables.lease_lives(db, lease):
            raise LeaseExpired(
                f"{tried} in {self._database.path}: it has expired or was revoked, and what it held is gone; "
                "ask for a new lease and take ownership again"
            )

    def _keep_alive(self, lease: int) -> None:
        tried = f"keep lease {lease} alive"
        with self._write(tried) as db:
            self._check_lives(db, lease, tried)
            tables.renew_lease(db, lease, self._clock.monotonic_s())

    def _revoke(self, lease: int) -> None:
        with self._write(f"revoke lease {lease}") as db:
            tables.end_lease(db, lease)

    def _events(self, tried: str, bounds: tuple[bytes, bytes], after: int) -> tuple[list[Event], int, float | None]:
        """The next events; the revision they are complete up to; when the next lease is due."""

        def look(db: Connection) -> tuple[list[Event], int, float | None]:
            self._check_reachable(db, tried, after)
            return *tables.events(db, bounds, after), tables.next_due_s(db)

        return self._read(tried, look)


@dataclass(frozen=True, slots=True)
class _SqliteLease:
    id: int
    ttl_s: float
    _store: SqliteCoordination = field(repr=False)

    def keep_alive(self) -> None:
        self._store._keep_alive(self.id)

    def revoke(self) -> None:
        self._store._revoke(self.id)


class _SqliteWatch(Watch):
    """Reads the history when the file has changed or a lease is due, and otherwise only asks whether that is so."""

    def __init__(self, store: SqliteCoordination, tried: str, bounds: tuple[bytes, bytes], after: int) -> None:
        self.wake = threading.Event()  # set by the commits of this process, and by close()
        self._store = store
        self._tried = tried
        self._bounds = bounds
        self._reached = after
        self._pending: deque[Event] = deque()  # fetched, not handed out yet
        self._version: int | None = None  # of the file when there was nothing more to fetch
        self._due_s: float | None = None
        self._closed = False

    @property
    def revision(self) -> int:
        return self._pending[0].revision - 1 if self._pending else self._reached

    def poll(self, timeout_s: float) -> list[Event]:
        clock = self._store._clock
        deadline_s = clock.monotonic_s() + timeout_s
        while not self._ready():
            if (left_s := deadline_s - clock.monotonic_s()) <= 0:
                return []
            clock.wait(self.wake, min(left_s, self._store._poll_interval_s))
        events = list(self._pending)
        self._pending.clear()
        return events

    def close(self) -> None:
        self._closed = True
        self.wake.set()

    def __iter__(self) -> Iterator[Event]:
        while not self._closed:
            try:
                if self._ready():
                    yield self._pending.popleft()
                else:
                    self._store._clock.wait(self.wake, self._store._poll_interval_s)
            except Closed:
                if not self._closed:
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ready(self) -> bool:
        """Whether there is something to hand out, after a look at the store if need be."""
        self.wake.clear()  # before looking, so that a change after the look is not slept through
        if self._closed:
            raise Closed(f"{self._tried}: the watch was closed; make a new one, from revision {self.revision}")
        if not self._pending:
            version = self._store._database.version()
            due = self._due_s is not None and self._store._clock.monotonic_s() >= self._due_s
            if version != self._version or due:
                events, self._reached, self._due_s = self._store._events(self._tried, self._bounds, self._reached)
                self._pending.extend(events)
                self._version = None if events else version  # after a full fetch there may be more, changed or not
        return bool(self._pending)


def _machine_boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # the same for all processes of the machine, which matters more than being exact
