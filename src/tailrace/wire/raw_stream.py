"""A stream of messages over gRPC with nothing around it: the limit that copies are measured against."""

import time
from collections.abc import Iterator
from typing import Any

import grpc

from . import options
from .server import Server, start

_METHOD = "/tailrace.raw.v1.Raw/Send"


def serve_raw(address: str, window_messages: int) -> Server:
    """Take messages and throw them away; say how many, often enough for a sender with this window."""

    def receive(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for count, _ in enumerate(requests, start=1):
            if count % max(1, window_messages // 4) == 0:
                yield count.to_bytes(8, "little")

    handler = grpc.method_handlers_generic_handler(
        _METHOD.split("/")[1], {"Send": grpc.stream_stream_rpc_method_handler(receive)}
    )
    return start(
        [handler],
        [address],
        tls=None,
        threads=4,
        calls_max=4,
        message_bytes_max=options.MESSAGE_BYTES_MAX,
        keepalive_s=options.KEEPALIVE_S,
    )


def send_raw(address: str, message_bytes: int, seconds: float) -> float:
    """Bytes per second of one stream."""
    message, end_s, count = bytes(message_bytes), 0.0, 0

    def requests() -> Iterator[bytes]:
        nonlocal count
        while time.monotonic() < end_s:
            count += 1
            yield message

    with grpc.insecure_channel(
        address, options=options.peer(options.MESSAGE_BYTES_MAX, options.KEEPALIVE_S, None)
    ) as channel:
        call: Any = channel.stream_stream(_METHOD)
        begin_s = time.monotonic()
        end_s = begin_s + seconds
        for _ in call(requests()):
            pass
        return count * message_bytes / (time.monotonic() - begin_s)
