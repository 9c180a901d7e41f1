"""One snapshot of one keyed shard: its name, its bytes, and how updates are folded into it (A69). Pure.

A snapshot holds, for every key, what the last message before its position set it to. Its file is an Arrow file that any
tool reads, with what it stands for in the schema; its name carries its checksum (docs/formats/snapshots.md).

Invariants: no key twice; no key without a value; a tombstone takes its key out.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ..native import crc32c

if TYPE_CHECKING:
    import pyarrow

VERSION = 1
_META = b"tailrace"
_ROWS = 1 << 16  # of a record batch: enough to compress well, small enough to be unpacked side by side
_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"([0-9]{20})-([0-9]{20})-([0-9a-f]{8})\.arrow")


@dataclass(frozen=True, slots=True, order=True)
class SnapshotFile:
    """The name of a snapshot. The largest is the newest: furthest in the shard, and of two that stand there, the later.

    >>> SnapshotFile(position=4096, created_us=7, checksum=0xAB).name
    '00000000000000004096-00000000000000000007-000000ab.arrow'
    >>> SnapshotFile.parse("00000000000000004096-00000000000000000007-000000ab.arrow")
    SnapshotFile(position=4096, created_us=7, checksum=171)
    >>> SnapshotFile.parse("notes.txt") is None
    True
    """

    position: int
    created_us: int
    checksum: int  # CRC-32C of the whole file

    @property
    def name(self) -> str:
        return f"{self.position:020d}-{self.created_us:020d}-{self.checksum:08x}.arrow"

    @classmethod
    def parse(cls, name: str) -> "SnapshotFile | None":
        match = _NAME.fullmatch(name)
        if match is None or max(int(match[1]), int(match[2])) > _NUMBER_MAX:
            return None
        return cls(int(match[1]), int(match[2]), int(match[3], 16))


def snapshots_of(names: Iterable[str]) -> list[SnapshotFile]:
    """The snapshots among a folder's names, newest first."""
    return sorted((file for name in names if (file := SnapshotFile.parse(name))), reverse=True)


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """What a snapshot stands for: all messages of the shard before `position`."""

    stream: str
    incarnation: str
    shard: int
    position: int
    created_us: int


def snapshot_schema() -> "pyarrow.Schema":
    """The columns of a snapshot. `time_us` is that of the message that set the value."""
    import pyarrow as pa

    return pa.schema(
        [
            pa.field("key", pa.large_binary(), nullable=False),
            pa.field("value", pa.large_binary(), nullable=False),
            pa.field("time_us", pa.int64(), nullable=False),
        ]
    )


def encode(meta: SnapshotMeta, table: "pyarrow.Table") -> tuple[SnapshotFile, memoryview]:
    """The name and the bytes. The table is as `fold` and `columns` give it."""
    import pyarrow as pa

    told = json.dumps({"version": VERSION, "keys": table.num_rows, **asdict(meta)})
    schema = snapshot_schema().with_metadata({_META: told.encode()})
    compression = "zstd" if pa.Codec.is_available("zstd") else None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as out:
        out.write_table(table.replace_schema_metadata(schema.metadata), max_chunksize=_ROWS)
    content = memoryview(sink.getvalue())
    return SnapshotFile(meta.position, meta.created_us, crc32c(content)), content


def decode(file: SnapshotFile, content: Any) -> "tuple[SnapshotMeta, pyarrow.Table]":
    """What `encode` was given, from untrusted bytes. ValueError says what is wrong with them."""
    import pyarrow as pa

    if crc32c(content) != file.checksum:
        raise ValueError("fails the checksum in its name: it is damaged or only half there")
    try:
        source = pa.ipc.open_file(pa.py_buffer(content))
        metadata = source.schema.metadata
    except (pa.ArrowException, ValueError, TypeError, OSError) as wrong:
        raise ValueError(f"is not an Arrow file: {_short(wrong)}") from None
    meta, keys = _meta(metadata)
    try:
        table = source.read_all()
        table.validate(full=True)  # before anything looks at the bytes: offsets may lead anywhere
        if any(table.column(name).null_count for name in ("key", "value", "time_us")):
            raise ValueError("rows without a key, a value or a time")
        table = table.select(["key", "value", "time_us"]).cast(snapshot_schema())
    except (pa.ArrowException, ValueError, KeyError, TypeError, OSError, MemoryError) as wrong:
        raise ValueError(f"is not a snapshot that can be read: {_short(wrong)}") from None
    if table.num_rows != keys:
        raise ValueError(f"has {table.num_rows} keys, but says that it has {keys}")
    if meta.position != file.position:
        raise ValueError(f"says inside that it stands at position {meta.position}, not where its name says")
    return meta, table


