"""The copy tree: routes of streams between clusters, and the readers, writers and schedulers that bear them."""

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
    "DurableSource",
    "DurableTarget",
    "Reader",
    "ReaderLink",
    "Route",
    "Scheduler",
    "StreamSettings",
    "Target",
    "Writer",
    "read_origin",
    "score",
]
