"""How processes of a cache talk: the messages, a server and a peer over gRPC, mutual TLS.

Nothing above this room sees gRPC, and importing this room does not load it: `serve` and `BackendPeer` do, when they
are first named.
"""

from typing import TYPE_CHECKING, Any

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
    "FetchPart",
    "ListPart",
    "LookupReply",
    "MutateReply",
    "Server",
    "Shared",
    "StatsReply",
    "TouchReply",
    "Version",
    "serve",
]


def __getattr__(name: str) -> Any:
    if name == "BackendPeer":
        from .peer import BackendPeer

        return BackendPeer
    if name in ("Server", "serve"):
        from . import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
