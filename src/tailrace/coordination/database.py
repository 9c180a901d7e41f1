"""One SQLite file shared by the processes of one machine: opening it, its transactions, and what its errors mean.

Invariants:
- A file is changed only once it is known to be ours (application id) and of the version we know (user version).
- A commit that returned survives power loss: WAL with synchronous=FULL.
- A transaction either returns committed or raises CoordinationError; `took_effect` is None only if the disk failed
  while the commit itself was written. The file then holds a commit record that a recovery may or may not find.
- Each of the two connections is used under its lock, and only by the process that opened it. A fork may neither use
  them nor open the same file again.

This module knows no keys and no leases. See docs/decisions/coordination-on-sqlite.md.
"""

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import apsw

from tailrace.errors import Closed, ConfigError, CoordinationError

APPLICATION_ID = 0x54524C43  # "TRLC", in the file's header: this file is ours
SCHEMA_VERSION = 1

# Keys are UTF-8 in BLOBs, so that they sort by byte and a prefix is a plain interval. An event without a value is a
# deletion. Lease ids are never used again: a late owner must not find its number on someone else's lease.
_SCHEMA = f"""
CREATE TABLE store (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    revision      INTEGER NOT NULL,
    compacted     INTEGER NOT NULL,   -- events up to and including this revision are gone
    history_bytes INTEGER NOT NULL,
    boot          TEXT NOT NULL       -- the start of the machine that the leases' times belong to
);
INSERT INTO store VALUES (1, 0, 0, 0, '');
CREATE TABLE entries (
    key      BLOB PRIMARY KEY NOT NULL,
    revision INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    lease    INTEGER,
    value    BLOB NOT NULL
);
CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL;
CREATE TABLE events (
    id       INTEGER PRIMARY KEY,     -- orders the events of one revision
    revision INTEGER NOT NULL,
    key      BLOB NOT NULL,
    created  INTEGER,
    lease    INTEGER,
    value    BLOB
);
CREATE INDEX events_by_revision ON events (revision);
CREATE TABLE leases (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    ttl_s      REAL NOT NULL,
    renewed_s  REAL NOT NULL,         -- both times on the machine's monotonic clock
    deadline_s REAL NOT NULL
);
CREATE INDEX leases_by_deadline ON leases (deadline_s);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION};
"""
_WAL_KEPT_BYTES = 8 << 20  # a larger log shrinks to this once it is copied into the main file
_BUSY_PAUSE_S = 0.001

# Creating a file means opening and closing it, and closing any handle of a file drops all locks this process has on
# it. So within one process files are opened one after the other, and only a file that was not there is ever created.
_opening = threading.Lock()
_alive: "weakref.WeakSet[Database]" = weakref.WeakSet()


class StoreBusy(CoordinationError):
    """Others had the store for as long as one was willing to wait. Nothing was done."""


