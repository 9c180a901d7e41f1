"""Tailrace delivers ordered messages from a few producers to thousands of consumers, through plain files.

>>> import tailrace, tempfile
>>> world = tailrace.open(tempfile.mkdtemp())
>>> with world.producer("prices", shards=4) as producer:
...     producer.send(b"9.99", key=b"sku-1")
>>> for batch in world.consumer("prices", start="earliest", follow=False):
...     for message in batch:
...         print(message.key, message.value)
b'sku-1' b'9.99'
"""

from . import errors
from .config import CacheClientConfig, CacheConfig, ConsumerConfig, ProducerConfig, Retention, StreamConfig, WorldConfig
from .errors import TailraceError
from .native import Message
from .node.world import World
from .node.world import open_world as open
from .streams import Batch, Consumer, Producer, Snapshot, View

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "CacheClientConfig",
    "CacheConfig",
    "Consumer",
    "ConsumerConfig",
    "Message",
    "Producer",
    "ProducerConfig",
    "Retention",
    "Snapshot",
    "StreamConfig",
    "TailraceError",
    "View",
    "World",
    "WorldConfig",
    "errors",
    "open",
]
