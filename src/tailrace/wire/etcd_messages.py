"""What travels between the coordination store and etcd, as plain types. Revisions are etcd's own: they begin with 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import WireRefused


class EtcdRefused(WireRefused):
    """etcd understood the request and does not do it: nothing was changed."""

    why: Literal["lease not found", "lease exists", "compacted", "too large", "other"] = "other"


@dataclass(frozen=True, slots=True)
class KeyValue:
    key: bytes
    value: bytes
    revision: int  # that wrote the value
    created: int  # that made the key
    lease: int  # 0: none


@dataclass(frozen=True, slots=True)
class RangeReply:
    entries: Sequence[KeyValue]
    more: bool  # the limit cut it
    revision: int  # of the store


@dataclass(frozen=True, slots=True)
class EtcdCompare:
    """That a key is equal in one respect. Of a key that is not there every number is 0, and no value is equal."""

    key: bytes
    respect: Literal["created", "revision", "value"]
    to: int | bytes


@dataclass(frozen=True, slots=True)
class EtcdPut:
    key: bytes
    value: bytes
    lease: int


@dataclass(frozen=True, slots=True)
class EtcdDelete:
    key: bytes


@dataclass(frozen=True, slots=True)
class EtcdGet:
    key: bytes


EtcdOperation = EtcdPut | EtcdDelete | EtcdGet


@dataclass(frozen=True, slots=True)
class TxnReply:
    succeeded: bool
    revision: int
    found: Sequence[KeyValue | None]  # for each EtcdGet


@dataclass(frozen=True, slots=True)
class WatchEvent:
    entry: KeyValue
    deleted: bool


@dataclass(frozen=True, slots=True)
class WatchPart:
    """Changes of whole revisions, in order."""

    events: Sequence[WatchEvent]
    compacted: int  # not 0: the history that was asked for is gone up to this revision, and the watch is over
