"""A table brought into a keyed stream: as snapshots the first time, then as the updates that make the one the other.

What counts is the state, not how often it was brought: whoever brings the same table again sends nothing, and one that
died half-way is simply started again (A69).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..config import StreamConfig
from ..env import SystemClock
from ..errors import ConfigError
from ..files import Files, PosixFiles
from ..streams import Catalog, Output, Snapshots, Stage, TransactionName, Transactions, read_range
from ..streams.snapshot import fold

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class Brought:
    """Of one shard. `output`: its updates, which wait for those of the other shards."""

    shard: int
    in_snapshot: int
    updated: int
    deleted: int
    unchanged: int
    output: Output | None


@dataclass(frozen=True, slots=True)
class Carried:
    """A snapshot of a shard in another cluster. `waits`: why nothing was brought; empty if it was."""

    shard: int
    target: str
    position: int
    keys: int
    waits: str


def difference(current: "pyarrow.Table", wanted: "pyarrow.Table") -> "pyarrow.Table":
    """The messages that turn one state into the other: a value for each key that is new or has another, none for those
    that are gone. Tables of `key` and `value`.

    >>> import pyarrow as pa
    >>> state = pa.table({"key": [b"a", b"b", b"c"], "value": [b"1", b"2", b"3"]})
    >>> difference(state, pa.table({"key": [b"a", b"c", b"d"], "value": [b"1", b"9", b"4"]})).to_pylist()
    [{'key': b'c', 'value': b'9'}, {'key': b'd', 'value': b'4'}, {'key': b'b', 'value': None}]
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    both = [
        pa.table({name: table.column(name).cast(pa.large_binary()) for name in ("key", "value")}).combine_chunks()
        for table in (current, wanted)
    ]
    before, after = both
    places = pc.index_in(after.column("key"), before.column("key"))
    same = pc.fill_null(pc.equal(before.column("value").take(places), after.column("value")), False)
    changed = after.filter(pc.invert(same))
    gone = before.filter(pc.invert(pc.is_in(before.column("key"), after.column("key")))).column("key")
    deleted = pa.table({"key": gone, "value": pa.nulls(len(gone), pa.large_binary())})
    return pa.concat_tables([changed, deleted])


class KeyedStream:
    def __init__(self, root: str, stream: str, *, shards: int | None = None, make: bool = False) -> None:
        self.files: Files = PosixFiles(root)
        self._clock, self.stream = SystemClock(), stream
        catalog = Catalog(self.files)
        self.config: StreamConfig = catalog.open(stream, StreamConfig(), shards) if make else catalog.config(stream)
        self._snapshots = Snapshots(self.files, self._clock, catalog, stream)

    def bring(self, shard: int, wanted: "pyarrow.Table", batch: int) -> Brought:
        """The state that a shard is to have: written as a snapshot if it has none yet, else staged as updates."""
        import pyarrow.compute as pc

        if pc.count_distinct(wanted.column("key")).as_py() != wanted.num_rows:
            raise ConfigError(f"the key is not unique: {wanted.num_rows} rows of shard {shard} have fewer keys")
        (end,) = self._snapshots.ends([shard]).values()
        if end == 0 and not self._snapshots.status(shard):
            self._snapshots.write(shard, 0, wanted.column("key"), wanted.column("value"))
            return Brought(shard, wanted.num_rows, 0, 0, 0, None)
        updates = difference(self._state(shard, end), wanted)
        deleted = updates.column("value").null_count
        output = self._stage(shard, updates, batch) if updates.num_rows else None
        changed = updates.num_rows - deleted
        return Brought(shard, 0, changed, deleted, wanted.num_rows - changed, output)

    def _state(self, shard: int, end: int) -> "pyarrow.Table":
        base = self._snapshots.load(shard)
        batches = read_range(self.files, self._clock, self.stream, shard, base.position, end)
        return fold(base.table, [batch.to_arrow() for batch in batches], end)

    def _stage(self, shard: int, updates: "pyarrow.Table", batch: int) -> Output:
        stage = Stage(
            self.files,
            self.stream,
            TransactionName(_APP, batch),
            shards=self.config.shards,
            message_bytes_max=self.config.message_bytes_max,
            file_bytes=self.config.file_bytes,
        )
        try:
            for part in updates.to_batches():
                stage.add(part.column("value"), part.column("key"), shard=shard)
            return stage.finish()
        except BaseException:
            stage.discard()
            raise

    def carry(self, shard: int, target: str) -> Carried:
        """Bring the newest snapshot of a shard to the cluster whose files lie in `target`, where it appears whole. The
        copy tree brings the messages; until it has brought those before the snapshot, this waits for a later call."""
        here = self._snapshots.load(shard)
        files = PosixFiles(target)
        there = Snapshots(files, self._clock, Catalog(files), self.stream)
        newest = max((one.position for one in there.status(shard)), default=-1)
        (end,) = there.ends([shard]).values()
        if here.table is None or newest >= here.position:
            return Carried(shard, target, max(newest, 0), 0, "there already" if newest >= 0 else "none to bring")
        if end < here.position:
            return Carried(shard, target, max(newest, 0), 0, f"messages up to {end} only are there")
        table = here.table
        there.write(shard, here.position, table.column("key"), table.column("value"), table.column("time_us"))
        return Carried(shard, target, here.position, table.num_rows, "")

    def commit(self, batch: int, brought: list[Brought]) -> None:
        """The updates of all shards become visible together."""
        outputs = [one.output for one in brought if one.output is not None]
        if outputs:
            transactions = Transactions(self.files, self._clock, self.stream, self.config, _APP)
            try:
                transactions.commit(batch, outputs)
            finally:
                transactions.close()


_APP = "extract"
