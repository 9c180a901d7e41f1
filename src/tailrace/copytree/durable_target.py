"""The writing half of a durable operation: appends what comes, data before index, and makes it durable.

Invariants:
- Whoever begins later wins: it claims the shard's folder, and the one before can make nothing visible any more (A44).
- The index of the copy never leads its data, whenever the process or the machine ends.
- A segment follows another only when that one is complete. If the source has lost the rest of it to retention, what is
  here of it and before goes, too: then consumers see messages retired, and not a hole.

No thread of its own. One thread takes what comes, while another may settle it: what arrives during a sync is already in
the file's memory when the sync is over, and the next one has only to wait for the disk.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress

from ..errors import Fenced, FileMissing, FileProblem, Superseded, TailraceError, WireRefused
from ..files import WARM_BYTES, Appender, Claim, Files
from ..model.message_file import TRACKS, Track
from ..model.segment import Segment, segments_of
from ..wire import Batch, Opening, Piece, Standing
from .settings import check_incarnation

WINDOW_BYTES = 32 << 20


class DurableTarget:
    """`incarnation`: of the stream that is copied; None: whichever is here. `cached`: consumers here have the newest
    bytes from a cache. `on_flushed` is called when more has become visible, `on_roll` when a new segment has begun."""

    def __init__(
        self,
        files: Files,
        opening: Opening,
        *,
        incarnation: str | None = None,
        window_bytes: int = WINDOW_BYTES,
        cached: bool = False,
        on_flushed: Callable[[], object] = lambda: None,
        on_roll: Callable[[], object] = lambda: None,
    ) -> None:
        operation = opening.operation
        self._files, self._operation, self._window_bytes = files, operation, window_bytes
        self._folder = f"streams/{operation.stream}/{operation.shard:05d}"
        self._incarnation, self._cached, self._on_flushed, self._on_roll = incarnation, cached, on_flushed, on_roll
        self._claim: Claim | None = None
        self._segment: Segment | None = None
        self._open: dict[Track, Appender] = {}
        self._settling = threading.Lock()  # whoever syncs, or changes what is open
        self._noting = threading.Lock()
        self._entries: list[Piece] = []  # of the index, until their data are durable
        self._came_bytes = self._taken_bytes = self._behind_bytes = 0

    @property
    def waits(self) -> bool:
        return True

    def begin(self) -> Standing:
        """Shut out whoever copied to this shard before; where the copy stands."""
        self._claim = self._files.claim(self._folder)
        try:
            with self._claim.hold():  # or a newer one could begin meanwhile, and we would cut what it has made
                if self._incarnation is not None:
                    check_incarnation(self._files, self._operation.stream, self._incarnation)
                segments = segments_of(self._files.list(self._folder))
                if segments:
                    self._reopen(segments[-1])
                    self._settle(segments[:-1])
        except Fenced as fenced:
            raise Superseded(f"{self._operation}: {fenced}") from None
        return self.standing

    @property
    def standing(self) -> Standing:
        return Standing(
            segment=self._segment,
            data_length=self._length("data"),
            index_length=self._length("index"),
            taken_bytes=self._taken_bytes,
            window_bytes=self._window_bytes,
        )

    def check(self) -> None:
        """Superseded if a newer operation has begun."""
        assert self._claim is not None
        try:
            self._claim.check()
        except Fenced as fenced:
            raise Superseded(f"{self._operation}: {fenced}") from None

    def take(self, batch: Batch) -> None:
        """Append it. Nobody sees it before it is settled."""
        try:
            if batch.segment is not None and batch.segment != self._segment:
                with self._settling:
                    if self._settle_all():
                        self._on_flushed()
                    self._go_to(batch.segment, batch.oldest_us)
            for piece in batch.pieces:
                if piece.track == "data":
                    self._append(piece)
        except Fenced as fenced:
            raise Superseded(f"{self._operation}: {fenced}") from None
        with self._noting:
            self._entries += [piece for piece in batch.pieces if piece.track == "index"]
            self._came_bytes += batch.size
            self._behind_bytes = batch.behind_bytes

    def settle(self) -> Standing:
        """Make durable what was taken, data before index."""
        try:
            with self._settling:
                moved = self._settle_all()
        except Fenced as fenced:
            raise Superseded(f"{self._operation}: {fenced}") from None
        if moved:
            self._on_flushed()
        else:
            self.check()
        return self.standing

    def close(self) -> None:
        with self._settling:
            for appender in self._open.values():
                appender.close()
            self._open = {}
            if self._claim is not None:
                self._claim.close()

    # ---- inside

    def _length(self, track: Track) -> int:
        appender = self._open.get(track)
        return appender.length if appender is not None else 0

    def _append(self, piece: Piece) -> None:
        appender = self._open.get(piece.track)  # none, too, once the other thread has closed
        if appender is None or piece.offset != appender.length:
            raise WireRefused(
                f"{self._operation}: bytes at {piece.offset} of a {piece.track} file that has "
                f"{self._length(piece.track)}; open the copy again to learn where it stands"
            )
        appender.append(piece.offset, [piece.content])

    def _settle_all(self) -> bool:
        """Whether more is visible now."""
        with self._noting:
            entries, self._entries = self._entries, []
            came_bytes, behind_bytes = self._came_bytes, self._behind_bytes
        if self._open:
            self._open["data"].sync()
            for piece in entries:
                self._append(piece)
            self._open["index"].sync()
            # What a cache has besides, or what is so old that nobody here waits for it, need not stay in memory.
            if self._cached or behind_bytes > WARM_BYTES:
                self._open["data"].forget(self._length("data") - WARM_BYTES)
        moved, self._taken_bytes = came_bytes > self._taken_bytes, came_bytes
        return moved

    def _reopen(self, segment: Segment) -> None:
        """What a machine that went down left behind its last word is not trusted: it comes again. The index goes first,
        all of it if the data are cut: which entries still have theirs, only the source can tell."""
        lengths = {}
        for track in TRACKS:
            with self._files.view(f"{self._folder}/{segment.name(track)}") as view:
                lengths[track] = view.length()
        cut = lengths["data"].flushed_bytes < lengths["data"].readable_bytes
        keep = {"data": lengths["data"].flushed_bytes, "index": 0 if cut else lengths["index"].flushed_bytes}
        for track in reversed(TRACKS):
            self._open[track] = self._files.append(f"{self._folder}/{segment.name(track)}", at_most=keep[track])
        self._segment = segment

    def _settle(self, segments: Sequence[Segment]) -> None:
        """Earlier segments are complete, or they would not be earlier. Their fences may have stayed after a crash."""
        for segment in segments[-2:]:
            for track in TRACKS:
                with suppress(TailraceError):
                    self._files.settle(f"{self._folder}/{segment.name(track)}")

    def _go_to(self, segment: Segment, oldest_us: int) -> None:
        before = self._segment
        if before is not None and segment.created_us <= before.created_us:
            raise WireRefused(f"{self._operation}: {segment.data_name} is older than what was copied last")
        retired = False
        if before is not None and not self._is_complete(before, segment):
            retired = oldest_us > before.created_us
            if not retired:
                raise WireRefused(
                    f"{self._operation}: {segment.data_name} begins before {before.data_name} is complete; open the "
                    "copy again to learn where it stands"
                )
        if retired:
            with self._held():
                self._retire()
        begun = self._create(segment)
        previous, self._open, self._segment = self._open, begun, segment
        for appender in previous.values():  # complete, and its end is fixed by the new name
            try:
                appender.seal()
            except FileProblem:
                appender.close()
        self._on_roll()

    def _is_complete(self, before: Segment, later: Segment) -> bool:
        return all(self._length(track) >= later.base(track) - before.base(track) for track in TRACKS)

    def _create(self, segment: Segment) -> dict[Track, Appender]:
        """A crash may have left one half of the pair. But if we are displaced, it is our successor's, and whole: so it
        is taken only while nobody else can claim the folder."""
        assert self._claim is not None
        begun: dict[Track, Appender] = {}
        with self._held():
            there = set(self._files.list(self._folder))
            for track in TRACKS:
                if (name := segment.name(track)) in there:
                    begun[track] = self._files.append(f"{self._folder}/{name}", at_most=0)
        for track in TRACKS:
            if track not in begun:
                begun[track] = self._claim.create(segment.name(track))
        return begun

    def _held(self) -> AbstractContextManager[None]:
        assert self._claim is not None
        return self._claim.hold()

    def _retire(self) -> None:
        for appender in self._open.values():
            appender.close()
        self._open = {}
        for segment in segments_of(self._files.list(self._folder)):
            for track in reversed(TRACKS):  # without its index a segment is none, so nobody meets a half one
                with suppress(FileMissing):
                    self._files.delete(f"{self._folder}/{segment.name(track)}")
