"""How processes talk: of a cache, of the copy tree, of files from afar, and with etcd. Messages, servers and peers over
gRPC, mutual TLS.

Nothing above this room sees gRPC, and importing this room does not load it: servers and peers do, when they are first
named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .check_messages import (
    BLOCK_HASH_BYTES,
    HASHED_BYTES_MAX,
    HASHES_MAX,
    Blocks,
    CheckService,
    Held,
    Holding,
    block_hash,
)
from .copy_messages import (
    Admit,
    Batch,
    CopyService,
    Opening,
    Operation,
    Order,
    Orders,
    Piece,
    Report,
    Running,
    Standing,
    Storage,
    WorkService,
)
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
from .files_messages import (
    RANGES_MAX,
    READ_BYTES_MAX,
    ByteRange,
    FileBytes,
    FilesService,
    Listing,
    NewestSegment,
    Reach,
    ShardSight,
    Sight,
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
    from .check_peer import CheckPeer
    from .copy_peer import CopyCall, CopyPeer, WorkCall
    from .copy_server import serve_copies
    from .etcd import EtcdPeer, EtcdWatch
    from .files_peer import FilesPeer
    from .peer import BackendPeer
    from .server import Server, serve

__all__ = [
    "BLOCK_HASH_BYTES",
    "HASHED_BYTES_MAX",
    "HASHES_MAX",
    "HASH_BYTES",
    "RANGES_MAX",
    "READ_BYTES_MAX",
    "TICKET_BYTES",
    "Admit",
    "Answer",
    "AttachReply",
    "Authorize",
    "BackendPeer",
    "BackendService",
    "Batch",
    "Blocks",
    "ByteRange",
    "CheckPeer",
    "CheckService",
    "CopyCall",
    "CopyPeer",
    "CopyService",
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
    "FileBytes",
    "FilesPeer",
    "FilesService",
    "Held",
    "Holding",
    "KeyValue",
    "ListPart",
    "Listing",
    "LookupReply",
    "MutateReply",
    "NewestSegment",
    "Opening",
    "Operation",
    "Order",
    "Orders",
    "Piece",
    "RangeReply",
    "Reach",
    "Report",
    "Running",
    "Server",
    "ShardSight",
    "Shared",
    "Sight",
    "Standing",
    "StatsReply",
    "Storage",
    "TouchReply",
    "TxnReply",
    "Version",
    "WatchEvent",
    "WatchPart",
    "WorkCall",
    "WorkService",
    "block_hash",
    "serve",
    "serve_copies",
]


_LAZY = {
    "BackendPeer": "peer",
    "CheckPeer": "check_peer",
    "CopyCall": "copy_peer",
    "CopyPeer": "copy_peer",
    "EtcdPeer": "etcd",
    "EtcdWatch": "etcd",
    "FilesPeer": "files_peer",
    "Server": "server",
    "WorkCall": "copy_peer",
    "serve": "server",
    "serve_copies": "copy_server",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
