"""Streams: messages in sharded, append-only files. Producer, consumer, checkpoints, snapshots, views, retention."""

from .ambassador import Ambassador
from .batch import Batch, arrow_schema
from .board import Board
from .catalog import Catalog, ShardStatus
from .checkpoints import Checkpoints
from .consumer import Consumer
from .delays import Delays
from .layers import Layers, Source
from .monitor import PERCENTILES, Monitor
from .near import NearChunks, NearLengths
from .producer import Producer
from .retention import Collected, collect
from .shadow import Shadow
from .shard_log import ShardLog
from .snapshots import Snapshot, Snapshots, SnapshotStatus
from .tail import ShardTail, Start
from .verifier import Checked, Finding, verify_shard
from .view import OnChange, View

__all__ = [
    "PERCENTILES",
    "Ambassador",
    "Batch",
    "Board",
    "Catalog",
    "Checked",
    "Checkpoints",
    "Collected",
    "Consumer",
    "Delays",
    "Finding",
    "Layers",
    "Monitor",
    "NearChunks",
    "NearLengths",
    "OnChange",
    "Producer",
    "Shadow",
    "ShardLog",
    "ShardStatus",
    "ShardTail",
    "Snapshot",
    "SnapshotStatus",
    "Snapshots",
    "Source",
    "Start",
    "View",
    "arrow_schema",
    "collect",
    "verify_shard",
]
