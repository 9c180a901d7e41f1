"""Read the streams' files of another cluster."""

from collections.abc import Sequence

from ..config import TlsConfig
from . import files_codec
from .files_messages import ByteRange, FileBytes, Listing, Sight
from .looking_peer import LookingPeer

DEADLINE_S = 5.0
_SLOW_BYTES_PER_S = 256 << 10  # what a way must carry at least: so much longer may a read take


class FilesPeer(LookingPeer):
    """Implements FilesService."""

    def __init__(self, address: str, *, tls: TlsConfig | None = None, deadline_s: float = DEADLINE_S) -> None:
        super().__init__(files_codec.FILES, ("Sight", "List", "Read"), address, tls, deadline_s)

    def sight(self, stream: str, seen: int) -> Sight | None:
        return self._call("Sight", files_codec.encode_look(stream, seen), files_codec.decode_sight)

    def list(self, folder: str) -> Listing:
        return self._call("List", files_codec.encode_folder(folder), files_codec.decode_listing)

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        request = files_codec.encode_ranges(ranges)
        more_s = sum(one.size for one in ranges) / _SLOW_BYTES_PER_S
        return self._call("Read", request, lambda reply: files_codec.decode_parts(reply, ranges), more_s)
