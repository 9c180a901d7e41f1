"""Read the streams' files of another cluster. One connection, made at the first call."""

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

import grpc

from ..config import TlsConfig
from ..errors import PeerFailed, Unreachable, WireRefused
from . import credentials, files_codec, options
from .addresses import Tcp, parse
from .files_messages import ByteRange, FileBytes, Listing, Sight
from .problems import problem_of_stream

A = TypeVar("A")
DEADLINE_S = 5.0
_SLOW_BYTES_PER_S = 256 << 10  # what a way must carry at least: so much longer may a read take


class FilesPeer:
    """Implements FilesService. Safe to use from several threads. Not from a forked process."""

    def __init__(self, address: str, *, tls: TlsConfig | None = None, deadline_s: float = DEADLINE_S) -> None:
        where = parse(address)
        self.address, self._deadline_s = str(where), deadline_s
        settings = options.peer(options.MESSAGE_BYTES_MAX, options.KEEPALIVE_S, None)
        if tls is not None and isinstance(where, Tcp):
            self._channel = grpc.secure_channel(where.target, credentials.for_peer(tls), options=settings)
        else:
            self._channel = grpc.insecure_channel(where.target, options=settings)
        self._calls: dict[str, Any] = {
            name: self._channel.unary_unary(f"/{files_codec.FILES}/{name}") for name in ("Sight", "List", "Read")
        }

    def sight(self, stream: str, seen: int) -> Sight | None:
        return self._call("Sight", files_codec.encode_look(stream, seen), files_codec.decode_sight)

    def list(self, folder: str) -> Listing:
        return self._call("List", files_codec.encode_folder(folder), files_codec.decode_listing)

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        request = files_codec.encode_ranges(ranges)
        more_s = sum(one.size for one in ranges) / _SLOW_BYTES_PER_S
        return self._call("Read", request, lambda reply: files_codec.decode_parts(reply, ranges), more_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, name: str, request: bytes, decode: Callable[[bytes], A], more_s: float = 0.0) -> A:
        deadline_s = self._deadline_s + more_s
        try:
            reply = self._calls[name](request, timeout=deadline_s)
        except grpc.RpcError as failed:
            problem = problem_of_stream(failed, name, self.address, deadline_s)
            problem.took_effect = False  # it only looks
            raise problem from None
        except ValueError:  # gRPC's word for a channel that was closed meanwhile
            raise Unreachable(f"{name} at {self.address}: this end closed; open it again") from None
        try:
            return decode(reply)
        except WireRefused as wrong:
            raise PeerFailed(f"{name} at {self.address} answered {wrong}") from None
