"""Messages of the files' service as bytes, and back. What cannot be right is refused here, before a path is opened."""

from collections.abc import Sequence

from typing_extensions import Buffer

from ..errors import WireRefused
from ..model.segment import Segment
from . import fields
from .files_messages import (
    RANGES_MAX,
    READ_BYTES_MAX,
    ByteRange,
    FileBytes,
    Listing,
    NewestSegment,
    Reach,
    ShardSight,
    Sight,
)
from .generated import files_pb2 as pb
from .received import named, parse, require

FILES = pb.DESCRIPTOR.services_by_name["Files"].full_name
_PART, _CONTENT = b"\x0a", b"\x12"  # field number and wire type, as they are written
_PARTS, _CONTENTS = 1, 2  # numbers of those fields
_ROOT = "streams"
_DEPTH_MAX = 8
_PATH_CHARS_MAX = 1024
_NUMBER_MAX = 2**63 - 1
_SHARDS_MAX = 65536


def encode_look(stream: str, seen: int) -> bytes:
    return pb.SightRequest(stream=stream, seen=seen).SerializeToString()


def decode_look(data: bytes) -> tuple[str, int]:
    message = parse(pb.SightRequest, data)
    return named(message.stream, "stream"), message.seen


def encode_sight(sight: Sight | None) -> bytes:
    if sight is None:
        return b""
    shards = [
        pb.Shard(shard=one.shard, listing=one.listing, newest=None if one.newest is None else _newest(one.newest))
        for one in sight.shards
    ]
    return pb.SightReply(number=sight.number, shards=shards).SerializeToString()


def decode_sight(data: bytes) -> Sight | None:
    message = parse(pb.SightReply, data)
    if not message.number:
        return None
    require(len(message.shards) <= _SHARDS_MAX, "more shards than a stream has")
    shards = []
    for one in message.shards:
        require(one.shard < _SHARDS_MAX, f"shard {one.shard}")
        newest = _newest_of(one.newest) if one.HasField("newest") else None
        shards.append(ShardSight(one.shard, one.listing, newest))
    return Sight(message.number, tuple(shards))


def encode_folder(folder: str) -> bytes:
    return pb.ListRequest(folder=folder).SerializeToString()


def decode_folder(data: bytes) -> str:
    return _path(parse(pb.ListRequest, data).folder, least=1)


def encode_listing(listing: Listing) -> bytes:
    return pb.ListReply(listing=listing.number, names=listing.names).SerializeToString()


def decode_listing(data: bytes) -> Listing:
    message = parse(pb.ListReply, data)
    return Listing(message.listing, tuple(message.names))


def encode_ranges(ranges: Sequence[ByteRange]) -> bytes:
    asked = [pb.Range(path=one.path, offset=one.offset, size=one.size) for one in ranges]
    return pb.ReadRequest(ranges=asked).SerializeToString()


def decode_ranges(data: bytes) -> list[ByteRange]:
    message = parse(pb.ReadRequest, data)
    require(len(message.ranges) <= RANGES_MAX, f"{len(message.ranges)} ranges")
    size = sum(one.size for one in message.ranges)
    require(size <= READ_BYTES_MAX, f"{size} bytes in one call")
    ranges = []
    for one in message.ranges:
        require(one.offset <= _NUMBER_MAX - READ_BYTES_MAX, "an offset above 2**63")
        ranges.append(ByteRange(_path(one.path, least=3), one.offset, one.size))
    return ranges


def encode_parts(parts: Sequence[FileBytes | None]) -> bytes:
    """What the protobuf library would make, with the contents copied once."""
    out: list[Buffer] = []
    for part in parts:
        content: Buffer = b"" if part is None else part.content
        head = b"" if part is None else pb.Part(length=_length(part.reach)).SerializeToString()
        if size := len(memoryview(content)):
            head += _CONTENT + fields.varint(size)
        out += [_PART + fields.varint(len(head) + size) + head, content]
    return b"".join(out)


def decode_parts(data: bytes, ranges: Sequence[ByteRange]) -> list[FileBytes | None]:
    """The contents stay where they are, in `data`."""
    try:
        found = [_part(body) for number, body in fields.split(memoryview(data)) if number == _PARTS]
    except ValueError:
        raise WireRefused(f"{len(data)} bytes that are no parts") from None
    require(len(found) == len(ranges), f"{len(found)} parts for {len(ranges)} ranges")
    for asked, part in zip(ranges, found, strict=True):
        size = 0 if part is None else len(memoryview(part.content))
        require(size <= asked.size, f"{size} bytes for {asked.size}")
    return found


def _part(body: memoryview) -> FileBytes | None:
    small: list[memoryview] = []
    content = memoryview(b"")
    for number, value in fields.split(body, keep=small):
        if number == _CONTENTS:
            content = value
            small.pop()
    message = parse(pb.Part, b"".join(small))
    return FileBytes(_reach(message.length), content) if message.HasField("length") else None


def _path(text: str, least: int) -> str:
    """Of at least so many names, which begin with the folder of all streams. No name begins with a dot."""
    require(len(text) <= _PATH_CHARS_MAX, f"a path of {len(text)} characters")
    names = text.split("/")
    require(least <= len(names) <= _DEPTH_MAX and names[0] == _ROOT, f"the path {text[:80]!r}")
    for name in names:
        named(name, "file")
    return text


def _newest(newest: NewestSegment) -> pb.Newest:
    return pb.Newest(
        created_us=newest.segment.created_us,
        data_base=newest.segment.data_base,
        index_base=newest.segment.index_base,
        data=_length(newest.data),
        index=_length(newest.index),
    )


def _newest_of(message: pb.Newest) -> NewestSegment:
    numbers = message.created_us, message.data_base, message.index_base
    require(max(numbers) <= _NUMBER_MAX, "a number above 2**63")
    return NewestSegment(Segment(*numbers), _reach(message.data), _reach(message.index))


def _length(reach: Reach) -> pb.Length:
    return pb.Length(flushed=reach.flushed, readable=reach.readable, appending=reach.appending)


def _reach(message: pb.Length) -> Reach:
    require(message.flushed <= message.readable <= _NUMBER_MAX, f"{message.flushed} bytes of {message.readable}")
    return Reach(message.flushed, message.readable, message.appending)
