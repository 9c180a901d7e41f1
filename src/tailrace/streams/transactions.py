"""Committing transactions, and completing those that somebody else has left half carried out.

    prepare       claim the shards, give every message its position, write what is large as segments, aside
    commit        publish the record, while all claims are held: from here on it has happened, before it has not
    roll forward  append the runs, move the segments into their shards
    finish        put the record away, so that the same batch is known when it comes again

Invariants:
- A batch of an application is committed once. Coming again, it changes nothing, whatever it brings.
- Once committed, all of it becomes visible: by the one who committed it, or by the next who opens one of its shards or
  commits to the stream, or opens a consumer.
- The record is published only while nobody else has claimed the application or one of the shards since they were looked
  at. So no message of anybody else can come to lie where the record wants its own.
docs/decisions/spark-sink.md tells why.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from threading import Event

from ..config import StreamConfig
from ..env import Clock
from ..errors import ConfigError, Corrupt, Fenced, FileMissing, FileProblem, TailraceError
from ..files import Claim, Files
from ..native import ENTRY_BYTES, Block, moved_entries
from .segments import IndexHeader, Segment
from .shadow import Appended
from .shard_files import find_end
from .shard_log import Outline, ShardLog
from .staging import ADOPT_BYTES, Output, Piece, staging_folder
from .transaction import (
    Adopted,
    Run,
    ShardPart,
    Transaction,
    TransactionName,
    load_pending,
    load_record,
    pending_folder,
    pending_names,
)

_TRIES = 10
_KEPT = 16  # records of an application that are kept to recognise a batch that comes again
_KEPT_BYTES = 64 << 10  # so much of their messages may stay in them: moving a file is cheaper than another one
_STALE_S = 5.0  # a record that is older than this was left by somebody who died
_ABANDONED_S = 7 * 86_400.0  # no write takes that long, so nobody will commit what it has staged
_PATIENCE_S = 2.0  # for somebody who took over a shard and so must complete it
_LOOK_S = 0.01


class Transactions:
    """Those of one application to one stream. Keeps the shards that it writes until it is closed, so that small batches
    follow each other in one file. Not for several threads at once."""

    def __init__(
        self,
        files: Files,
        clock: Clock,
        stream: str,
        config: StreamConfig,
        app: str,
        *,
        once: bool = False,
        on_roll: Callable[[int], object] = lambda shard: None,
        on_append: Callable[[Appended], object] = lambda appended: None,
    ) -> None:
        """`once`: the application commits one batch and never comes again. `on_roll`, `on_append`: see ShardLog."""
        self.stream, self.app = stream, app
        self._files, self._clock, self._config, self._once, self._on_roll = files, clock, config, once, on_roll
        self._on_append = on_append
        self._logs: dict[int, ShardLog] = {}
        self._claim: Claim | None = None

    def take_over(self) -> tuple[int, str]:
        """Be the one who commits for the application from now on; whatever it had left half done is completed first.
        The number of its newest batch, or -1, and the note that came with it. Whoever commits on the ground of these
        does so before anybody else, or not at all (Fenced)."""
        try:
            self._own()
            return newest(self._files, self.stream, self.app)
        except BaseException:
            self.close()
            raise

    def commit(self, batch: int, outputs: Sequence[Output], note: str = "") -> bool:
        """Make what the tasks bring visible, all of it or nothing. False if this batch was committed before.

        `note`: of the application, kept with the record. Fenced if another process commits for the same application
        now: it has taken over.
        """
        name = TransactionName(self.app, batch)
        for output in outputs:
            if output.name != name:
                raise ValueError(f"an output of {output.name} cannot be committed as {name}")
        try:
            return self._commit(name, outputs, note)
        except BaseException:
            # What we know of the shards may not hold any more, as when the record was published after all.
            self.close()
            raise

    def close(self) -> None:
        """Let the shards go."""
        logs, self._logs = self._logs, {}
        for log in logs.values():
            with suppress(TailraceError):  # what was flushed is flushed, sealed or not
                log.close()
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    # ---- committing

    def _commit(self, name: TransactionName, outputs: Sequence[Output], note: str) -> bool:
        claim = self._own()
        if self._is_known(name):
            _tidy(self._files, self.stream, name, self._clock.time_us())
            return False
        self._refuse_a_leap_back(name)
        transaction = self._publish(name, claim, _by_shard(outputs), note)
        for part in transaction.parts:
            self._roll_forward(part)
        _finish(self._files, self.stream, transaction, self._clock.time_us())
        return True

    def _own(self) -> Claim | None:
        """Be the one who commits for the application. What it has left half done is completed first."""
        if self._once:
            return None
        if self._claim is None:
            self._claim = self._files.claim(_kept_folder(self.stream, self.app))
            for name in pending_names(self._files, self.stream):
                if name.app == self.app:
                    complete(self._files, self._clock, self.stream, self._config, name, self._on_roll)
        else:
            self._claim.check()
        return self._claim

    def _is_known(self, name: TransactionName) -> bool:
        # In this order: a record goes from the one folder to the other.
        return str(name) in self._files.list(pending_folder(self.stream)) or str(name) in self._files.list(
            _kept_folder(self.stream, self.app)
        )

    def _refuse_a_leap_back(self, name: TransactionName) -> None:
        kept = _kept(self._files, self.stream, self.app)
        if kept and name.batch < kept[-1].batch:
            raise ConfigError(
                f"{self.stream}: batch {name.batch} of {self.app} comes after batch {kept[-1].batch}, and it is not "
                "known whether it was committed before. If its checkpoint was restored from an old copy, restore a "
                "newer one; if it begins anew, use another name for it. Nothing was written"
            )

    def _publish(
        self, name: TransactionName, claim: Claim | None, pieces: Mapping[int, Sequence[Piece]], note: str
    ) -> Transaction:
        self._files.make_folder(pending_folder(self.stream))
        for tries_left in range(_TRIES, 0, -1):
            try:
                parts = tuple(self._prepare(name, shard, pieces[shard]) for shard in sorted(pieces))
                transaction = Transaction(name, self._clock.time_us(), self._once, parts, note)
                with ExitStack() as held:
                    if claim is not None:
                        held.enter_context(claim.hold())
                    for part in parts:
                        held.enter_context(self._logs[part.shard].hold())
                    path = f"{pending_folder(self.stream)}/{name}"
                    if not self._files.publish(path, transaction.encode(), replace=False):
                        raise Fenced(f"{path} is there already: another process commits for {self.app}, too")
                return transaction
            except Fenced:
                if claim is not None:
                    claim.check()  # not only of a shard, but of the application: somebody else goes on with it
                if tries_left == 1:
                    raise
                self._drop_logs()
        raise AssertionError("unreachable")

    def _drop_logs(self) -> None:
        """Somebody else has claimed a shard: it ends elsewhere now."""
        for log in self._logs.values():
            with suppress(TailraceError):
                log.close()
        self._logs = {}

    def _log(self, shard: int) -> ShardLog:
        if shard not in self._logs:
            self._logs[shard] = ShardLog(
                self._files, self._clock, self.stream, shard, self._config, self._on_roll, self._on_append
            )
        return self._logs[shard]

    # ---- preparing

    def _prepare(self, name: TransactionName, shard: int, pieces: Sequence[Piece]) -> ShardPart:
        place = _Place(self._log(shard).outline())
        small = [piece for piece in pieces if piece.size_bytes < ADOPT_BYTES]
        adopted = [self._place_file(name, place, shard, piece) for piece in pieces if piece.size_bytes >= ADOPT_BYTES]
        run: Run | None = None
        if sum(piece.size_bytes for piece in small) >= ADOPT_BYTES:
            adopted.append(self._place_file(name, place, shard, self._join(name, shard, small)))
        elif small:
            start = place.position
            contents = [(data, place.take(piece, entries)) for piece in small for data, entries in [self._load(piece)]]
            run = Run(
                start,
                place.position,
                sum(piece.count for piece in small),
                place.time_us,
                memoryview(b"".join(data for data, _ in contents)),
                memoryview(b"".join(memoryview(entries) for _, entries in contents)),
            )
        return ShardPart(shard, tuple(adopted), run)

    def _place_file(self, name: TransactionName, place: "_Place", shard: int, piece: Piece) -> Adopted:
        """Write the index file that makes the piece a segment; its data file is ready."""
        assert piece.paths is not None
        segment, header = place.segment(), place.header()
        entries = place.take(piece, self._read(piece.paths[1]))
        place.begin_next(segment, piece)
        index = f"{piece.paths[0].removesuffix('.data')}-{segment.created_us}.index"
        self._files.publish(index, header.encode() + bytes(entries))
        return Adopted(piece.paths[0], index, segment, place.position, piece.count, place.time_us)

    def _join(self, name: TransactionName, shard: int, pieces: Sequence[Piece]) -> Piece:
        """Many small pieces as one large one."""
        folder = f"{staging_folder(self.stream, name)}/joined-{shard:05d}"
        with suppress(FileMissing):
            self._files.delete_folder(folder)
        claim = self._files.claim(folder)
        data, index = claim.create("all.data"), claim.create("all.entries")
        place = _Place(Outline(0, 0, 0, 0, 0))
        for piece in pieces:
            content, entries = self._load(piece)
            data.append(data.length, [content])
            index.append(index.length, [memoryview(place.take(piece, entries))])
        data.seal()
        index.seal()
        claim.close()
        paths = f"{folder}/all.data", f"{folder}/all.entries"
        return Piece(0, place.position, sum(piece.count for piece in pieces), place.time_us, None, paths)

    def _load(self, piece: Piece) -> tuple[bytes, bytes]:
        if piece.content is not None:
            return piece.content
        assert piece.paths is not None
        return self._read(piece.paths[0]), self._read(piece.paths[1])

    def _read(self, path: str) -> bytes:
        with self._files.view(path) as view:
            content = bytearray(view.length().readable_bytes)
            if view.read_into(0, memoryview(content)) != len(content):
                raise FileProblem(f"{path} is shorter than it was when it was written. Nothing was committed")
            return bytes(content)

    # ---- rolling forward

    def _roll_forward(self, part: ShardPart) -> None:
        try:
            self._logs[part.shard].roll_forward(part)
        except Fenced:
            # Whoever took the shard over completes it first of all, so give it the time, and see for ourselves if not.
            log = self._logs.pop(part.shard)
            with suppress(TailraceError):
                log.close()
            self._wait_for(part)

    def _wait_for(self, part: ShardPart) -> None:
        deadline_s = self._clock.monotonic_s() + _PATIENCE_S
        while find_end(self._files, self.stream, part.shard).position < part.end:
            if self._clock.monotonic_s() > deadline_s:
                self._log(part.shard)
                return
            self._clock.wait(Event(), _LOOK_S)


class _Place:
    """Where the next messages of a shard go, while a transaction is prepared."""

    def __init__(self, outline: Outline) -> None:
        self.position, self.time_us = outline.position, outline.time_us
        self._number, self._index_base, self._created_us = outline.number, outline.index_base, outline.created_us

    def segment(self) -> Segment:
        return Segment(self._created_us, self.position, self._index_base)

    def header(self) -> IndexHeader:
        return IndexHeader(self._created_us, self.position, self._number)

    def take(self, piece: Piece, entries: bytes) -> Block:
        """The piece's entries, as they are at this place."""
        assert len(entries) == piece.count * ENTRY_BYTES, piece
        moved = moved_entries(entries, piece.start, self.position, self.time_us)
        self.position, self._number = self.position + piece.size_bytes, self._number + piece.count
        self.time_us = max(self.time_us, piece.last_time_us)
        return moved

    def begin_next(self, segment: Segment, piece: Piece) -> None:
        self._index_base = segment.index_base_after(piece.count)
        self._created_us = max(self._created_us + 1, self.time_us)


