"""zstd on links that are dear, where it pays.

Pieces are tried; when they do not shrink, most of those that follow are sent as they are, and one in a while is tried
again. So bytes that are compressed already cost next to nothing, and a stream that changes its nature is noticed.
"""

from typing import Any

from ..errors import WireRefused
from ..wire import Piece

_PAYS = 0.9  # of the size, or less
_SKIP_MAX = 64  # pieces in a row that are not tried
_LEAST_BYTES = 256


class Squeeze:
    """Pure but for the codec. Belongs to one operation."""

    def __init__(self) -> None:
        self._codec: Any = _codec()
        self._skip = self._skipped = 0
        self.raw_bytes = self.sent_bytes = 0

    def compress(self, piece: Piece) -> Piece:
        squeezed = self._try(piece)
        self.raw_bytes += piece.size
        self.sent_bytes += len(squeezed.content)
        return squeezed

    def _try(self, piece: Piece) -> Piece:
        if self._skipped < self._skip or piece.size < _LEAST_BYTES:
            self._skipped += 1
            return piece
        self._skipped = 0
        content: bytes = self._codec.compress(bytes(piece.content), asbytes=True)
        if len(content) > piece.size * _PAYS:
            self._skip = min(max(1, self._skip * 2), _SKIP_MAX)
            return piece
        self._skip = 0
        return Piece(piece.track, piece.offset, content, raw_bytes=piece.size)


def expand(piece: Piece) -> Piece:
    """As it was before. The size was bounded when it came in."""
    if not piece.raw_bytes:
        return piece
    try:
        content: bytes = _codec().decompress(bytes(piece.content), piece.raw_bytes, asbytes=True)
    except (OSError, ValueError) as wrong:
        raise WireRefused(f"a piece that is no zstd: {wrong}") from None
    if len(content) != piece.raw_bytes:
        raise WireRefused(f"a piece of {len(content)} bytes that was said to have {piece.raw_bytes}")
    return Piece(piece.track, piece.offset, content)


def _codec() -> Any:
    import pyarrow  # only for links that ask for it

    return pyarrow.Codec("zstd", compression_level=1)
