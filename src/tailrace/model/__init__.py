"""The words of the design as frozen types. Standard library only; no input or output."""

from .copy_tree import CopyTree, Hop
from .message_file import MessageFile
from .names import check_name
from .world_map import Cluster, Demand, Link, Sizes, Tariff, WorldMap

__all__ = ["Cluster", "CopyTree", "Demand", "Hop", "Link", "MessageFile", "Sizes", "Tariff", "WorldMap", "check_name"]
