"""Which bytes of a shard's newest files to bring from one cache to another, and what may then be told of them. Pure.

Files are brought front to back in whole chunks, so a chunk that is there is right from its start. What lay behind the
head when the first file was met is left where it is: those who want it are late, and find it at home.
"""

from dataclasses import dataclass, field, replace

from ..files.lengths import SegmentLengths, ShardLengths
from ..model.message_file import Track
from .segments import Segment

TRACKS: tuple[Track, Track] = ("index", "data")
BACK_BYTES = 4 << 20  # so much of a file that is met in its middle is brought, too


@dataclass(slots=True)
class _File:
    chunk_bytes: int
    length: int  # below it all is here, or was left where it is


@dataclass(slots=True)
class ShardMirror:
    """Of one shard."""

    _files: dict[tuple[Segment, Track], _File] = field(default_factory=dict)

    def meet(self, told: ShardLengths) -> None:
        """What is said of the shard now. Files of which nothing is said any more are forgotten."""
        first = not self._files
        for lengths in told.segments:
            for track in TRACKS:
                if (lengths.segment, track) not in self._files:
                    size = lengths.chunk_bytes(track)
                    begin = max(0, lengths.cached(track) - BACK_BYTES) // size * size if first else 0
                    self._files[lengths.segment, track] = _File(size, begin)
        there = {lengths.segment for lengths in told.segments}
        self._files = {key: file for key, file in self._files.items() if key[0] in there}

    def missing(self, segment: Segment, track: Track, length: int, bytes_max: int) -> tuple[int, int, int] | None:
        """(chunk size, from, to) of what to bring next, from a chunk's start on; None: it goes this far already."""
        file = self._files[segment, track]
        if file.length >= length:
            return None
        begin = file.length // file.chunk_bytes * file.chunk_bytes
        return file.chunk_bytes, begin, min(length, begin + max(bytes_max // file.chunk_bytes, 1) * file.chunk_bytes)

    def wants(self, segment: Segment, track: Track, length: int) -> bool:
        """Whether what was read, up to here, is more than is here: a chunk never becomes shorter."""
        return length > self._files[segment, track].length

    def brought(self, segment: Segment, track: Track, length: int) -> None:
        file = self._files[segment, track]
        file.length = max(file.length, length)

    def tell(self, told: ShardLengths, host: int) -> ShardLengths:
        """The same as was told, but of what is here."""
        return replace(told, segments=tuple(self._here(lengths) for lengths in told.segments), host=host)

    def _here(self, lengths: SegmentLengths) -> SegmentLengths:
        index, data = (self._files[lengths.segment, track].length for track in TRACKS)
        # The home's own cache may be behind what was read of its files.
        return replace(
            lengths,
            data_cached=data,
            index_cached=index,
            data_durable=max(data, lengths.data_durable),
            index_durable=max(index, lengths.index_durable),
        )
