"""Ask another cluster what it has, and for hashes of it."""

from ..config import TlsConfig
from . import check_codec
from .check_messages import Blocks, Holding
from .looking_peer import LookingPeer

DEADLINE_S = 30.0


class CheckPeer(LookingPeer):
    """Implements CheckService."""

    def __init__(self, address: str, *, tls: TlsConfig | None = None, deadline_s: float = DEADLINE_S) -> None:
        super().__init__(check_codec.CHECKER, ("Holding", "Hashes"), address, tls, deadline_s)

    def holding(self, stream: str, shard: int) -> Holding | None:
        return self._call("Holding", check_codec.encode_place(stream, shard), check_codec.decode_holding)

    def hashes(self, blocks: Blocks) -> bytes:
        return self._call("Hashes", check_codec.encode_blocks(blocks), check_codec.decode_hashes)