class Database:
    def __init__(self, path: str | os.PathLike[str], *, busy_timeout_s: float) -> None:
        if not 0 < busy_timeout_s <= 3600:
            raise ConfigError(f"busy_timeout_s={busy_timeout_s} is not between 0 and 3600 seconds")
        self.path = os.path.realpath(path)
        self._busy_timeout_s = busy_timeout_s
        self._process = os.getpid()
        self._closed = False
        self._reader_lock, self._writer_lock = threading.Lock(), threading.Lock()
        with _opening, self._explaining("open the coordination store"):
            self._refuse_inherited()
            self._create()
            self._writer = self._open()
            self._reader = self._open()
            _alive.add(self)

    @contextmanager
    def reading(self, tried: str) -> Iterator[apsw.Connection]:
        """A consistent view, as of the last commit of any process. Never waits for writers."""
        with self._using(self._reader_lock, tried), _transaction(self._reader, "BEGIN"):
            yield self._reader

    @contextmanager
    def writing(self, tried: str, patience_s: float | None = None) -> Iterator[apsw.Connection]:
        """The only write transaction on the machine; committed at the end, or rolled back if an exception leaves it.
        StoreBusy: others had the store for `patience_s`, or for the busy timeout."""
        patience_s = self._busy_timeout_s if patience_s is None else patience_s
        with self._using(self._writer_lock, tried, patience_s):
            self._writer.set_busy_handler(_patience(patience_s))
            with _transaction(self._writer, "BEGIN IMMEDIATE"):
                yield self._writer

    def version(self) -> int:
        """A number that differs after any commit of this process or another. Cheap enough to ask for all the time."""
        with self._using(self._reader_lock, "look for changes"):
            return int(self._reader.pragma("data_version"))

    def close(self) -> None:
        if os.getpid() != self._process:
            return  # the connections are the parent's, which still uses them
        with self._reader_lock, self._writer_lock:
            if not self._closed:
                self._closed = True
                self._reader.close()
                self._writer.close()

    @contextmanager
    def _using(self, lock: threading.Lock, tried: str, patience_s: float | None = None) -> Iterator[None]:
        if os.getpid() != self._process:  # asked before the lock: a thread that stayed in the parent may hold it
            raise CoordinationError(
                f"{tried} in {self.path}: process {self._process} opened it and this is its fork {os.getpid()}; "
                "let each process open the store itself, and start it by spawn or before the store is opened"
            )
        patience_s = self._busy_timeout_s if patience_s is None else patience_s
        if not lock.acquire(timeout=patience_s):
            raise StoreBusy(
                f"{tried} in {self.path}: waited {patience_s:g} s for other threads of this process; "
                "nothing was done, try again"
            )
        try:
            if self._closed:
                raise Closed(f"{tried} in {self.path}: the store was closed; open a new one")
            with self._explaining(tried):
                yield
        finally:
            lock.release()

    def _refuse_inherited(self) -> None:
        """SQLite keeps its file locks per process and cannot see a fork: a file that the parent had open looks locked
        to the child although the kernel gave the child nothing. Its commits could then go to a log that others delete.
        """
        if any(other.path == self.path and other._process != self._process for other in _alive if not other._closed):
            raise CoordinationError(
                f"open the coordination store in {self.path}: this process was forked from one that had it open; "
                "start it by spawn, or before the store is opened"
            )

    def _create(self) -> None:
        try:
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640))
        except FileExistsError:
            pass
        except OSError as error:
            raise CoordinationError(
                f"create the coordination store {self.path}: {error.strerror}; "
                "its folder must be there and writable for this user"
            ) from error

    def _open(self) -> apsw.Connection:
        connection = apsw.Connection(self.path, flags=apsw.SQLITE_OPEN_READWRITE)
        connection.set_busy_handler(_patience(self._busy_timeout_s))
        connection.pragma("synchronous", "FULL")
        connection.pragma("fullfsync", True)  # for systems whose fsync leaves the bytes in the drive's cache
        with _transaction(connection, "BEGIN"):
            new = self._is_new(connection)
        if new:
            connection.pragma("auto_vacuum", "INCREMENTAL")  # only a file without tables takes this
            with _transaction(connection, "BEGIN IMMEDIATE"):
                if self._is_new(connection):  # else another process was faster
                    connection.execute(_SCHEMA)
        self._log_ahead(connection)
        connection.pragma("journal_size_limit", _WAL_KEPT_BYTES)
        return connection

    def _log_ahead(self, connection: apsw.Connection) -> None:
        deadline_s = time.monotonic() + self._busy_timeout_s
        while True:
            try:
                mode = connection.pragma("journal_mode", "WAL")
                break
            except apsw.BusyError:
                # The switch of a new file answers "busy" at once, without the wait that other statements grant.
                if time.monotonic() >= deadline_s:
                    raise
                time.sleep(_BUSY_PAUSE_S)
        if mode != "wal":
            raise CoordinationError(
                f"open the coordination store in {self.path}: this file system offers no shared memory for the log "
                f"(journal mode stays {mode!r}); put the file on a local disk"
            )

    def _is_new(self, connection: apsw.Connection) -> bool:
        """False if the file is a store of ours, True if it is still empty; anything else is refused untouched."""
        application_id, version = connection.pragma("application_id"), connection.pragma("user_version")
        if application_id == APPLICATION_ID and version == SCHEMA_VERSION:
            return False
        if application_id == APPLICATION_ID:
            raise CoordinationError(
                f"open the coordination store in {self.path}: its schema version is {version} and this release knows "
                f"{SCHEMA_VERSION}; use the release that wrote it, or a newer one"
            )
        if application_id or version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
            raise CoordinationError(
                f"open the coordination store in {self.path}: the file is another program's database "
                f"(application id {application_id:#x}); name a file that is ours or not there yet"
            )
        return True

    @contextmanager
    def _explaining(self, tried: str) -> Iterator[None]:
        """Turn SQLite's errors into ours: what was tried, what was seen, what to do, and whether it took effect."""
        started_s = time.monotonic()
        took_effect: bool | None = False
        try:
            yield
            return
        except _CommitUnknown as unknown:
            error, took_effect = unknown.error, None
        except apsw.Error as known:
            error = known
        match error:
            case apsw.BusyError() | apsw.LockedError():
                waited_s = time.monotonic() - started_s
                advice = f"waited {waited_s:.2f} s for another process to finish; nothing was done, try again"
            case apsw.FullError():
                advice = "no space is left; nothing was done, make room and try again"
            case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.CantOpenError() | apsw.AuthError():
                advice = "the file and its folder must be there and writable for this user"
            case apsw.NotADBError():
                advice = "it is no store of ours, or its start was overwritten; name another file, or restore this one"
            case apsw.CorruptError():
                advice = "the file is damaged; stop its users and restore it from a backup"
            case _:
                advice = "look at the disk and the system's log"
        if took_effect is None:
            advice += "; the commit may or may not be found later, so look at what is stored before trying again"
        busy = isinstance(error, apsw.BusyError | apsw.LockedError)
        kind = StoreBusy if busy else CoordinationError
        explained = kind(f"{tried} in {self.path}: SQLite says {str(error)!r}; {advice}")
        explained.took_effect = took_effect
        raise explained from error


def _patience(timeout_s: float) -> Callable[[int], bool]:
    """Wait for a lock in short, uneven pauses. SQLite's own waiting grows to 100 ms a pause, and then a process that
    writes without a break leaves the others waiting for seconds: long enough for a lease to run out.
    """
    deadline_s = 0.0

    def wait(attempts: int) -> bool:
        nonlocal deadline_s
        now_s = time.monotonic()
        if attempts == 0:
            deadline_s = now_s + timeout_s
        time.sleep(_BUSY_PAUSE_S * random.uniform(0.5, 1.5))
        return now_s < deadline_s

    return wait


class _CommitUnknown(Exception):
    def __init__(self, error: apsw.Error) -> None:
        self.error = error


@contextmanager
def _transaction(connection: apsw.Connection, begin: str) -> Iterator[None]:
    try:
        connection.execute(begin)
        yield
        try:
            connection.execute("COMMIT")
        except (apsw.BusyError, apsw.FullError):
            raise  # the commit record, which is written last, is not in the log
        except apsw.Error as error:
            raise _CommitUnknown(error) from error
    finally:
        if connection.in_transaction:
            with suppress(apsw.Error):  # what went wrong first is what the caller should hear
                connection.execute("ROLLBACK")
