"""Reading a replicated cell, and packing its mutations: `CellClient` asks all backends, `Follower` the head of a
segment, `pack` makes frames, `Watcher` sleeps until a key has another value."""

from ._client import (
    KIND_CAS,
    KIND_ERASE,
    KIND_SET,
    TROUBLE_CONFIG,
    TROUBLE_LINK,
    TROUBLE_VIEW,
    CellClient,
    Couriers,
    Delivery,
    Watcher,
    pack,
    replicas_of,
)
from ._follower import Follower, HeadVigil

__all__ = [
    "KIND_CAS",
    "KIND_ERASE",
    "KIND_SET",
    "TROUBLE_CONFIG",
    "TROUBLE_LINK",
    "TROUBLE_VIEW",
    "CellClient",
    "Couriers",
    "Delivery",
    "Follower",
    "HeadVigil",
    "Watcher",
    "pack",
    "replicas_of",
]
