"""The coordination store in an etcd cluster, for the processes of many machines.

Invariants:
- Reads are linearizable: whoever starts reading after a transaction returned sees it, whichever member is asked.
- Our revision is etcd's minus one, since etcd begins with 1. It grows by one a change as long as nobody else writes to
  this etcd: give Tailrace one of its own. With others in it everything holds but that count.
- All keys lie under one prefix, and a watch follows all of it, so that it knows which revisions it has seen.

See docs/decisions/coordination-on-etcd.md.
"""

import math
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from tailrace.config import CoordinationConfig
from tailrace.env import Clock, SystemClock
from tailrace.errors import ConfigError, CoordinationError, LeaseExpired
from tailrace.wire import (
    EtcdCompare,
    EtcdDelete,
    EtcdGet,
    EtcdOperation,
    EtcdPut,
    EtcdRefused,
    KeyValue,
    TxnReply,
)

from .etcd_members import Members
from .etcd_watch import EtcdFollowing
from .interface import (
    Absent,
    AtRevision,
    Compacted,
    Coordination,
    Delete,
    Entry,
    HasValue,
    Lease,
    Operation,
    Outcome,
    Put,
    Requirement,
    Snapshot,
    Watch,
)
from .transaction import check_key, check_prefix, check_transaction, check_ttl, key_bounds, shown, unmet

_PAGE = 128  # entries a reply: that many of the largest fit a message
_NEVER = -1  # a revision that no key has