def _meta(metadata: dict[bytes, bytes] | None) -> tuple[SnapshotMeta, int]:
    try:
        told = json.loads((metadata or {})[_META])
        if told.pop("version") != VERSION:
            raise ValueError(f"has another format version than {VERSION}, which is what this Tailrace reads")
        keys = told.pop("keys")
        meta = SnapshotMeta(**told)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError, UnicodeDecodeError) as wrong:
        raise ValueError(f"does not say what it stands for: {_short(wrong)}") from None
    numbers = (meta.shard, meta.position, meta.created_us, keys)
    if not all(type(number) is int and 0 <= number <= _NUMBER_MAX for number in numbers):
        raise ValueError("does not say what it stands for: a number is not one")
    return meta, keys


def _short(wrong: BaseException) -> str:
    return (str(wrong).splitlines() or [type(wrong).__name__])[0][:200]


def columns(keys: Any, values: Any, times_us: Any) -> "pyarrow.Table":
    """What somebody brings for a snapshot: Arrow arrays, or anything Arrow makes arrays of. ValueError or TypeError
    says why they cannot be one. times_us: one for each key, or one for all."""
    import pyarrow as pa

    table = pa.table([_binary(keys, "keys"), _binary(values, "values")], names=["key", "value"])
    if isinstance(times_us, int):
        times = pa.repeat(pa.scalar(times_us, pa.int64()), table.num_rows)
    else:
        times = times_us if isinstance(times_us, pa.Array | pa.ChunkedArray) else pa.array(times_us, pa.int64())
        times = times.cast(pa.int64())
    table = table.append_column("time_us", times)
    for name in table.column_names:
        if missing := table.column(name).null_count:
            raise ValueError(
                f"{missing} rows have no {name}; a snapshot has only keys that are there. Nothing was written"
            )
    if doubles := table.num_rows - len(set(table.column("key").to_pylist())):
        raise ValueError(f"{doubles} keys come more than once. Nothing was written")
    return table.cast(snapshot_schema())


def _binary(column: Any, what: str) -> Any:
    import pyarrow as pa

    if not isinstance(column, pa.Array | pa.ChunkedArray):
        column = pa.array(column, pa.large_binary())
    kind = column.type
    if not any(
        fits(kind)
        for fits in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
        )
    ):
        raise TypeError(f"the {what} are of type {kind}; use binary or string. Nothing was written")
    return column.cast(pa.large_binary())


def fold(
    base: "pyarrow.Table | None", updates: Sequence["pyarrow.Table"], before: int | None = None
) -> "pyarrow.Table":
    """A snapshot's table with updates (tables of `Batch.to_arrow`, in order) put on top, up to the position `before`.

    Messages without a key set nothing.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = snapshot_schema()
    open_schema = pa.schema([field.with_nullable(True) for field in schema])
    tables = [(schema.empty_table() if base is None else base).cast(open_schema)]
    for update in updates:
        if before is not None:
            update = update.filter(pc.less(update.column("position"), before))
        update = update.filter(pc.is_valid(update.column("key")))
        parts = [update.column("key"), update.column("value"), update.column("timestamp").cast(pa.int64())]
        tables.append(pa.table(parts, names=schema.names).cast(open_schema))
    table = pa.concat_tables(tables)
    # For each key its last row. Python's dict does this several times faster than Arrow groups binary keys.
    last = dict(zip(table.column("key").to_pylist(), range(table.num_rows), strict=True))
    if len(last) < table.num_rows:
        table = table.take(pa.array(last.values(), pa.int64(), size=len(last)))
    if table.column("value").null_count:
        table = table.filter(pc.is_valid(table.column("value")))
    return table.cast(schema)


def kept(files: Sequence[SnapshotFile], good: Sequence[SnapshotFile], keeps: int | None, start: int) -> int:
    """How many of a shard's snapshots stay, from the newest on.

    files: all, newest first. good: those of them that are known to be whole, newest first. start: where the messages
    that are kept begin. The newest good one always stays, and so does whatever is newer: it may be looked into.
    """
    if not good:
        return len(files)
    if keeps is not None:
        return files.index(good[keeps - 1]) + 1 if len(good) >= keeps else len(files)
    useful = sum(file.position >= start for file in files)
    return max(useful, files.index(good[0]) + 1)
