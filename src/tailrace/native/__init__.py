"""The C core: sums, hashes, records, reused memory. No clock but the message's stamp, no disk, no socket."""

from ._core import (
    ENTRY_BYTES,
    KEY_BYTES_MAX,
    Block,
    Message,
    Packed,
    Packer,
    Records,
    count_to_position,
    count_to_time,
    crc32c,
    crc32c_tables,
    entry_at,
    hash64,
    moved_entries,
    shard_of,
    verify,
)

__all__ = [
    "ENTRY_BYTES",
    "KEY_BYTES_MAX",
    "Block",
    "Message",
    "Packed",
    "Packer",
    "Records",
    "count_to_position",
    "count_to_time",
    "crc32c",
    "crc32c_tables",
    "entry_at",
    "hash64",
    "moved_entries",
    "shard_of",
    "verify",
]
