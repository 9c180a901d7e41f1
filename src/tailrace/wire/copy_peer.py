"""Call a writer in another cluster, or the scheduler of one's own. One connection each, made at the first call."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

import grpc

from ..config import TlsConfig
from ..errors import Closed, PeerFailed, WireRefused
from . import copy_codec, credentials, options
from .addresses import parse
from .ahead import ahead
from .copy_messages import Batch, Opening, Orders, Report, Standing
from .problems import problem_of_stream

A = TypeVar("A")
RECONNECT_S_MAX = 0.02


class _Call(Generic[A]):
    """Answers as they come; cancel() from any thread ends it. Requests are taken in a thread of gRPC's."""

    def __init__(self, call: Any, decode: Callable[[bytes], A], name: str, address: str) -> None:
        self._call, self._decode, self._name, self._address = call, decode, name, address

    def __iter__(self) -> Iterator[A]:
        try:
            for message in self._call:
                try:
                    yield self._decode(message)
                except WireRefused as wrong:
                    raise PeerFailed(f"{self._name} at {self._address} answered {wrong}") from None
        except grpc.RpcError as failed:
            raise problem_of_stream(failed, self._name, self._address, 0.0) from None
        finally:
            self._call.cancel()

    def cancel(self) -> None:
        self._call.cancel()


class CopyCall(_Call[Standing]):
    pass


class WorkCall(_Call[Orders]):
    pass


def _encoded(batches: Iterator[Batch]) -> Iterator[bytes]:
    """gRPC asks for a message when the last one has gone. Where much is still to be sent, the next one is read and put
    together meanwhile; at the head that would only be one more hand-over."""
    made = ((copy_codec.encode_batch(batch), copy_codec.has_much_behind(batch)) for batch in batches)
    return (message for message, _ in ahead(made, itemgetter(1)))


class CopyPeer:
    """Safe to use from several threads. Not from a forked process: start processes with spawn."""

    def __init__(
        self,
        address: str,
        *,
        tls: TlsConfig | None = None,
        message_bytes_max: int = options.MESSAGE_BYTES_MAX,
        keepalive_s: float = options.KEEPALIVE_S,
        server_name: str | None = None,
    ) -> None:
        where = parse(address)
        self.address = str(where)
        self._message_bytes_max = message_bytes_max
        self._process = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        # Whoever copies has its own pauses between its tries, and goes to another when one fails: a pause of gRPC's on
        # top would keep it from one that has come back just in time.
        settings = options.peer(message_bytes_max, keepalive_s, server_name, reconnect_s_max=RECONNECT_S_MAX)
        self._channel = credentials.channel_to(where, tls, settings)
        self._copy: Any = self._channel.stream_stream(f"/{copy_codec.WRITER}/Copy")
        self._work: Any = self._channel.stream_stream(f"/{copy_codec.SCHEDULER}/Work")

    def copy(self, opening: Opening, batches: Iterable[Batch]) -> CopyCall:
        """`batches` may block; it must end when the call does."""

        def requests() -> Iterator[bytes]:
            yield copy_codec.encode_opening(opening)
            yield from _encoded(iter(batches))

        return CopyCall(self._start(self._copy, requests()), copy_codec.decode_standing, "Copy", self.address)

    def work(self, reports: Iterable[Report]) -> WorkCall:
        call = self._start(self._work, map(copy_codec.encode_report, reports))
        return WorkCall(call, copy_codec.decode_orders, "Work", self.address)

    def _start(self, call: Any, requests: Iterator[bytes]) -> Any:
        if os.getpid() != self._process:
            raise Closed(f"{self.address}: this connection was made before a fork; start processes with spawn")
        with self._closing:
            if self._closed:
                raise Closed(f"{self.address}: this peer was closed; make a new one")
            return call(requests)

    def close(self) -> None:
        """Calls under way end with an error."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
        if os.getpid() == self._process:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
