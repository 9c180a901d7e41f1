"""A small consistent store: world configuration, ownership, checkpoints. SQLite serves the processes of one machine."""

from .interface import (
    Absent,
    AtRevision,
    Compacted,
    Coordination,
    Delete,
    Entry,
    Event,
    HasValue,
    Lease,
    Operation,
    Outcome,
    Put,
    Requirement,
    Snapshot,
    Watch,
)
from .shorthand import compare_and_swap, put, put_if_absent
from .sqlite import SqliteCoordination

__all__ = [
    "Absent",
    "AtRevision",
    "Compacted",
    "Coordination",
    "Delete",
    "Entry",
    "Event",
    "HasValue",
    "Lease",
    "Operation",
    "Outcome",
    "Put",
    "Requirement",
    "Snapshot",
    "SqliteCoordination",
    "Watch",
    "compare_and_swap",
    "put",
    "put_if_absent",
]
