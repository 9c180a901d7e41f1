"""Call one member of an etcd cluster. Another one is another peer: which to ask, and when again, is not decided here.

Nothing is repeated behind the caller's back: an error says whether the call may have taken effect.
"""

import os
import queue
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from ..config import TlsConfig
from ..errors import Closed, PeerFailed, Unreachable, WireProblem
from . import credentials, options
from .addresses import parse
from .etcd_messages import (
    EtcdCompare,
    EtcdDelete,
    EtcdGet,
    EtcdOperation,
    EtcdPut,
    EtcdRefused,
    KeyValue,
    RangeReply,
    TxnReply,
    WatchEvent,
    WatchPart,
)
from .generated import etcd_pb2 as pb
from .problems import problem_of

M = TypeVar("M", bound=Message)

MESSAGE_BYTES_MAX = 160 << 20  # a page of the largest values, or a watch's backlog; etcd itself limits requests
_DELETED = 1
_TARGETS: Final = {"created": 1, "revision": 2, "value": 3}

# etcd's own words, which a test pins. Should a version choose others, an error says less, but nothing wrong.
_REFUSALS: Final = (
    ("requested lease not found", "lease not found"),
    ("lease already exists", "lease exists"),
    ("required revision has been compacted", "compacted"),
    ("too many operations in txn request", "too large"),
    ("request is too large", "too large"),
)
_NOT_PROPOSED: Final = ("etcdserver: no leader", "etcdserver: too many requests", "etcdserver: not capable")


@dataclass(frozen=True, slots=True)
class _Method:
    name: str
    path: str
    changes: bool


_RANGE = _Method("Range", "/etcdserverpb.KV/Range", False)
_TXN = _Method("Txn", "/etcdserverpb.KV/Txn", True)
_COMPACT = _Method("Compact", "/etcdserverpb.KV/Compact", True)
_GRANT = _Method("LeaseGrant", "/etcdserverpb.Lease/LeaseGrant", True)
_REVOKE = _Method("LeaseRevoke", "/etcdserverpb.Lease/LeaseRevoke", True)
_KEEP_ALIVE = _Method("LeaseKeepAlive", "/etcdserverpb.Lease/LeaseKeepAlive", True)
_WATCH = _Method("Watch", "/etcdserverpb.Watch/Watch", False)
_HAS_LEADER: Final = (
    ("hasleader", "true"),
)  # a member that is cut off from the others ends the watch instead of waiting


