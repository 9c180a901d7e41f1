"""The methods of a backend: how their requests and replies become bytes and plain types again.

A request is decoded to the arguments of the service's method. Decoding checks what protobuf cannot say, and raises
WireRefused: what comes from another process is never trusted to have the right sizes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import DecodeError, Message

from ..errors import WireRefused
from . import frames
from .generated import backend_pb2 as pb
from .messages import (
    HASH_BYTES,
    PARTITIONS,
    RECORD_BYTES,
    TICKET_BYTES,
    Answer,
    AttachReply,
    DigestReply,
    Engine,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
    Version,
)

M = TypeVar("M", bound=Message)

SERVICE = pb.DESCRIPTOR.services_by_name["Backend"].full_name
_CLIENT_CHARS_MAX = 256


@dataclass(frozen=True, slots=True)
class Method:
    name: str  # on the wire
    call: str  # of BackendService
    changes: bool  # False: it only looks, so a call that failed may always be repeated
    streams: bool
    encode_request: Callable[..., bytes]
    decode_request: Callable[[bytes], tuple[Any, ...]]
    encode_reply: Callable[[Any], bytes]
    decode_reply: Callable[[bytes], Any]

    @property
    def path(self) -> str:
        return f"/{SERVICE}/{self.name}"


def _encode_attach(client: str, wants_engine: bool) -> bytes:
    return pb.AttachRequest(client=client, wants_engine=wants_engine).SerializeToString()


def _decode_attach(data: bytes) -> tuple[str, bool]:
    request = _parse(pb.AttachRequest, data)
    _require(len(request.client) <= _CLIENT_CHARS_MAX, f"a client name of {len(request.client)} characters")
    return request.client, request.wants_engine


def _encode_attached(reply: AttachReply) -> bytes:
    engine = reply.engine
    return pb.AttachReply(
        instance=reply.instance,
        config_id=reply.config_id,
        cache=reply.cache,
        backend=reply.backend,
        host=reply.host,
        folder=reply.folder,
        engine=None if engine is None else pb.Engine(host=engine.host, port=engine.port, ticket=engine.ticket),
        time_us=reply.time_us,
        mode=reply.mode,
    ).SerializeToString()


def _decode_attached(data: bytes) -> AttachReply:
    reply = _parse(pb.AttachReply, data)
    engine = None
    if reply.HasField("engine"):
        _require(len(reply.engine.ticket) == TICKET_BYTES, f"a ticket of {len(reply.engine.ticket)} bytes")
        least = 0 if reply.engine.host.startswith("unix:") else 1
        _require(least <= reply.engine.port <= 65535, f"an engine at port {reply.engine.port}")
        engine = Engine(host=reply.engine.host, port=reply.engine.port, ticket=reply.engine.ticket)
    return AttachReply(
        instance=reply.instance,
        config_id=reply.config_id,
        cache=reply.cache,
        backend=reply.backend,
        host=reply.host,
        folder=reply.folder,
        engine=engine,
        time_us=reply.time_us,
        mode=reply.mode,
    )


def _decode_mutate(data: bytes) -> tuple[int, int, memoryview]:
    if (quick := frames.unpack(data)) is not None:
        return quick
    request = _parse(pb.MutateRequest, data)
    return request.instance, request.config_id, memoryview(request.frame)


def _encode_mutated(reply: MutateReply) -> bytes:
    return pb.MutateReply(
        instance=reply.instance,
        config_id=reply.config_id,
        outcomes=reply.outcomes,
        floor=_version(reply.floor),
    ).SerializeToString()


def _decode_mutated(data: bytes) -> MutateReply:
    reply = _parse(pb.MutateReply, data)
    return MutateReply(
        instance=reply.instance, config_id=reply.config_id, outcomes=reply.outcomes, floor=_triple(reply.floor)
    )


def _encode_lookup(instance: int, keys: Sequence[bytes], now_s: int) -> bytes:
    return pb.LookupRequest(instance=instance, now_s=now_s, keys=keys).SerializeToString()


def _decode_lookup(data: bytes) -> tuple[int, list[bytes], int]:
    request = _parse(pb.LookupRequest, data)
    return request.instance, list(request.keys), request.now_s


def _encode_looked_up(reply: LookupReply) -> bytes:
    return pb.LookupReply(
        instance=reply.instance,
        config_id=reply.config_id,
        answers=[
            pb.Answer()
            if answer is None
            else pb.Answer(found=True, value=answer.value, version=_version(answer.version), expiry_s=answer.expiry_s)
            for answer in reply.answers
        ],
    ).SerializeToString()


def _decode_looked_up(data: bytes) -> LookupReply:
    reply = _parse(pb.LookupReply, data)
    return LookupReply(
        instance=reply.instance,
        config_id=reply.config_id,
        answers=[
            Answer(answer.value, _triple(answer.version), answer.expiry_s) if answer.found else None
            for answer in reply.answers
        ],
    )


def _encode_touch(hashes: bytes) -> bytes:
    return pb.TouchRequest(hashes=hashes).SerializeToString()


def _decode_touch(data: bytes) -> tuple[bytes]:
    return (_hashes(_parse(pb.TouchRequest, data).hashes),)


def _encode_touched(reply: TouchReply) -> bytes:
    return pb.TouchReply(instance=reply.instance, config_id=reply.config_id).SerializeToString()


def _decode_touched(data: bytes) -> TouchReply:
    reply = _parse(pb.TouchReply, data)
    return TouchReply(instance=reply.instance, config_id=reply.config_id)


def _encode_digest(shared: Shared) -> bytes:
    return pb.DigestRequest(home=shared.home, backends=shared.backends).SerializeToString()


def _decode_digest(data: bytes) -> tuple[Shared]:
    request = _parse(pb.DigestRequest, data)
    return (_shared(request.home, request.backends, (1 << PARTITIONS) - 1),)


def _encode_digested(reply: DigestReply) -> bytes:
    return pb.DigestReply(instance=reply.instance, config_id=reply.config_id, digests=reply.digests).SerializeToString()


def _decode_digested(data: bytes) -> DigestReply:
    reply = _parse(pb.DigestReply, data)
    _require(len(reply.digests) == 8 * PARTITIONS, f"digests of {len(reply.digests)} bytes")
    return DigestReply(instance=reply.instance, config_id=reply.config_id, digests=reply.digests)


def _encode_list(shared: Shared) -> bytes:
    return pb.ListRequest(
        home=shared.home, backends=shared.backends, partitions=shared.partitions, start=_version(shared.start)
    ).SerializeToString()


def _decode_list(data: bytes) -> tuple[Shared]:
    request = _parse(pb.ListRequest, data)
    return (_shared(request.home, request.backends, request.partitions, _triple(request.start)),)


def _shared(home: int, backends: int, partitions: int, start: Version = (0, 0, 0)) -> Shared:
    _require(home < backends, f"a home {home} among {backends} backends")
    return Shared(home=home, backends=backends, partitions=partitions, start=start)


def _encode_list_part(part: ListPart) -> bytes:
    return pb.ListPart(
        instance=part.instance,
        config_id=part.config_id,
        records=part.records,
        tombstones=part.tombstones,
        summary=_version(part.summary),
        complete=part.complete,
    ).SerializeToString()


def _decode_list_part(data: bytes) -> ListPart:
    part = _parse(pb.ListPart, data)
    for packed in (part.records, part.tombstones):
        _require(len(packed) % RECORD_BYTES == 0, f"{len(packed)} bytes of records that have {RECORD_BYTES} each")
    return ListPart(
        instance=part.instance,
        config_id=part.config_id,
        records=part.records,
        tombstones=part.tombstones,
        summary=_triple(part.summary),
        complete=part.complete,
    )


def _encode_fetch(hashes: bytes) -> bytes:
    return pb.FetchRequest(hashes=hashes).SerializeToString()


def _decode_fetch(data: bytes) -> tuple[bytes]:
    return (_hashes(_parse(pb.FetchRequest, data).hashes),)


def _encode_fetch_part(part: FetchPart) -> bytes:
    return frames.pack(part.instance, part.config_id, part.frame)


def _decode_fetch_part(data: bytes) -> FetchPart:
    if (quick := frames.unpack(data)) is not None:
        return FetchPart(instance=quick[0], config_id=quick[1], frame=quick[2])
    part = _parse(pb.FetchPart, data)
    return FetchPart(instance=part.instance, config_id=part.config_id, frame=memoryview(part.frame))


def _encode_stats() -> bytes:
    return pb.StatsRequest().SerializeToString()


def _decode_stats(data: bytes) -> tuple[()]:
    _parse(pb.StatsRequest, data)
    return ()


def _encode_counters(reply: StatsReply) -> bytes:
    return pb.StatsReply(
        instance=reply.instance, config_id=reply.config_id, counters=dict(reply.counters)
    ).SerializeToString()


def _decode_counters(data: bytes) -> StatsReply:
    reply = _parse(pb.StatsReply, data)
    return StatsReply(instance=reply.instance, config_id=reply.config_id, counters=dict(reply.counters))


ATTACH = Method("Attach", "attach", True, False, _encode_attach, _decode_attach, _encode_attached, _decode_attached)
MUTATE = Method("Mutate", "mutate", True, False, frames.pack, _decode_mutate, _encode_mutated, _decode_mutated)
LOOKUP = Method("Lookup", "lookup", False, False, _encode_lookup, _decode_lookup, _encode_looked_up, _decode_looked_up)
TOUCH = Method("Touch", "touch", True, False, _encode_touch, _decode_touch, _encode_touched, _decode_touched)
DIGEST = Method("Digest", "digest", False, False, _encode_digest, _decode_digest, _encode_digested, _decode_digested)
LIST = Method("List", "list_hashes", False, True, _encode_list, _decode_list, _encode_list_part, _decode_list_part)
FETCH = Method("Fetch", "fetch", False, True, _encode_fetch, _decode_fetch, _encode_fetch_part, _decode_fetch_part)
STATS = Method("Stats", "stats", False, False, _encode_stats, _decode_stats, _encode_counters, _decode_counters)
METHODS = (ATTACH, MUTATE, LOOKUP, TOUCH, DIGEST, LIST, FETCH, STATS)


def first_that_fit(reply: LookupReply, bytes_max: int) -> LookupReply:
    """The reply with as many answers as fit a message; the client asks again for the others."""
    left = bytes_max - _LOOKUP_HEAD_BYTES
    for count, answer in enumerate(reply.answers):
        left -= _ANSWER_HEAD_BYTES + (0 if answer is None else len(answer.value))
        if left < 0:
            if count == 0:
                raise WireRefused(f"an answer does not fit a message of {bytes_max} bytes; raise message_bytes_max")
            return LookupReply(instance=reply.instance, config_id=reply.config_id, answers=reply.answers[:count])
    return reply


# More than protobuf ever needs around the values: tags, lengths, version, expiry.
_LOOKUP_HEAD_BYTES = 64
_ANSWER_HEAD_BYTES = 64


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError as wrong:
        raise WireRefused(
            f"{len(data)} bytes that are no {kind.DESCRIPTOR.name}: {wrong}; do both ends match?"
        ) from None


def _hashes(packed: bytes) -> bytes:
    _require(len(packed) % HASH_BYTES == 0, f"{len(packed)} bytes of hashes that have {HASH_BYTES} each")
    return packed


def _require(holds: bool, seen: str) -> None:
    if not holds:
        raise WireRefused(f"{seen}; do both ends run versions that go together?")


def _version(version: Version) -> pb.Version:
    return pb.Version(clock_us=version[0], client=version[1], sequence=version[2])


def _triple(version: pb.Version) -> Version:
    return version.clock_us, version.client, version.sequence
