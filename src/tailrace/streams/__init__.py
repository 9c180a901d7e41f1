"""Streams: messages in sharded, append-only files. Producer, consumer, checkpoints, snapshots, views, retention."""

from .ambassador import Ambassador
from .batch import Batch, arrow_schema
from .board import Board
from .catalog import Catalog, ShardStatus
from .checkpoints import Checkpoints
from .consumer import Consumer
from .delays import Delays
from .in_place import SHARDS_MAX, Nearby, SheetPaths, Showing, begin_sheets
from .layers import Layers, Source, Watch
from .lodging import Lodging, Moves, Outlook, Patience
from .monitor import PERCENTILES, Monitor
from .near import NearChunks, NearLengths, NearWatch
from .producer import Producer
from .ranges import FileRange, cut_positions, file_ranges, find_position, next_cut, read_arrow, read_range
from .retention import Collected, collect
from .shadow import Appended, Shadow
from .shard_log import ShardLog
from .snapshots import Snapshot, Snapshots, SnapshotStatus
from .staging import Output, Stage
from .tail import ShardTail, Start
from .transaction import TransactionName
from .transactions import Transactions, complete_stale, discard, newest
from .verifier import Checked, Finding, verify_shard
from .view import OnChange, View

__all__ = [
    "PERCENTILES",
    "SHARDS_MAX",
    "Ambassador",
    "Appended",
    "Batch",
    "Board",
    "Catalog",
    "Checked",
    "Checkpoints",
    "Collected",
    "Consumer",
    "Delays",
    "FileRange",
    "Finding",
    "Layers",
    "Lodging",
    "Monitor",
    "Moves",
    "NearChunks",
    "NearLengths",
    "NearWatch",
    "Nearby",
    "OnChange",
    "Outlook",
    "Output",
    "Patience",
    "Producer",
    "Shadow",
    "ShardLog",
    "ShardStatus",
    "ShardTail",
    "SheetPaths",
    "Showing",
    "Snapshot",
    "SnapshotStatus",
    "Snapshots",
    "Source",
    "Stage",
    "Start",
    "TransactionName",
    "Transactions",
    "View",
    "Watch",
    "arrow_schema",
    "begin_sheets",
    "collect",
    "complete_stale",
    "cut_positions",
    "discard",
    "file_ranges",
    "find_position",
    "newest",
    "next_cut",
    "read_arrow",
    "read_range",
    "verify_shard",
]