class EtcdPeer:
    """Safe to use from several threads. Not from a forked process: start processes with spawn."""

    def __init__(
        self, endpoint: str, *, tls: TlsConfig | None = None, keepalive_s: float = options.KEEPALIVE_S
    ) -> None:
        where = parse(endpoint)
        self.address = str(where)
        self._process = os.getpid()
        self._closed = False
        # etcd takes pings of an idle connection for an attack.
        quiet = {"grpc.keepalive_permit_without_calls": 0}
        settings = [
            (name, quiet.get(name, value)) for name, value in options.peer(MESSAGE_BYTES_MAX, keepalive_s, None)
        ]
        self._channel = credentials.channel_to(where, tls, settings)
        self._unary: dict[_Method, Callable[..., bytes]] = {
            method: self._channel.unary_unary(method.path) for method in (_RANGE, _TXN, _COMPACT, _GRANT, _REVOKE)
        }
        self._keep_alive: Callable[..., Any] = self._channel.stream_stream(_KEEP_ALIVE.path)
        self._watch: Callable[..., Any] = self._channel.stream_stream(_WATCH.path)

    def range(self, first: bytes, end: bytes, deadline_s: float, *, revision: int = 0, limit: int = 0) -> RangeReply:
        """Keys from `first` to before `end`; an empty end means this key alone. As of a revision, or of now (0)."""
        request = pb.RangeRequest(key=first, range_end=end, revision=revision, limit=limit)
        reply = self._call(_RANGE, request, pb.RangeResponse, deadline_s)
        return RangeReply([_entry(one) for one in reply.kvs], reply.more, reply.header.revision)

    def transact(
        self,
        compares: Sequence[EtcdCompare],
        then: Sequence[EtcdOperation],
        otherwise: Sequence[EtcdOperation],
        deadline_s: float,
    ) -> TxnReply:
        request = pb.TxnRequest(
            compare=[_compare(one) for one in compares],
            success=[_operation(one) for one in then],
            failure=[_operation(one) for one in otherwise],
        )
        reply = self._call(_TXN, request, pb.TxnResponse, deadline_s)
        asked = then if reply.succeeded else otherwise
        if len(reply.responses) != len(asked):
            raise PeerFailed(f"Txn at {self.address}: {len(reply.responses)} answers to {len(asked)} operations")
        found = [
            _entry(answer.response_range.kvs[0]) if answer.response_range.kvs else None
            for one, answer in zip(asked, reply.responses, strict=True)
            if isinstance(one, EtcdGet)
        ]
        return TxnReply(reply.succeeded, reply.header.revision, found)

    def compact(self, revision: int, deadline_s: float) -> None:
        """Forget what was before this revision. Nothing happens if that is done already."""
        try:
            self._call(_COMPACT, pb.CompactionRequest(revision=revision), pb.CompactionResponse, deadline_s)
        except EtcdRefused as refused:
            if refused.why != "compacted":
                raise

    def grant(self, lease: int, ttl_s: int, deadline_s: float) -> None:
        self._call(_GRANT, pb.LeaseGrantRequest(ttl=ttl_s, id=lease), pb.LeaseGrantResponse, deadline_s)

    def revoke(self, lease: int, deadline_s: float) -> None:
        self._call(_REVOKE, pb.LeaseRevokeRequest(id=lease), pb.LeaseRevokeResponse, deadline_s)

    def keep_alive(self, lease: int, deadline_s: float) -> bool:
        """Start the time to live again; False: there is no such lease any more."""
        request = iter([pb.LeaseKeepAliveRequest(id=lease).SerializeToString()])
        call = self._started(lambda: self._keep_alive(request, timeout=deadline_s, metadata=_HAS_LEADER))
        try:
            for message in call:
                return bool(_parse(pb.LeaseKeepAliveResponse, message, self.address).ttl > 0)
        except grpc.RpcError as failed:
            raise self._problem(failed, _KEEP_ALIVE, deadline_s) from None
        finally:
            call.cancel()
        raise Unreachable(f"LeaseKeepAlive at {self.address}: it ended without an answer; ask another member")

    def watch(self, first: bytes, end: bytes, start_revision: int) -> "EtcdWatch":
        """Changes of these keys from this revision on. It is there when this returns, or fails when it is read."""
        create = pb.WatchCreateRequest(key=first, range_end=end, start_revision=start_revision)
        return EtcdWatch(self, pb.WatchRequest(create_request=create).SerializeToString())

    def close(self) -> None:
        """Calls under way end with an error."""
        self._closed = True
        if os.getpid() == self._process:
            self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, method: _Method, request: Message, kind: type[M], deadline_s: float) -> M:
        data = request.SerializeToString()
        try:
            reply = self._started(lambda: self._unary[method](data, timeout=deadline_s, metadata=_HAS_LEADER))
        except grpc.RpcError as failed:
            raise self._problem(failed, method, deadline_s) from None
        return _parse(kind, reply, self.address)

    def _started(self, call: Callable[[], Any]) -> Any:
        if os.getpid() != self._process:
            raise Closed(f"{self.address}: this connection was made before a fork; start processes with spawn")
        if not self._closed:
            try:
                return call()
            except ValueError:
                if not self._closed:  # closed meanwhile is the one thing that gRPC calls so
                    raise
        raise Closed(f"{self.address}: this peer was closed; make a new one")

    def _problem(self, failed: grpc.RpcError, method: _Method, deadline_s: float) -> WireProblem:
        assert isinstance(failed, grpc.Call)
        details = failed.details() or ""
        for words, why in _REFUSALS:
            if words in details:
                refused = EtcdRefused(f"{method.name} at {self.address}: {details}")
                refused.why = why
                return refused
        problem = problem_of(failed, method, self.address, deadline_s)
        if any(words in details for words in _NOT_PROPOSED):
            problem.took_effect = False
        return problem


class EtcdWatch:
    """An iteration over the parts of a watch; it ends with an error, when the connection does or by close()."""

    def __init__(self, peer: EtcdPeer, request: bytes) -> None:
        self._peer = peer
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._requests.put(request)
        # The requests' side stays open: its end would end the watch.
        self._call = peer._started(lambda: peer._watch(iter(self._requests.get, None), metadata=_HAS_LEADER))

    def __iter__(self) -> Iterator[WatchPart]:
        try:
            for message in self._call:
                reply = _parse(pb.WatchResponse, message, self._peer.address)
                if reply.canceled and not reply.compact_revision:
                    raise Unreachable(f"Watch at {self._peer.address}: it was ended: {reply.cancel_reason}; ask again")
                events = [WatchEvent(_entry(event.kv), event.type == _DELETED) for event in reply.events]
                yield WatchPart(events, reply.compact_revision)
        except grpc.RpcError as failed:
            raise self._peer._problem(failed, _WATCH, 0.0) from None
        finally:
            self.close()

    def close(self) -> None:
        self._call.cancel()
        self._requests.put(None)


def _entry(kv: pb.KeyValue) -> KeyValue:
    return KeyValue(kv.key, kv.value, kv.mod_revision, kv.create_revision, kv.lease)


def _compare(one: EtcdCompare) -> pb.Compare:
    compare = pb.Compare(target=_TARGETS[one.respect], key=one.key)
    if isinstance(one.to, bytes):
        compare.value = one.to
    elif one.respect == "created":
        compare.create_revision = one.to
    else:
        compare.mod_revision = one.to
    return compare


def _operation(one: EtcdOperation) -> pb.RequestOp:
    match one:
        case EtcdPut(key, value, lease):
            return pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
        case EtcdDelete(key):
            return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key))
        case EtcdGet(key):
            return pb.RequestOp(request_range=pb.RangeRequest(key=key))


def _parse(kind: type[M], data: bytes, address: str) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as wrong:
        name = kind.DESCRIPTOR.name
        raise PeerFailed(f"{address} answered {len(data)} bytes that are no {name}: {wrong}; is etcd there?") from None
