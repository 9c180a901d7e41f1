"""Which cluster copies from which: a tree per stream, chosen by price, distance and fan-out. Pure."""

from .plan import Plan, Planner
from .preferences import PRICE_ONLY, Preferences
from .task import Conditions, Load

__all__ = ["PRICE_ONLY", "Conditions", "Load", "Plan", "Planner", "Preferences"]
