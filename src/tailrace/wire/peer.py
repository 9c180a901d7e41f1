"""Call a backend in another process, with the methods that the backend itself has.

One connection, made at the first call and made again when it breaks; a call that cannot be sent fails at once instead
of waiting. Nothing is ever repeated behind the caller's back: an error says whether the call may have taken effect.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self

import grpc
import grpc._channel  # else loaded with the first channel, by each process that was forked from one that has us loaded

from ..config import TlsConfig
from ..errors import Closed, DeadlineExceeded, PeerFailed, WireRefused
from . import credentials, options
from .addresses import parse
from .frames import Frame
from .messages import (
    Answer,
    AttachReply,
    DigestReply,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
)
from .methods import ATTACH, DIGEST, FETCH, LIST, LOOKUP, METHODS, MUTATE, STATS, TOUCH, Method
from .problems import problem_of

_FRAME_HEAD_BYTES = 24
_OVERTIME_S = 0.5  # after which a deadline that has not come never will


class _Reply(Future[MutateReply]):
    """A deadline of gRPC's own has been seen not to come: at a peer that stood still with several calls on their way to
    it. So whoever waits looks at the clock, too."""

    def __init__(self, address: str, limit_s: float) -> None:
        super().__init__()
        self._address, self._limit_s, self._end_s = address, limit_s, time.monotonic() + limit_s + _OVERTIME_S

    def result(self, timeout: float | None = None) -> MutateReply:
        if timeout is not None:
            return super().result(timeout)
        try:
            return super().result(max(self._end_s - time.monotonic(), 0.0))
        except TimeoutError:
            raise DeadlineExceeded(
                f"{MUTATE.name} at {self._address}: no answer within {self._limit_s:g} s; "
                "it may still be at it; ask what happened before repeating a change"
            ) from None


class BackendPeer:
    """Safe to use from several threads. Not from a forked process: start processes with spawn.

    deadline_s is for whole calls, stream_deadline_s for those that answer in parts; each call may name its own. Over
    TLS the backend's certificate must have the address's host among its names, or server_name if that is given.
    """

    def __init__(
        self,
        address: str,
        *,
        tls: TlsConfig | None = None,
        deadline_s: float = 5.0,
        stream_deadline_s: float = 120.0,
        message_bytes_max: int = options.MESSAGE_BYTES_MAX,
        keepalive_s: float = options.KEEPALIVE_S,
        server_name: str | None = None,
    ) -> None:
        where = parse(address)
        self._address = str(where)
        self._deadline_s = deadline_s
        self._stream_deadline_s = stream_deadline_s
        self._message_bytes_max = message_bytes_max
        self._process = os.getpid()
        self._closed = False
        settings = options.peer(message_bytes_max, keepalive_s, server_name)
        self._channel = credentials.channel_to(where, tls, settings)
        self._calls: dict[str, Callable[..., Any]] = {
            method.name: (self._channel.unary_stream if method.streams else self._channel.unary_unary)(method.path)
            for method in METHODS
        }
        self._mutate: Any = self._channel.unary_unary(MUTATE.path)

    @property
    def address(self) -> str:
        return self._address

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that fits a message."""
        return self._message_bytes_max - _FRAME_HEAD_BYTES

    def attach(self, client: str, wants_engine: bool, *, deadline_s: float | None = None) -> AttachReply:
        reply: AttachReply = self._call(ATTACH, deadline_s, client, wants_engine)
        return reply

    def mutate(self, instance: int, config_id: int, frame: Frame, *, deadline_s: float | None = None) -> MutateReply:
        reply: MutateReply = self._call(MUTATE, deadline_s, instance, config_id, frame)
        return reply

    def mutate_async(
        self, instance: int, config_id: int, frame: Frame, *, deadline_s: float | None = None
    ) -> Future[MutateReply]:
        """For several backends at once. It cannot be cancelled: nobody could say whether it still took effect.

        Problems of sending are the future's as well. One call alone is faster by mutate().
        """
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        future = _Reply(self._address, limit_s)
        future.set_running_or_notify_cancel()

        def settle(call: Any) -> None:
            try:
                if call.code() is not grpc.StatusCode.OK:
                    raise problem_of(call, MUTATE, self._address, limit_s)
                reply = self._decode(MUTATE, call.result())
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(reply)

        try:
            call = self._start(self._mutate.future, self._encode(MUTATE, instance, config_id, frame), limit_s)
        except (Closed, WireRefused) as problem:
            future.set_exception(problem)
        else:
            call.add_done_callback(settle)
        return future

    def lookup(
        self, instance: int, keys: Sequence[bytes], now_s: int, *, deadline_s: float | None = None
    ) -> LookupReply:
        """Answers to all keys, in several calls (each with this deadline) if they do not fit one; none if the backend
        is another instance."""
        answers: list[Answer | None] = []
        while True:
            reply: LookupReply = self._call(LOOKUP, deadline_s, instance, keys[len(answers) :], now_s)
            if reply.instance != instance:
                return LookupReply(instance=reply.instance, config_id=reply.config_id, answers=[])
            answers += reply.answers
            if len(answers) == len(keys):
                return LookupReply(instance=instance, config_id=reply.config_id, answers=answers)
            if not reply.answers or len(answers) > len(keys):
                problem = PeerFailed(f"Lookup at {self._address}: {len(answers)} answers to {len(keys)} keys")
                problem.took_effect = False
                raise problem

    def touch(self, hashes: bytes, *, deadline_s: float | None = None) -> TouchReply:
        reply: TouchReply = self._call(TOUCH, deadline_s, hashes)
        return reply

    def digest(self, shared: Shared, *, deadline_s: float | None = None) -> DigestReply:
        reply: DigestReply = self._call(DIGEST, deadline_s, shared)
        return reply

    def list_hashes(self, shared: Shared, *, deadline_s: float | None = None) -> Iterator[ListPart]:
        """Raises if the list breaks off: whoever sees the end without an error has seen all of it."""
        complete = False
        for part in self._stream(LIST, deadline_s, shared):
            complete = part.complete
            yield part
        if not complete:
            problem = PeerFailed(f"List at {self._address} ended before it was complete; ask again")
            problem.took_effect = False
            raise problem

    def fetch(self, hashes: bytes, *, deadline_s: float | None = None) -> Iterator[FetchPart]:
        yield from self._stream(FETCH, deadline_s, hashes)

    def stats(self, *, deadline_s: float | None = None) -> StatsReply:
        reply: StatsReply = self._call(STATS, deadline_s)
        return reply

    def close(self) -> None:
        """Calls under way end with an error."""
        self._closed = True
        if os.getpid() == self._process:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: Method, deadline_s: float | None, *arguments: Any) -> Any:
        limit_s = self._deadline_s if deadline_s is None else deadline_s
        request = self._encode(method, *arguments)
        try:
            reply = self._start(self._calls[method.name], request, limit_s)
        except grpc.RpcError as failed:
            raise problem_of(failed, method, self._address, limit_s) from None
        return self._decode(method, reply)

    def _stream(self, method: Method, deadline_s: float | None, *arguments: Any) -> Iterator[Any]:
        limit_s = self._stream_deadline_s if deadline_s is None else deadline_s
        call = self._start(self._calls[method.name], self._encode(method, *arguments), limit_s)
        try:
            for message in call:
                yield self._decode(method, message)
        except grpc.RpcError as failed:
            raise problem_of(failed, method, self._address, limit_s) from None
        finally:
            call.cancel()  # when nobody wants the rest

    def _start(self, call: Callable[..., Any], request: bytes, deadline_s: float) -> Any:
        if os.getpid() != self._process:
            raise Closed(f"{self._address}: this connection was made before a fork; start processes with spawn")
        if not self._closed:
            try:
                return call(request, timeout=deadline_s)
            except ValueError:
                if not self._closed:  # closed meanwhile is the one thing that gRPC calls so
                    raise
        raise Closed(f"{self._address}: this peer was closed; make a new one")

    def _encode(self, method: Method, *arguments: Any) -> bytes:
        request = method.encode_request(*arguments)
        if len(request) > self._message_bytes_max:
            raise WireRefused(
                f"{method.name} at {self._address}: a request of {len(request)} bytes; "
                f"message_bytes_max={self._message_bytes_max}, so send less at once or raise it at both ends"
            )
        return request

    def _decode(self, method: Method, reply: bytes) -> Any:
        try:
            return method.decode_reply(reply)
        except WireRefused as wrong:
            problem = PeerFailed(f"{method.name} at {self._address} answered {wrong}")
            problem.took_effect = None if method.changes else False
            raise problem from None
