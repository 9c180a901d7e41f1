"""Decide what a transaction may ask for, whether its requirements are met, and what it changes.

Invariant: what passes `check_transaction` is within every limit, so no implementation has to refuse it half-way.
Pure: entries in, events out. Reading the entries and storing the events is the work of the shell around it.
"""

import math
from collections.abc import Mapping, Sequence

from tailrace.errors import CoordinationError

from .interface import (
    KEY_BYTES_MAX,
    LEASE_TTL_S_MAX,
    OPERATIONS_MAX,
    TRANSACTION_BYTES_MAX,
    VALUE_BYTES_MAX,
    Absent,
    AtRevision,
    Delete,
    Entry,
    Event,
    HasValue,
    Operation,
    Put,
    Requirement,
)


def unmet(requires: Sequence[Requirement], present: Mapping[str, Entry]) -> dict[str, Entry | None]:
    """The keys whose requirements are not met, with what is there instead."""
    return {need.key: present.get(need.key) for need in requires if not _met(need, present.get(need.key))}


def changes(operations: Sequence[Operation], present: Mapping[str, Entry], revision: int) -> list[Event]:
    """What the operations change if they happen at this revision, in their order."""
    events = []
    for operation in operations:
        before = present.get(operation.key)
        if isinstance(operation, Put):
            created = before.created if before else revision
            entry = Entry(operation.key, operation.value, revision, created, operation.lease)
            events.append(Event(operation.key, revision, entry))
        elif before:
            events.append(Event(operation.key, revision, None))
    return events


def _met(need: Requirement, entry: Entry | None) -> bool:
    match need:
        case Absent():
            return entry is None
        case AtRevision(revision=revision):
            return entry is not None and entry.revision == revision
        case HasValue(value=value):
            return entry is not None and entry.value == value


def check_transaction(
    requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> None:
    for name, listed in (("requires", requires), ("then", then), ("otherwise", otherwise)):
        if len(listed) > OPERATIONS_MAX:
            raise CoordinationError(
                f"transact with {len(listed)} items in `{name}`: {OPERATIONS_MAX} is the limit; split it"
            )
    for need in requires:
        if not isinstance(need, Absent | AtRevision | HasValue):
            raise CoordinationError(f"transact requires {need!r}: use Absent, AtRevision or HasValue")
        check_key(need.key)
        if isinstance(need, HasValue):
            _check_value(need.key, need.value)
    for name, operations in (("then", then), ("otherwise", otherwise)):
        _check_operations(name, operations)


def _check_operations(name: str, operations: Sequence[Operation]) -> None:
    keys: set[str] = set()
    total_bytes = 0
    for operation in operations:
        if not isinstance(operation, Put | Delete):
            raise CoordinationError(f"transact with {operation!r} in `{name}`: not an operation; use Put or Delete")
        total_bytes += len(check_key(operation.key))
        if operation.key in keys:
            # Which of the two wins would be a matter of order, and stores disagree about it.
            raise CoordinationError(f"transact changes {shown(operation.key)} twice in `{name}`; name each key once")
        keys.add(operation.key)
        if isinstance(operation, Put):
            _check_value(operation.key, operation.value)
            total_bytes += len(operation.value)
    if total_bytes > TRANSACTION_BYTES_MAX:
        raise CoordinationError(
            f"transact with {total_bytes} bytes in `{name}`: {TRANSACTION_BYTES_MAX} is the limit; split it"
        )


def check_key(key: str) -> bytes:
    """The key's bytes in the store."""
    if key == "":
        raise CoordinationError("an empty key was given; name the key")
    return check_prefix(key)


def check_prefix(prefix: str) -> bytes:
    """The prefix's bytes in the store. It may be empty; everything else holds for it as for a key."""
    if not isinstance(prefix, str):
        raise CoordinationError(f"a key of type {type(prefix).__name__} was given; keys are str")
    try:
        raw = prefix.encode()
    except UnicodeEncodeError as error:
        raise CoordinationError(f"key {shown(prefix)} is not valid UTF-8 ({error.reason}); choose another") from error
    if len(raw) > KEY_BYTES_MAX:
        raise CoordinationError(f"key {shown(prefix)} has {len(raw)} bytes: {KEY_BYTES_MAX} is the limit; shorten it")
    if 0 in raw:
        raise CoordinationError(f"key {shown(prefix)} contains NUL; choose another")
    return raw


def key_bounds(prefix: bytes) -> tuple[bytes, bytes]:
    """From (included) and to (excluded) in byte order: the keys that start with the prefix. UTF-8 never uses 0xff."""
    return prefix, prefix[:-1] + bytes([prefix[-1] + 1]) if prefix else b"\xff"


def _check_value(key: str, value: bytes) -> None:
    if not isinstance(value, bytes):
        raise CoordinationError(f"a value of type {type(value).__name__} for {shown(key)} was given; values are bytes")
    if len(value) > VALUE_BYTES_MAX:
        raise CoordinationError(
            f"the value for {shown(key)} has {len(value)} bytes: {VALUE_BYTES_MAX} is the limit; keep it in a file"
        )


def check_ttl(ttl_s: float) -> float:
    if not (isinstance(ttl_s, int | float) and math.isfinite(ttl_s) and 0 < ttl_s <= LEASE_TTL_S_MAX):
        raise CoordinationError(f"lease with ttl_s={ttl_s!r}: use over 0 and up to {LEASE_TTL_S_MAX:.0f} seconds")
    return float(ttl_s)


def shown(key: str) -> str:
    """The key for a message: escaped, and short enough to read."""
    return ascii(key if len(key) <= 80 else key[:77] + "...")