class EtcdCoordination(Coordination):
    def __init__(
        self,
        config: CoordinationConfig,
        *,
        clock: Clock | None = None,
        first_revision: int = 1,
        history_max: int | None = None,
    ) -> None:
        """Connects when it is first used. `first_revision`: etcd's that counts as our 0. `history_max`: forget older
        revisions than so many when this client writes; None leaves that to etcd's own settings."""
        if not config.etcd:
            raise ConfigError("coordination.etcd is empty; name at least one endpoint, host:port")
        self._prefix = config.prefix.encode()
        self._first = first_revision
        self._history_max, self._compacted = history_max, 0
        self._clock = clock or SystemClock()
        self._members = Members(config.etcd, config.tls, config.deadline_s)
        self._watches: weakref.WeakSet[EtcdFollowing] = weakref.WeakSet()
        self._lock = threading.Lock()

    def get(self, key: str) -> Entry | None:
        raw = self._prefix + check_key(key)
        reply = self._members.ask(f"get {shown(key)}", lambda peer, left_s: peer.range(raw, b"", left_s))
        return self._entry(reply.entries[0]) if reply.entries else None

    def range(self, prefix: str) -> Snapshot:
        first, end = key_bounds(self._prefix + check_prefix(prefix))
        tried = f"range {shown(prefix)}"
        while True:
            try:
                return self._pages(tried, first, end)
            except EtcdRefused as refused:
                if refused.why != "compacted":  # while it was turning pages: begin anew, with a newer revision
                    raise self._refusal(tried, refused) from refused

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        check_transaction(requires, then, otherwise)
        tried = "transact"
        keys = list(dict.fromkeys(need.key for need in requires))
        # What is there instead is looked up first, before `otherwise` changes it.
        looks: list[EtcdOperation] = [EtcdGet(self._raw(key)) for key in keys]
        compares = [self._compare(need) for need in requires]
        changes, changes_otherwise = self._operations(then), self._operations(otherwise)

        try:
            reply: TxnReply = self._members.ask(
                tried,
                lambda peer, left_s: peer.transact(compares, changes, [*looks, *changes_otherwise], left_s),
                repeatable=not changes and not changes_otherwise,
            )
        except EtcdRefused as refused:
            raise self._refusal(tried, refused) from refused
        present = {key: self._entry(one) for key, one in zip(keys, reply.found, strict=False) if one is not None}
        outcome = Outcome(
            reply.succeeded, reply.revision - self._first, {} if reply.succeeded else unmet(requires, present)
        )
        self._forget(outcome.revision)
        return outcome

    def lease(self, ttl_s: float) -> Lease:
        ttl_s = check_ttl(ttl_s)
        # Our choice of the number makes it safe to ask twice: the second time it is there already.
        lease = secrets.randbits(62) + 1
        try:
            self._members.ask("lease", lambda peer, left_s: peer.grant(lease, math.ceil(ttl_s), left_s))
        except EtcdRefused as refused:
            if refused.why != "lease exists":
                raise self._refusal("lease", refused) from refused
        return _EtcdLease(lease, ttl_s, self)

    def watch(self, prefix: str, after_revision: int | None = None) -> Watch:
        bounds = key_bounds(self._prefix + check_prefix(prefix))
        tried = f"watch {shown(prefix)}"
        after = self.revision(tried) if after_revision is None else after_revision
        if after_revision is not None:
            self._check_reachable(tried, after)
        watch = EtcdFollowing(self, self._members, self._clock, tried, bounds, after)
        with self._lock:
            self._watches.add(watch)
        return watch

    def close(self) -> None:
        self._members.close()
        with self._lock:
            for watch in self._watches:
                watch.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def revision(self, tried: str = "ask for the revision") -> int:
        """The store's, as of this call."""
        reply = self._members.ask(tried, lambda peer, left_s: peer.range(self._prefix, b"", left_s))
        return reply.revision - self._first

    @property
    def bounds(self) -> tuple[bytes, bytes]:
        """Of all our keys."""
        return key_bounds(self._prefix)

    @property
    def first_revision(self) -> int:
        return self._first

    def entry(self, one: KeyValue) -> Entry:
        return self._entry(one)

    def key(self, raw: bytes) -> str:
        return raw[len(self._prefix) :].decode(errors="surrogateescape")  # ours are UTF-8; another's must not stop us

    def _pages(self, tried: str, first: bytes, end: bytes) -> Snapshot:
        entries: list[Entry] = []
        revision = 0
        while True:
            reply = self._members.ask(
                tried,
                lambda peer, left_s, at=first, revision=revision: peer.range(  # type: ignore[misc]
                    at, end, left_s, revision=revision, limit=_PAGE
                ),
            )
            entries += map(self._entry, reply.entries)
            revision = revision or reply.revision
            if not reply.more:
                return Snapshot(tuple(entries), revision - self._first)
            first = reply.entries[-1].key + b"\0"

    def _check_reachable(self, tried: str, after: int) -> None:
        advice = "read with range() and watch from the revision it gives"
        tried = f"{tried} after revision {after} in etcd"
        latest = self.revision(tried)
        if not 0 <= after <= latest:
            raise CoordinationError(f"{tried}: the store is at {latest}, so this is not its revision; {advice}")
        try:
            self._members.ask(
                tried, lambda peer, left_s: peer.range(self._prefix, b"", left_s, revision=after + self._first)
            )
        except EtcdRefused as refused:
            if refused.why != "compacted":
                raise self._refusal(tried, refused) from refused
            compacted = self._compacted_to(after)
            message = f"{tried}: changes up to revision {compacted} are forgotten; {advice}"
            raise Compacted(message, after_revision=after, compacted=compacted) from None

    def _compacted_to(self, after: int) -> int:
        """Only a watch is told up to which revision etcd has forgotten."""
        first, end = self.bounds
        for _ in range(100):
            number, peer = self._members.current("watch")
            watch = peer.watch(first, end, after + self._first)
            try:
                for part in watch:
                    if part.compacted:
                        return part.compacted - self._first
            except Exception:
                self._members.leave(number)
                self._members.pause()
            finally:
                watch.close()
        return after + 1

    def _forget(self, revision: int) -> None:
        if self._history_max is None or revision - self._compacted < self._history_max * 5 // 4:
            return
        self._compacted = revision - self._history_max
        self._members.ask("compact", lambda peer, left_s: peer.compact(self._compacted + self._first, left_s))

    def _raw(self, key: str) -> bytes:
        return self._prefix + key.encode()

    def _entry(self, one: KeyValue) -> Entry:
        lease = one.lease or None
        return Entry(self.key(one.key), one.value, one.revision - self._first, one.created - self._first, lease)

    def _compare(self, need: Requirement) -> EtcdCompare:
        match need:
            case Absent(key):
                return EtcdCompare(self._raw(key), "created", 0)
            case AtRevision(key, revision):
                # 0 there means that the key is absent, which is never what this asks for.
                return EtcdCompare(self._raw(key), "revision", max(revision + self._first, 0) or _NEVER)
            case HasValue(key, value):
                return EtcdCompare(self._raw(key), "value", value)

    def _operations(self, operations: Iterable[Operation]) -> list[EtcdOperation]:
        made: list[EtcdOperation] = []
        for one in operations:
            match one:
                case Put(key, value, lease):
                    made.append(EtcdPut(self._raw(key), value, lease or 0))
                case Delete(key):
                    made.append(EtcdDelete(self._raw(key)))
        return made

    def _refusal(self, tried: str, refused: EtcdRefused) -> CoordinationError:
        if refused.why == "lease not found":
            return LeaseExpired(
                f"{tried} in etcd: a lease has expired or was revoked, and what it held is gone; "
                "ask for a new lease and take ownership again"
            )
        if refused.why == "too large":
            return CoordinationError(
                f"{tried} in etcd: {refused}; start its members with --max-txn-ops=2048 --max-request-bytes=17825792, "
                "or do less at once"
            )
        return CoordinationError(f"{tried} in etcd: {refused}; nothing was done")

    def _keep_alive(self, lease: int) -> None:
        tried = f"keep lease {lease} alive"
        if not self._members.ask(tried, lambda peer, left_s: peer.keep_alive(lease, left_s)):
            raise LeaseExpired(
                f"{tried} in etcd: it has expired or was revoked, and what it held is gone; "
                "ask for a new lease and take ownership again"
            )

    def _revoke(self, lease: int) -> None:
        try:
            self._members.ask(f"revoke lease {lease}", lambda peer, left_s: peer.revoke(lease, left_s))
        except EtcdRefused as refused:
            if refused.why != "lease not found":
                raise self._refusal(f"revoke lease {lease}", refused) from refused


@dataclass(frozen=True, slots=True)
class _EtcdLease:
    """etcd counts whole seconds, and no fewer than an election may take: two by default."""

    id: int
    ttl_s: float
    _store: EtcdCoordination = field(repr=False)

    def keep_alive(self) -> None:
        self._store._keep_alive(self.id)

    def revoke(self) -> None:
        self._store._revoke(self.id)
