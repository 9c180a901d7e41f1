"""A stream as a sink: the output of a unit becomes messages, all of them at once, and once.

Each unit is a transaction of its own (`streams.Transactions`), whose record stays beside the stream and is what tells a
unit that comes again. What input it was made of is noted before, under the same name:

    streams/STREAM/transactions/kept/NAME/     the record: the messages are there
    pipelines/outputs/STREAM/NAME              pipeline, unit and input ranges
"""

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...config import StreamConfig
from ...env import SystemClock
from ...errors import ConfigError, TailraceError
from ...files import Files, PosixFiles
from ...files.lengths import hint_slot
from ...model import check_name
from ...native.hints import Hints
from ...streams import Catalog, Stage, TransactionName, Transactions
from ..ranges import decode, encode
from ..staging import Footer, read_table

if TYPE_CHECKING:
    import pyarrow


@dataclass(frozen=True, slots=True)
class StreamSink:
    root: str
    stream: str
    shards: int | None = None

    @property
    def place(self) -> str:
        return f"the stream {self.stream}"

    def staging_folder(self, default: str) -> str:
        return default

    def prepare(self) -> None:
        self._open(PosixFiles(self.root))

    def has(self, unit: str) -> bool:
        files, name = PosixFiles(self.root), _name(unit)
        folder = f"streams/{self.stream}/transactions"
        if str(name) in files.list(f"{folder}/pending"):
            # Committed, and perhaps half carried out: whoever owns the application completes that first.
            transactions = self._transactions(files, name)
            try:
                transactions.commit(0, [])
            finally:
                transactions.close()
        return str(name) in files.list(f"{folder}/kept/{name.app}")

    def publish(self, footer: Footer, staged: str) -> None:
        if self.has(footer.unit):
            return
        files, name = PosixFiles(self.root), _name(footer.unit)
        rows = read_table(staged)
        note = {"pipeline": footer.pipeline, "unit": footer.unit, "ranges": encode(footer.ranges)}
        files.make_folder(self._notes)
        files.publish(f"{self._notes}/{name.app}", json.dumps(note).encode())
        config = self._open(files)
        stage = Stage(
            files,
            self.stream,
            name,
            shards=config.shards,
            message_bytes_max=config.message_bytes_max,
            file_bytes=config.file_bytes,
        )
        try:
            for batch in rows.to_batches():
                _add(stage, batch)
            output = stage.finish()
        except BaseException:
            stage.discard()
            raise
        transactions = self._transactions(files, name)
        try:
            transactions.commit(0, [output])
        finally:
            transactions.close()
        self._wake(files)

    def outputs(self) -> Iterator[Footer]:
        files = PosixFiles(self.root)
        for name in files.list(self._notes):
            note = json.loads(files.read(f"{self._notes}/{name}"))
            if self.has(note["unit"]):
                yield Footer(note["pipeline"], note["unit"], decode(note["ranges"]))

    @property
    def _notes(self) -> str:
        return f"pipelines/outputs/{self.stream}"

    def _open(self, files: Files) -> StreamConfig:
        return Catalog(files).open(self.stream, StreamConfig(), self.shards)

    def _transactions(self, files: Files, name: TransactionName) -> Transactions:
        return Transactions(files, SystemClock(), self.stream, self._open(files), name.app)

    def _wake(self, files: Files) -> None:
        """Those who wait for news of the stream on this machine."""
        try:
            hints = Hints(os.path.join(self.root, "hints"), make=True)
            hints.raise_(hint_slot(Catalog(files).incarnation(self.stream)))
        except (OSError, TailraceError):
            pass  # they look for themselves, a little later


def into_stream(world: str | os.PathLike[str], stream: str, *, shards: int | None = None) -> StreamSink:
    """A stream of a world in a folder. The output has the column `value` and, if it likes, `key` and `shard`."""
    return StreamSink(os.path.abspath(os.fspath(world)), check_name(stream, "stream"), shards)


def _name(unit: str) -> TransactionName:
    """A unit's name may be too long for a file's."""
    return TransactionName(f"unit-{hashlib.sha256(unit.encode()).hexdigest()[:40]}", 0)


def _add(stage: Stage, batch: "pyarrow.RecordBatch") -> None:
    import pyarrow.compute as pc

    names = batch.schema.names
    if not names:
        return
    if "value" not in names:
        raise ConfigError(f"the output has the columns {', '.join(names)}; a stream needs one named value")
    values, keys = batch.column("value"), batch.column("key") if "key" in names else None
    if "shard" not in names:
        stage.add(values, keys)
        return
    shards = batch.column("shard")
    for shard in pc.unique(shards).to_pylist():
        mine = pc.equal(shards, shard)
        stage.add(values.filter(mine), None if keys is None else keys.filter(mine), shard=shard)
