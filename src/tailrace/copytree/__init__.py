"""Streams travel between clusters: routing decides along which tree, and the coordination store tells everyone."""

from .router import Router, RouterConfig
from .world_record import Sending, WorldFollower, WorldState, change_map, load, publish_trees, report, set_map

__all__ = [
    "Router",
    "RouterConfig",
    "Sending",
    "WorldFollower",
    "WorldState",
    "change_map",
    "load",
    "publish_trees",
    "report",
    "set_map",
]