def complete(
    files: Files,
    clock: Clock,
    stream: str,
    config: StreamConfig,
    name: TransactionName,
    on_roll: Callable[[int], object] = lambda shard: None,
) -> None:
    """Carry out what is missing of a transaction that somebody committed, and put its record away."""
    transaction = load_pending(files, stream, name)
    if transaction is None:
        return
    for part in transaction.parts:
        if find_end(files, stream, part.shard).position < part.end:
            ShardLog(files, clock, stream, part.shard, config, on_roll=on_roll).close()  # opening is all it takes
    _finish(files, stream, transaction, clock.time_us())


def complete_stale(files: Files, clock: Clock, stream: str, config: StreamConfig) -> int:
    """Complete what was committed a while ago by somebody who must have died since. How many."""
    count = 0
    for name in pending_names(files, stream):
        transaction = load_pending(files, stream, name)
        if transaction is not None and clock.time_us() - transaction.time_us > _STALE_S * 1e6:
            complete(files, clock, stream, config, name)
            count += 1
    return count


def _finish(files: Files, stream: str, transaction: Transaction, now_us: int) -> None:
    """The record goes to those that are kept; the oldest of them go. A crash before this changes nothing: all of it is
    done again, and nothing comes of it."""
    name, path = transaction.name, f"{pending_folder(stream)}/{transaction.name}"
    with suppress(FileMissing):  # somebody else has done it
        kept = f"{_kept_folder(stream, name.app)}/{name}"
        if not transaction.once:
            files.make_folder(_kept_folder(stream, name.app))
        if not transaction.once and transaction.payload_bytes <= _KEPT_BYTES:
            files.move(path, kept)
        else:
            if not transaction.once:  # its messages are in their shards, so its name will do
                files.publish(kept, replace(transaction, parts=()).encode())
            files.delete(path)
    for old in _kept(files, stream, name.app)[:-_KEPT]:
        with suppress(FileMissing):
            files.delete(f"{_kept_folder(stream, name.app)}/{old}")
    _tidy(files, stream, name, now_us)


