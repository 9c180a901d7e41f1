"""A small consistent store: world configuration, ownership, checkpoints.

SQLite serves the processes of one machine, etcd those of many; what is for etcd is loaded when it is first named.
"""

from typing import TYPE_CHECKING, Any

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

if TYPE_CHECKING:
    from .etcd import EtcdCoordination

__all__ = [
    "Absent",
    "AtRevision",
    "Compacted",
    "Coordination",
    "Delete",
    "Entry",
    "EtcdCoordination",
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


def __getattr__(name: str) -> Any:
    if name == "EtcdCoordination":
        from .etcd import EtcdCoordination

        return EtcdCoordination
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
