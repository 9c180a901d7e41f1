"""Messages of the check as bytes, and back. What cannot be right is refused here, before a path is built of it."""

from ..model.message_file import TRACKS
from ..model.segment import Segment
from .check_messages import BLOCK_HASH_BYTES, HASHED_BYTES_MAX, HASHES_MAX, Blocks, Held, Holding
from .generated import check_pb2 as pb
from .received import named, parse, require

CHECKER = pb.DESCRIPTOR.services_by_name["Checker"].full_name
_NUMBER_MAX = 2**63 - 1
_SHARDS_MAX = 65536
_HELD_MAX = 200_000  # of one shard


def encode_place(stream: str, shard: int) -> bytes:
    return pb.HoldingRequest(stream=stream, shard=shard).SerializeToString()


def decode_place(data: bytes) -> tuple[str, int]:
    message = parse(pb.HoldingRequest, data)
    return _place(message.stream, message.shard)


def encode_holding(holding: Holding | None) -> bytes:
    if holding is None:
        return b""
    return pb.HoldingReply(
        incarnation=holding.incarnation,
        shards=holding.shards,
        held=[
            pb.Held(
                created_us=one.segment.created_us,
                data_base=one.segment.data_base,
                index_base=one.segment.index_base,
                data_length=one.data_length,
                index_length=one.index_length,
            )
            for one in holding.held
        ],
    ).SerializeToString()


def decode_holding(data: bytes) -> Holding | None:
    message = parse(pb.HoldingReply, data)
    if not message.incarnation:
        return None
    require(message.shards <= _SHARDS_MAX and len(message.held) <= _HELD_MAX, "more than a stream has")
    held = []
    for one in message.held:
        numbers = one.created_us, one.data_base, one.index_base, one.data_length, one.index_length
        require(max(numbers) <= _NUMBER_MAX, "a number above 2**63")
        held.append(Held(Segment(*numbers[:3]), *numbers[3:]))
    return Holding(incarnation=named(message.incarnation, "incarnation"), shards=message.shards, held=tuple(held))


def encode_blocks(blocks: Blocks) -> bytes:
    return pb.HashesRequest(
        stream=blocks.stream,
        shard=blocks.shard,
        created_us=blocks.segment.created_us,
        data_base=blocks.segment.data_base,
        index_base=blocks.segment.index_base,
        track=TRACKS.index(blocks.track),
        offset=blocks.offset,
        size=blocks.size,
        block_bytes=blocks.block_bytes,
    ).SerializeToString()


def decode_blocks(data: bytes) -> Blocks:
    message = parse(pb.HashesRequest, data)
    stream, shard = _place(message.stream, message.shard)
    numbers = message.created_us, message.data_base, message.index_base
    require(max(*numbers, message.offset) <= _NUMBER_MAX - HASHED_BYTES_MAX, "a number above 2**63")
    require(message.track < len(TRACKS), f"track {message.track}")
    require(0 < message.size <= HASHED_BYTES_MAX, f"hashes of {message.size} bytes")
    require(message.block_bytes > 0 and message.size <= message.block_bytes * HASHES_MAX, "too many hashes")
    return Blocks(
        stream=stream,
        shard=shard,
        segment=Segment(*numbers),
        track=TRACKS[message.track],
        offset=message.offset,
        size=message.size,
        block_bytes=message.block_bytes,
    )


def encode_hashes(hashes: bytes) -> bytes:
    return pb.HashesReply(hashes=hashes).SerializeToString()


def decode_hashes(data: bytes) -> bytes:
    hashes = parse(pb.HashesReply, data).hashes
    require(len(hashes) % BLOCK_HASH_BYTES == 0, f"{len(hashes)} bytes of hashes")
    return hashes


def _place(stream: str, shard: int) -> tuple[str, int]:
    require(shard < _SHARDS_MAX, f"shard {shard}")
    return named(stream, "stream"), shard
