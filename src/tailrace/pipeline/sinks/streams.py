"""A stream as a sink: the output of a unit becomes messages, all of them at once, and once.

Each unit is a transaction (`streams.Transactions`) of the pipeline, and the transaction's record carries the account of
all that the pipeline has published there, this unit with it (`published.py`). So the newest record is all that need be
kept, however long the pipeline runs:

    streams/STREAM/transactions/kept/pipeline-NAME/     records; the newest one has the account

Invariant: who commits has read the account after it took the pipeline's transactions over, and loses them to whoever
takes them over later. So the account that a unit is judged by is the last one, at every site.
"""

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...config import StreamConfig
from ...env import SystemClock
from ...errors import ConfigError, Corrupt, Fenced, TailraceError
from ...files import Files, PosixFiles
from ...files.lengths import hint_slot
from ...model import check_name
from ...native.hints import Hints
from ...streams import Catalog, Shadow, Stage, TransactionName, Transactions, newest
from ..published import Stretch, add, decode, encode, has_all
from ..staging import Footer, read_table

if TYPE_CHECKING:
    import pyarrow

    from ...streams.shadow import Appended

_TRIES = 30  # against other sites that publish at the same moment
_PAUSE_S = 0.02
_APP = "pipeline-"

#: What brings a stream's messages to the cache, made when the first of them comes; None where there is no cache.
Feed = Callable[[str], Shadow | None]


@dataclass(frozen=True, slots=True)
class StreamSink:
    root: str
    stream: str
    shards: int | None = None
    feed: Feed | None = field(default=None, compare=False)

    @property
    def place(self) -> str:
        return f"the stream {self.stream}"

    def staging_folder(self, default: str) -> str:
        return default

    def prepare(self) -> None:
        self._open(PosixFiles(self.root))

    def has(self, footer: Footer) -> bool:
        files = PosixFiles(self.root)
        _, note = newest(files, self.stream, _app(footer.pipeline))
        return has_all(_account(note, self.stream), footer.ranges, footer.born)

    def publish(self, footer: Footer, staged: str) -> None:
        with _desks_changing:
            desk = _desks.setdefault((self.root, self.stream, footer.pipeline), _Desk(self, footer.pipeline))
        desk.publish(footer, staged)
        self._wake(PosixFiles(self.root))

    def close(self) -> None:
        """Let the stream's shards go; the next unit takes them again."""
        with _desks_changing:
            mine = [key for key in _desks if key[:2] == (self.root, self.stream)]
            desks = [_desks.pop(key) for key in mine]
        for desk in desks:
            desk.close()

    def outputs(self) -> Iterator[Footer]:
        files = PosixFiles(self.root)
        for app in files.list(f"streams/{self.stream}/transactions/kept"):
            if app.startswith(_APP):
                _, note = newest(files, self.stream, app)
                if stretches := _account(note, self.stream):
                    yield Footer(app.removeprefix(_APP), "", (), {}, stretches)

    def _open(self, files: Files) -> StreamConfig:
        return Catalog(files).open(self.stream, StreamConfig(), self.shards)

    def _wake(self, files: Files) -> None:
        """Those who wait for news of the stream on this machine."""
        with suppress(OSError, TailraceError):  # they look for themselves, a little later
            hints = Hints(os.path.join(self.root, "hints"), make=True)
            hints.raise_(hint_slot(Catalog(files).incarnation(self.stream)))


class _Desk:
    """Publishes for one pipeline, from this process. Keeps the shards between units, so that units follow each other in
    one file, until another site takes them."""

    def __init__(self, sink: StreamSink, pipeline: str) -> None:
        self._sink, self._app = sink, _app(pipeline)
        self._busy, self._clock = threading.Lock(), SystemClock()
        self._transactions: Transactions | None = None
        self._shadow: Shadow | None = None

    def publish(self, footer: Footer, staged: str) -> None:
        rows = read_table(staged)
        files = PosixFiles(self._sink.root)
        with self._busy:
            for tried in range(_TRIES):
                try:
                    self._publish(files, footer, rows)
                    return
                except Fenced:  # another site has just published something: what we know is old
                    self._drop()
                    if tried == _TRIES - 1:
                        raise
                    # Not all at the same moment again, or they take the stream from each other for ever.
                    self._clock.wait(threading.Event(), random.uniform(0, _PAUSE_S * (tried + 1)))

    def _publish(self, files: Files, footer: Footer, rows: "pyarrow.Table") -> None:
        config = self._sink._open(files)
        if self._transactions is None:
            self._transactions = Transactions(
                files, self._clock, self._sink.stream, config, self._app, on_append=self._tell
            )
        batch, note = self._transactions.take_over()
        known = _account(note, self._sink.stream)
        if has_all(known, footer.ranges, footer.born):
            return
        stage = Stage(
            files,
            self._sink.stream,
            TransactionName(self._app, batch + 1),
            shards=config.shards,
            message_bytes_max=config.message_bytes_max,
            file_bytes=config.file_bytes,
        )
        try:
            for one in rows.to_batches():
                _add(stage, one)
            output = stage.finish()
        except BaseException:
            stage.discard()
            raise
        account = encode(add(known, footer.ranges, footer.born))
        self._transactions.commit(batch + 1, [output], account)

    def _tell(self, appended: "Appended") -> None:
        if self._shadow is None and self._sink.feed is not None:
            self._shadow = self._sink.feed(self._sink.stream)
        if self._shadow is not None:
            self._shadow.appended(appended)

    def _drop(self) -> None:
        if self._transactions is not None:
            self._transactions.close()
            self._transactions = None

    def close(self) -> None:
        with self._busy:
            self._drop()
            if self._shadow is not None:
                self._shadow.close()
                self._shadow = None


_desks: dict[tuple[str, str, str], _Desk] = {}
_desks_changing = threading.Lock()


def _app(pipeline: str) -> str:
    return f"{_APP}{pipeline}"


def _account(note: str, stream: str) -> tuple[Stretch, ...]:
    try:
        return decode(note) if note else ()
    except ValueError as wrong:
        raise Corrupt(f"what a pipeline noted of its outputs in {stream} {wrong}") from None


def into_stream(world: str | os.PathLike[str], stream: str, *, shards: int | None = None) -> StreamSink:
    """A stream of a world in a folder. The output has the column `value` and, if it likes, `key` and `shard`."""
    return StreamSink(os.path.abspath(os.fspath(world)), check_name(stream, "stream"), shards)


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
