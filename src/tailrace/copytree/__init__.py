"""The copy tree: routes of streams between clusters, and the readers, writers and schedulers that bear them."""

from .durable_source import DurableSource
from .durable_target import DurableTarget
from .reader import Reader
from .settings import StreamSettings, read_origin
from .writer import Target, Writer

__all__ = ["DurableSource", "DurableTarget", "Reader", "StreamSettings", "Target", "Writer", "read_origin"]
