"""Ask a process of another cluster what is there. One connection, made at the first call; nothing it asks changes
anything, so that every question can be asked again."""

from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

import grpc

from ..config import TlsConfig
from ..errors import PeerFailed, Unreachable, WireRefused
from . import credentials, options
from .addresses import parse
from .problems import problem_of_stream

A = TypeVar("A")


class LookingPeer:
    """Safe to use from several threads. Not from a forked process."""

    def __init__(
        self, service: str, methods: Iterable[str], address: str, tls: TlsConfig | None, deadline_s: float
    ) -> None:
        where = parse(address)
        self.address, self._deadline_s = str(where), deadline_s
        settings = options.peer(options.MESSAGE_BYTES_MAX, options.KEEPALIVE_S, None)
        self._channel = credentials.channel_to(where, tls, settings)
        self._calls: dict[str, Any] = {name: self._channel.unary_unary(f"/{service}/{name}") for name in methods}

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
