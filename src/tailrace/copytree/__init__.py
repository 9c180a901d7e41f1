"""The copy tree: routes of streams between clusters, and the readers, writers and schedulers that bear them."""

from .cache_source import CacheSource
from .cache_target import CacheTarget
from .copying import Source
from .durable_source import DurableSource
from .durable_target import DurableTarget
from .reader import Reader
from .reader_link import ReaderLink
from .routes import Route
from .schedule import score
from .scheduler import Scheduler
from .settings import StreamSettings, read_origin
from .writer import Target, Writer

__all__ = [
    "CacheSource",
    "CacheTarget",
    "DurableSource",
    "DurableTarget",
    "Reader",
    "ReaderLink",
    "Route",
    "Scheduler",
    "Source",
    "StreamSettings",
    "Target",
    "Writer",
    "read_origin",
    "score",
]
