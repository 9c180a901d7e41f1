"""How processes of a cache talk: the messages, a server and a peer over gRPC, mutual TLS; and a peer for etcd.

Nothing above this room sees gRPC, and importing this room does not load it: `serve`, `BackendPeer` and `EtcdPeer` do,
when they are first named.
"""

from typing import TYPE_CHECKING, Any

from .etcd_messages import (
    EtcdCompare,
    EtcdDelete,
    EtcdGet,
    EtcdOperation,
    EtcdPut,
    EtcdRefused,
    KeyValue,
    RangeReply,
    TxnReply,
    WatchEvent,
    WatchPart,
)
from .messages import (
    HASH_BYTES,
    TICKET_BYTES,
    Answer,
    AttachReply,
    DigestReply,
    Engine,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
    Version,
)
from .service import Authorize, BackendService

if TYPE_CHECKING:
    from .etcd import EtcdPeer, EtcdWatch
    from .peer import BackendPeer
    from .server import Server, serve

__all__ = [
    "HASH_BYTES",
    "TICKET_BYTES",
    "Answer",
    "AttachReply",
    "Authorize",
    "BackendPeer",
    "BackendService",
    "DigestReply",
    "Engine",
    "EtcdCompare",
    "EtcdDelete",
    "EtcdGet",
    "EtcdOperation",
    "EtcdPeer",
    "EtcdPut",
    "EtcdRefused",
    "EtcdWatch",
    "FetchPart",
    "KeyValue",
    "ListPart",
    "LookupReply",
    "MutateReply",
    "RangeReply",
    "Server",
    "Shared",
    "StatsReply",
    "TouchReply",
    "TxnReply",
    "Version",
    "WatchEvent",
    "WatchPart",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name == "BackendPeer":
        from .peer import BackendPeer

        return BackendPeer
    if name in ("EtcdPeer", "EtcdWatch"):
        from . import etcd

        return getattr(etcd, name)
    if name in ("Server", "serve"):
        from . import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
