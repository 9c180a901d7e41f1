"""An ambassador: one process of a host brings streams from the caches of other hosts into this host's memory, so that
all consumers here read them one-sidedly, however many there are (A79).

It reads as a consumer does: the home cache first, then the files. It tells lengths as a producer does, and raises this
host's hints.
"""

from collections.abc import Callable
from contextlib import suppress

from ..env import Clock
from ..errors import FileMissing, TailraceError
from ..files import Files
from ..files.chunks import chunk_key, file_key
from ..files.lengths import ShardLengths, hint_slot, lengths_key
from ..model.message_file import Track
from ..native.hints import Hints
from .board import Board
from .layers import Layers
from .mirror import ShardMirror
from .segments import Segment
from .shard_files import SegmentView, shard_folder

_PIECE_BYTES = 4 << 20

Place = tuple[str, int]  # (stream, shard)


class Ambassador:
    """`near`: where it brings things, on this `host`. Belongs to one thread."""

    def __init__(self, files: Files, near: Layers, hints: Hints | None, host: int, clock: Clock) -> None:
        self._files, self._near, self._hints, self._clock = files, near, hints, clock
        self._host = host if hints is not None else 0
        self._board = Board(lambda: None, clock)
        self._shards: list[_Shard] = []
        self.brought_bytes = 0

    def bring(self, stream: str, shard: int, incarnation: str, home: Callable[[], Layers | None]) -> None:
        """This shard, too, from now on. `home`: the cache that its producer writes to."""
        self._shards.append(
            _Shard(self._files, self._board, (stream, shard), incarnation, home, self._near, self._host)
        )

    def step(self) -> int:
        """Look once, and bring what is new. How many shards had news."""
        self._board.begin_round()
        told: dict[bytes, bytes] = {}
        slots: set[int] = set()
        for shard in self._shards:
            with suppress(TailraceError):  # consumers find their way without us; the next step tries again
                before = shard.brought_bytes
                lengths = shard.bring()
                if lengths is not None:
                    told[shard.key] = lengths.encode()
                if shard.brought_bytes > before:
                    slots.add(shard.slot)
                    self.brought_bytes += shard.brought_bytes - before
        if told:
            with suppress(TailraceError):  # as before
                self._near.lengths.set_many(told)
        if self._hints is not None:
            for slot in slots:
                self._hints.raise_(slot)
        return len(told)

    def wait(self, timeout_s: float) -> bool | None:
        """Until there is something to bring; see `Board.wait`."""
        return self._board.wait(timeout_s)

    def close(self) -> None:
        for shard in self._shards:
            shard.close()


class _Shard:
    def __init__(
        self,
        files: Files,
        board: Board,
        place: Place,
        incarnation: str,
        home: Callable[[], Layers | None],
        near: Layers,
        host: int,
    ) -> None:
        (stream, self._number), self._files, self._near, self._host = place, files, near, host
        self._incarnation = incarnation
        self._folder = shard_folder(stream, self._number)
        self._followed = board.follow(stream, self._number, incarnation, home)
        self._mirror = ShardMirror()
        self._views: dict[Segment, SegmentView] = {}
        self._seen: ShardLengths | None = None
        self.key, self.slot = lengths_key(incarnation, self._number), hint_slot(incarnation)
        self.brought_bytes = 0

    def bring(self) -> ShardLengths | None:
        """What may be told of this shard here, if that is something new."""
        told, _ = self._followed.told()
        if told is None:
            return None
        self._mirror.meet(told)
        self._open(told)
        for lengths in told.segments:
            view = self._views.get(lengths.segment)
            if view is not None:
                # The index first: the data that it speaks of was there before it.
                index = view.length().readable_bytes
                data = view.data_length().readable_bytes
                self._bring_file(lengths.segment, view, "data", data)
                self._bring_file(lengths.segment, view, "index", index)
        mine = self._mirror.tell(told, self._host)
        if mine == self._seen:
            return None
        self._seen = mine
        return mine

    def _bring_file(self, segment: Segment, view: SegmentView, track: Track, length: int) -> None:
        file = segment.data_name if track == "data" else segment.index_name
        while (piece := self._mirror.missing(segment, track, length, _PIECE_BYTES)) is not None:
            chunk_bytes, begin, end = piece
            content = view.track(track).read(begin, end - begin)
            if not self._mirror.wants(segment, track, begin + len(content)):
                return  # the file does not have it yet
            key = file_key(self._incarnation, self._number, file, chunk_bytes)
            chunks = {
                chunk_key(key, (begin + at) // chunk_bytes): content[at : at + chunk_bytes]
                for at in range(0, len(content), chunk_bytes)
            }
            self._near.data.set_many(chunks)
            self._mirror.brought(segment, track, begin + len(content))
            self.brought_bytes += len(content)

    def _open(self, told: ShardLengths) -> None:
        wanted = {lengths.segment for lengths in told.segments}
        for segment in wanted - self._views.keys():
            with suppress(FileMissing):  # retention was faster
                self._views[segment] = SegmentView(self._files, self._folder, segment, wrap=self._followed.wrap)
        for segment in self._views.keys() - wanted:
            self._views.pop(segment).close()

    def close(self) -> None:
        for view in self._views.values():
            view.close()