def _tidy(files: Files, stream: str, name: TransactionName, now_us: int) -> None:
    """Delete what attempts of this batch and of those before it have left, and others that were for once, long ago."""
    pending = pending_names(files, stream)
    for text in files.list(staging_folder(stream)):
        other = TransactionName.parse(text)
        if other is None or other in pending:
            continue
        earlier = other.app == name.app and other.batch <= name.batch
        stale = other.once_us is not None and now_us - other.once_us > _ABANDONED_S * 1e6
        if earlier or stale:
            with suppress(FileProblem):
                files.delete_folder(staging_folder(stream, other))


def discard(files: Files, stream: str, name: TransactionName) -> None:
    """Give up a transaction that was not committed: delete what was staged for it."""
    if name not in pending_names(files, stream):
        with suppress(FileProblem):
            files.delete_folder(staging_folder(stream, name))


def newest(files: Files, stream: str, app: str) -> tuple[int, str]:
    """The number of an application's newest batch that was carried out, or -1, and the note that came with it."""
    kept = _kept(files, stream, app)
    if not kept:
        return -1, ""
    path = f"{_kept_folder(stream, app)}/{kept[-1]}"
    try:
        return kept[-1].batch, load_record(files, path).note
    except FileMissing:  # there are newer ones by now
        return newest(files, stream, app)
    except ValueError as wrong:
        raise Corrupt(f"{path} {wrong}. It tells which batches were committed: restore it from a copy") from None


def _kept_folder(stream: str, app: str) -> str:
    return f"streams/{stream}/transactions/kept/{app}"


def _kept(files: Files, stream: str, app: str) -> list[TransactionName]:
    names = [TransactionName.parse(text) for text in files.list(_kept_folder(stream, app))]
    return sorted((name for name in names if name is not None), key=lambda name: name.batch)


def _by_shard(outputs: Iterable[Output]) -> dict[int, list[Piece]]:
    """Task by task, in their order."""
    pieces: dict[int, list[Piece]] = {}
    for shard, piece in _all_pieces(outputs):
        pieces.setdefault(shard, []).append(piece)
    return pieces


def _all_pieces(outputs: Iterable[Output]) -> Iterator[tuple[int, Piece]]:
    for output in outputs:
        for shard, found in output.pieces.items():
            for piece in found:
                yield shard, piece
