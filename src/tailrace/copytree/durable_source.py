"""The reading half of a durable operation: looks how far the source goes, and cuts what the copy misses into batches.

Bytes may come from the cache, where the newest are most likely; how far they go only the files say (A29, A31).
No thread of its own: whoever runs the operation asks for the next batch.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from ..env import Clock
from ..errors import FileMissing, StreamMissing
from ..files import Files, View
from ..model.message_file import Track
from ..model.segment import Segment, segments_of
from ..native import Block
from ..wire import Batch, Operation, Piece, Standing
from .extents import Cursor, Extent, Run, after, extents_of, missing_bytes, next_run
from .settings import read_settings

PIECE_BYTES = 1 << 20
GATHER_S = 0.05  # where consumers have a cache, its copy is quick; the files' is thrifty: fewer batches, fewer syncs
_RELIST_S = 1.0  # a safety net: look for a new segment even though the old one seems to be alive

#: Bytes of a file from the cache, all of them or None.
FromCache = Callable[[Segment, Track, int, int], bytes | memoryview | None]


class DurableSource:
    def __init__(
        self,
        files: Files,
        clock: Clock,
        operation: Operation,
        incarnation: str,
        *,
        from_cache: FromCache = lambda segment, track, offset, size: None,
        piece_bytes: int = PIECE_BYTES,
        gather_s: float = 0.0,
    ) -> None:
        self._files, self._clock, self._from_cache = files, clock, from_cache
        self._piece_bytes, self.gather_s = piece_bytes, gather_s
        self._stream, self._incarnation = operation.stream, incarnation
        self._folder = f"streams/{operation.stream}/{operation.shard:05d}"
        self._at = Cursor()
        self._segments: list[Segment] = []
        self._listed_s = float("-inf")
        self._views: dict[tuple[Segment, Track], View] = {}
        self._extents: list[Extent] = []

    def begin(self, standing: Standing) -> None:
        """The copy stands there; go on from there."""
        self._at = Cursor(standing.segment, standing.data_length, standing.index_length)
        self._extents, self._listed_s = [], float("-inf")

    @property
    def behind_bytes(self) -> int:
        """What the last look showed and is not sent yet."""
        return missing_bytes(self._extents, self._at)

    def next_batch(self, room_bytes: int) -> Batch | None:
        """What is to be sent next, at most about so much; None: nothing for now."""
        run = next_run(self._extents, self._at, self._piece_bytes)
        if run is None:
            self._look()
            run = next_run(self._extents, self._at, self._piece_bytes)
        pieces: list[Piece] = []
        segment, size = None, 0
        while run is not None and size < room_bytes and run.segment == (segment or run.segment) and len(pieces) < 2:
            piece = self._read(replace(run, size=min(run.size, room_bytes - size)))
            if piece is None:
                break
            segment, size = run.segment, size + len(piece.content)
            pieces.append(piece)
            self._at = after(self._at, Run(segment, piece.track, piece.offset, len(piece.content)))
            run = next_run(self._extents, self._at, self._piece_bytes - size) if size < self._piece_bytes else None
        if segment is None:
            return None
        return Batch(segment=segment, pieces=tuple(pieces), oldest_us=self._segments[0].created_us)

    def beat(self) -> Batch:
        return Batch()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
        self._views.clear()

    # ---- inside

    def _look(self) -> None:
        for _ in range(3):  # retention may take what was just listed
            with suppress(FileMissing):
                self._extents = self._found()
                return
            self._list()
        self._extents = []

    def _found(self) -> list[Extent]:
        if not self._segments or self._clock.monotonic_s() >= self._listed_s + _RELIST_S:
            self._list()
        if not self._segments:
            return []
        lengths = self._lengths(self._segments[-1])
        if lengths[2]:  # nobody appends any more, so there may be one that cuts it: then its own length says nothing
            self._list()
            lengths = self._lengths(self._segments[-1])
        return extents_of(self._segments, lengths[0], lengths[1])

    def _lengths(self, segment: Segment) -> tuple[int, int, bool]:
        """Of data and index, the index first: its data were flushed before it, so what is seen of them covers it.

        But not when the machine went down and only the index still knows how far it had come: then nobody can tell
        which entries have their data, and none are sent until whoever appends next has settled it."""
        index = self._view(segment, "index").length()
        data = self._view(segment, "data").length()
        sure = data.flushed_bytes == data.readable_bytes
        return data.flushed_bytes, index.flushed_bytes if sure else 0, not index.appending

    def _list(self) -> None:
        self._segments = segments_of(self._files.list(self._folder))
        self._listed_s = self._clock.monotonic_s()
        settings = read_settings(self._files, self._stream)
        if settings is None or settings.incarnation != self._incarnation:
            raise StreamMissing(f"the stream {self._stream!r} was deleted, or made anew")
        for segment, track in list(self._views):
            if self._at.segment is not None and segment.created_us < self._at.segment.created_us:
                self._views.pop((segment, track)).close()

    def _view(self, segment: Segment, track: Track) -> View:
        if (segment, track) not in self._views:
            self._views[segment, track] = self._files.view(f"{self._folder}/{segment.name(track)}")
        return self._views[segment, track]

    def _read(self, run: Run) -> Piece | None:
        content = self._from_cache(run.segment, run.track, run.offset, run.size)
        if content is None or len(content) < run.size:
            buffer = memoryview(Block(run.size))
            try:
                count = self._view(run.segment, run.track).read_into(run.offset, buffer)
            except FileMissing:  # retention took it; the next look tells where to go on
                self._extents = []
                return None
            content = buffer[:count]
        return Piece(run.track, run.offset, content) if len(content) else None
