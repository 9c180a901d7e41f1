"""Which cluster copies from which: a tree per stream, chosen by price, distance and fan-out. Pure."""

from .explanation import Alternative, Reason, explain
from .outages import Blame, blame
from .plan import Plan, Planner
from .preferences import PRICE_ONLY, Preferences
from .refuge import refuges
from .rerouting import (
    CaughtUp,
    ClusterReported,
    ClusterSilent,
    Patience,
    PublishTree,
    Rerouting,
    Tick,
    WorldChanged,
)
from .task import Conditions, Load

__all__ = [
    "PRICE_ONLY",
    "Alternative",
    "Blame",
    "CaughtUp",
    "ClusterReported",
    "ClusterSilent",
    "Conditions",
    "Load",
    "Patience",
    "Plan",
    "Planner",
    "Preferences",
    "PublishTree",
    "Reason",
    "Rerouting",
    "Tick",
    "WorldChanged",
    "blame",
    "explain",
    "refuges",
]
