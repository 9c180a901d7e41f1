"""Ask another cluster what it has, and for hashes of it. One connection, made at the first call."""

from collections.abc import Callable
from typing import Any, Self, TypeVar

import grpc

from ..config import TlsConfig
from ..errors import PeerFailed, WireRefused
from . import check_codec, credentials, options
from .addresses import Tcp, parse
from .check_messages import Blocks, Holding
from .problems import problem_of_stream

A = TypeVar("A")
DEADLINE_S = 30.0


class CheckPeer:
    """Implements CheckService. Safe to use from several threads. Not from a forked process."""

    def __init__(self, address: str, *, tls: TlsConfig | None = None, deadline_s: float = DEADLINE_S) -> None:
        where = parse(address)
        self.address, self._deadline_s = str(where), deadline_s
        settings = options.peer(options.MESSAGE_BYTES_MAX, options.KEEPALIVE_S, None)
        if tls is not None and isinstance(where, Tcp):
            self._channel = grpc.secure_channel(where.target, credentials.for_peer(tls), options=settings)
        else:
            self._channel = grpc.insecure_channel(where.target, options=settings)
        self._holding: Any = self._channel.unary_unary(f"/{check_codec.CHECKER}/Holding")
        self._hashes: Any = self._channel.unary_unary(f"/{check_codec.CHECKER}/Hashes")

    def holding(self, stream: str, shard: int) -> Holding | None:
        return self._call("Holding", self._holding, check_codec.encode_place(stream, shard), check_codec.decode_holding)

    def hashes(self, blocks: Blocks) -> bytes:
        return self._call("Hashes", self._hashes, check_codec.encode_blocks(blocks), check_codec.decode_hashes)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, call: Any, request: bytes, decode: Callable[[bytes], A]) -> A:
        try:
            return decode(call(request, timeout=self._deadline_s))
        except WireRefused as wrong:
            raise PeerFailed(f"{name} at {self.address} answered {wrong}") from None
        except grpc.RpcError as failed:
            problem = problem_of_stream(failed, name, self.address, self._deadline_s)
            problem.took_effect = False  # it only looks
            raise problem from None
