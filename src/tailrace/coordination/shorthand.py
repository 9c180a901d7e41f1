"""The three transactions that most callers want, on any implementation."""

from .interface import Absent, AtRevision, Coordination, Entry, Outcome, Put


def put(store: Coordination, key: str, value: bytes, *, lease: int | None = None) -> int:
    """Set the value whatever was there; the revision that did it."""
    return store.transact((), [Put(key, value, lease)]).revision


def put_if_absent(store: Coordination, key: str, value: bytes, *, lease: int | None = None) -> Outcome:
    """Make the key, or learn from `conflicts` who was first."""
    return store.transact([Absent(key)], [Put(key, value, lease)])


def compare_and_swap(
    store: Coordination, key: str, seen: Entry | None, value: bytes, *, lease: int | None = None
) -> Outcome:
    """Set the value if the key is still as `seen` (None: absent), as get() returned it."""
    need = Absent(key) if seen is None else AtRevision(key, seen.revision)
    return store.transact([need], [Put(key, value, lease)])
