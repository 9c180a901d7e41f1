"""CliqueMap: a replicated cache in memory. Backends write, clients read their memory without asking."""

from .aio import AsyncCache
from .backend import Backend
from .client import Cache
from .peer import Peer
from .registry import BackendRecord, CacheRecord, Changes, Registry, Standing, Tenure
from .versions import Version
from .watch import Watch
from .ways import Ways

__all__ = [
    "AsyncCache",
    "Backend",
    "BackendRecord",
    "Cache",
    "CacheRecord",
    "Changes",
    "Peer",
    "Registry",
    "Standing",
    "Tenure",
    "Version",
    "Watch",
    "Ways",
]
