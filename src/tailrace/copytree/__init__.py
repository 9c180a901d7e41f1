"""The copy tree: which cluster copies from which, and the readers, writers and schedulers that bear it."""

from .cache_source import CacheSource
from .cache_target import CacheTarget
from .comparison import Compared, Comparison, Difference, FilesCheck
from .copying import Source
from .durable_source import DurableSource
from .durable_target import DurableTarget
from .reader import Reader
from .reader_link import ReaderLink
from .router import Router, RouterConfig
from .routes import Route
from .schedule import score
from .scheduler import Scheduler
from .settings import StreamSettings
from .world_record import Sending, WorldFollower, WorldState, change_map, load, publish_trees, report, set_map
from .writer import Target, Writer

__all__ = [
    "CacheSource",
    "CacheTarget",
    "Compared",
    "Comparison",
    "Difference",
    "DurableSource",
    "DurableTarget",
    "FilesCheck",
    "Reader",
    "ReaderLink",
    "Route",
    "Router",
    "RouterConfig",
    "Scheduler",
    "Sending",
    "Source",
    "StreamSettings",
    "Target",
    "WorldFollower",
    "WorldState",
    "Writer",
    "change_map",
    "load",
    "publish_trees",
    "report",
    "score",
    "set_map",
]
