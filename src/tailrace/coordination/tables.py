"""Statements on the tables of the store; each runs inside a transaction that the caller has begun.

Invariant: entries change only through events. `apply` stores the events, changes the entries and raises the revision.
"""

from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

from apsw import Connection

from .interface import Entry, Event

_EVENT_BYTES = 64  # what an event costs the history besides its key and value
_SIZE = f"({_EVENT_BYTES} + length(key) + ifnull(length(value), 0))"
_FETCH_EVENTS = 1000  # a fetch stops at the end of the revision that reaches one of these two
_FETCH_BYTES = 8 << 20
_SPARE_PAGES = 1024  # so many unused pages stay in the file for reuse


def revision(db: Connection) -> int:
    return history(db)[0]


def history(db: Connection) -> tuple[int, int, int]:
    """The store's revision; the revision up to which events are forgotten; the bytes of the others."""
    row: Any = db.execute("SELECT revision, compacted, history_bytes FROM store").fetchone()
    return row[0], row[1], row[2]


def entry(db: Connection, key: bytes) -> Entry | None:
    row: Any = db.execute("SELECT value, revision, created, lease FROM entries WHERE key = ?", (key,)).fetchone()
    return None if row is None else Entry(key.decode(), *row)


def present(db: Connection, keys: Iterable[str]) -> dict[str, Entry]:
    return {found.key: found for key in keys if (found := entry(db, key.encode())) is not None}


def entries(db: Connection, bounds: tuple[bytes, bytes]) -> tuple[Entry, ...]:
    query = "SELECT key, value, revision, created, lease FROM entries WHERE key >= ? AND key < ? ORDER BY key"
    return tuple(Entry(key.decode(), *rest) for key, *rest in db.execute(query, bounds))


def events(db: Connection, bounds: tuple[bytes, bytes], after: int) -> tuple[list[Event], int]:
    """The next events after a revision, and the revision they are complete up to."""
    query = """SELECT revision, key, value, created, lease FROM events
               WHERE revision > ? AND key >= ? AND key < ? ORDER BY revision, id"""
    found: list[Event] = []
    size = 0
    at: int
    value: bytes | None
    with closing(db.execute(query, (after, *bounds))) as rows:
        for at, raw, value, created, lease in rows:
            if (len(found) >= _FETCH_EVENTS or size >= _FETCH_BYTES) and at != found[-1].revision:
                return found, found[-1].revision
            key = raw.decode()
            found.append(Event(key, at, None if value is None else Entry(key, value, at, created, lease)))
            size += len(value or b"")
    return found, revision(db)


def apply(db: Connection, made: Sequence[Event]) -> None:
    """Make the events happen. They are of one revision, the one after the store's; no events, no revision."""
    size = 0
    for event in made:
        key, became = event.key.encode(), event.entry
        row: tuple[int | bytes | None, ...] = (event.revision, key, None, None, None)
        if became is None:
            db.execute("DELETE FROM entries WHERE key = ?", (key,))
        else:
            row = (event.revision, key, became.created, became.lease, became.value)
            db.execute("REPLACE INTO entries (revision, key, created, lease, value) VALUES (?, ?, ?, ?, ?)", row)
        db.execute("INSERT INTO events (revision, key, created, lease, value) VALUES (?, ?, ?, ?, ?)", row)
        size += _EVENT_BYTES + len(key) + (len(became.value) if became else 0)
    if made:
        db.execute("UPDATE store SET revision = ?, history_bytes = history_bytes + ?", (made[-1].revision, size))


def compact(db: Connection, revisions_max: int, bytes_max: int) -> None:
    """Forget old events once a good many have gathered, so that only a write now and then pays for it."""
    latest, compacted, held = history(db)
    floor = compacted
    if latest - compacted > revisions_max + revisions_max // 4:
        floor = latest - revisions_max
    if held > bytes_max:
        newer = f"SELECT revision, sum({_SIZE}) OVER (ORDER BY revision DESC) AS held FROM events"
        floor = max(floor, db.execute(f"SELECT max(revision) FROM ({newer}) WHERE held > ?", (bytes_max // 2,)).get)
    if floor == compacted:
        return
    db.execute("DELETE FROM events WHERE revision <= ?", (floor,))
    rest = f"(SELECT ifnull(sum({_SIZE}), 0) FROM events)"
    db.execute(f"UPDATE store SET compacted = ?, history_bytes = {rest}", (floor,))
    unused = db.pragma("freelist_count")
    if unused > max(_SPARE_PAGES, db.pragma("page_count") // 2):
        db.execute(f"PRAGMA incremental_vacuum({unused // 2})").fetchall()


def boot_started(db: Connection, boot: str, now_s: float) -> bool:
    """Whether `start_boot` would change nothing."""
    query = "SELECT 1 FROM store WHERE boot = ? AND NOT EXISTS (SELECT 1 FROM leases WHERE renewed_s > ?)"
    return db.execute(query, (boot, now_s)).get is not None


def start_boot(db: Connection, boot: str, now_s: float) -> None:
    """Let the leases of an earlier boot be due. Where boots have no id, being renewed in the future gives them away."""
    query = "UPDATE leases SET deadline_s = -1 WHERE renewed_s > ? OR (SELECT boot FROM store) <> ?"
    db.execute(query, (now_s, boot))
    db.execute("UPDATE store SET boot = ?", (boot,))


def lease_count(db: Connection) -> int:
    return int(db.execute("SELECT count(*) FROM leases").get)


def lease_lives(db: Connection, lease: int) -> bool:
    return db.execute("SELECT 1 FROM leases WHERE id = ?", (lease,)).get is not None


def start_lease(db: Connection, ttl_s: float, now_s: float) -> int:
    query = "INSERT INTO leases (ttl_s, renewed_s, deadline_s) VALUES (?, ?, ?)"
    db.execute(query, (ttl_s, now_s, now_s + ttl_s))
    return db.last_insert_rowid()


def renew_lease(db: Connection, lease: int, now_s: float) -> None:
    db.execute("UPDATE leases SET renewed_s = ?, deadline_s = ? + ttl_s WHERE id = ?", (now_s, now_s, lease))


def spare_leases(db: Connection, now_s: float, waited_s: float) -> None:
    """Nobody could renew a lease for so long: no lease ends before its owner has had as long to do so now."""
    db.execute("UPDATE leases SET deadline_s = max(deadline_s, ? + min(ttl_s, ?))", (now_s, waited_s))


def end_lease(db: Connection, lease: int) -> None:
    held: Any = db.execute("SELECT key FROM entries WHERE lease = ? ORDER BY key", (lease,)).fetchall()
    at = revision(db) + 1
    apply(db, [Event(key.decode(), at, None) for (key,) in held])
    db.execute("DELETE FROM leases WHERE id = ?", (lease,))


def end_due_leases(db: Connection, now_s: float) -> None:
    due: Any = db.execute("SELECT id FROM leases WHERE deadline_s <= ? ORDER BY deadline_s, id", (now_s,)).fetchall()
    for (lease,) in due:
        end_lease(db, lease)


def next_due_s(db: Connection) -> float | None:
    due_s: float | None = db.execute("SELECT min(deadline_s) FROM leases").get
    return due_s
