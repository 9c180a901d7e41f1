"""Streams: messages in sharded, append-only files. Producer, consumer, checkpoints, retention."""

from .batch import Batch, arrow_schema
from .catalog import Catalog, ShardStatus
from .checkpoints import Checkpoints
from .consumer import Consumer
from .producer import Producer
from .retention import Collected, collect
from .shard_log import ShardLog
from .tail import ShardTail, Start
from .verifier import Checked, Finding, verify_shard

__all__ = [
    "Batch",
    "Catalog",
    "Checked",
    "Checkpoints",
    "Collected",
    "Consumer",
    "Finding",
    "Producer",
    "ShardLog",
    "ShardStatus",
    "ShardTail",
    "Start",
    "arrow_schema",
    "collect",
    "verify_shard",
]
