"""Copy messages as bytes, and back. What comes from another cluster is refused here unless every name and number in it
can be right: a name must be fit for a path before anybody builds one."""

from ..errors import WireRefused
from ..model.message_file import TRACKS, Track
from ..model.segment import Segment
from . import fields
from .copy_messages import (
    STATES,
    STORAGES,
    Batch,
    Opening,
    Operation,
    Order,
    Orders,
    Piece,
    Report,
    Running,
    Standing,
    State,
    Storage,
)
from .generated import copy_pb2 as pb
from .received import named, parse, require

WRITER = pb.DESCRIPTOR.services_by_name["Writer"].full_name
SCHEDULER = pb.DESCRIPTOR.services_by_name["Scheduler"].full_name
PIECES_MAX = 64  # in a batch
PIECE_BYTES_MAX = 8 << 20  # also of what is compressed
_MUCH_BYTES = 1 << 20
_NUMBER_MAX = 2**63 - 1
_BATCH, _PIECE, _CONTENT = b"\x12", b"\x22", b"\x1a"  # field number and wire type, as they are written
_PIECES, _CONTENTS = 4, 3  # numbers of those fields
_SETTINGS_BYTES_MAX = 64 << 10
_SHARDS_MAX = 65536
_CHUNK_BYTES_MAX = 1 << 20
_WRITERS_MAX = 64
_OPERATIONS_MAX = 100_000
_CHARS_MAX = 1000


def encode_opening(opening: Opening) -> bytes:
    operation = opening.operation
    return pb.ToWriter(
        opening=pb.Opening(
            stream=operation.stream,
            shard=operation.shard,
            storage=operation.storage,
            source=opening.source,
            target=operation.target,
            origin=opening.origin,
            settings=opening.settings,
            epoch=opening.epoch,
            reader=opening.reader,
        )
    ).SerializeToString()


def encode_batch(batch: Batch) -> bytes:
    """What the protobuf library would make, with the contents copied once instead of four times: fields may come in any
    order, so that pieces follow the small fields."""
    small = pb.Batch(
        oldest_us=batch.oldest_us,
        beat_us=batch.beat_us,
        data_chunk_bytes=batch.data_chunk_bytes,
        index_chunk_bytes=batch.index_chunk_bytes,
        data_start=batch.data_start,
        index_start=batch.index_start,
        data_needed=batch.data_needed,
        behind_bytes=batch.behind_bytes,
    )
    if (segment := batch.segment) is not None:
        small.created_us, small.data_base, small.index_base = _numbers(segment)
    parts: list[bytes | memoryview] = [small.SerializeToString()]
    for piece in batch.pieces:
        about = pb.Piece(track=TRACKS.index(piece.track), offset=piece.offset, raw_bytes=piece.raw_bytes)
        head = about.SerializeToString() + _CONTENT + fields.varint(len(piece.content))
        parts += [_PIECE + fields.varint(len(head) + len(piece.content)) + head, piece.content]
    return b"".join([_BATCH, fields.varint(sum(map(len, parts))), *parts])


def has_much_behind(batch: Batch) -> bool:
    """More of its size is still to be sent: worth being prepared while this one is dealt with."""
    return batch.behind_bytes >= _MUCH_BYTES


def decode_to_writer(data: bytes) -> Opening | Batch:
    """A batch's contents are parts of the data, not copies."""
    if data[:1] == _BATCH:
        return _batch(*_quick_batch(data))
    message = parse(pb.ToWriter, data)
    require(message.HasField("opening") != message.HasField("batch"), "neither an opening nor a batch")
    return _opening(message.opening) if message.HasField("opening") else _batch(message.batch, [])


def _opening(message: pb.Opening) -> Opening:
    require(len(message.settings) <= _SETTINGS_BYTES_MAX, f"settings of {len(message.settings)} bytes")
    require(message.epoch <= _NUMBER_MAX, f"epoch {message.epoch}")
    return Opening(
        operation=_operation(message),
        source=named(message.source, "cluster"),
        origin=named(message.origin, "cluster"),
        settings=message.settings,
        epoch=message.epoch,
        reader=_text(message.reader),
    )


def _quick_batch(data: bytes) -> tuple[pb.Batch, list[tuple[pb.Piece, memoryview]]]:
    """The small fields, and the pieces with their contents beside them."""
    try:
        ((number, body),) = fields.split(memoryview(data))
        require(number == 2 and isinstance(body, memoryview), "not a batch")
        small: list[memoryview] = []
        pieces: list[tuple[pb.Piece, memoryview]] = []
        for number, value in fields.split(body, keep=small):
            if number == _PIECES:
                about: list[memoryview] = []
                content = memoryview(b"")
                for inner, part in fields.split(value, keep=about):
                    if inner == _CONTENTS:
                        content = part
                        about.pop()
                small.pop()
                pieces.append((parse(pb.Piece, b"".join(about)), content))
        return parse(pb.Batch, b"".join(small)), pieces
    except ValueError:
        raise WireRefused(f"{len(data)} bytes that are no batch") from None


def _batch(message: pb.Batch, pieces: list[tuple[pb.Piece, memoryview]]) -> Batch:
    pieces = pieces or [(piece, memoryview(piece.content)) for piece in message.pieces]
    require(len(pieces) <= PIECES_MAX, f"{len(pieces)} pieces in a batch")
    require(not pieces or message.created_us > 0, "pieces of no segment")
    sizes = message.data_chunk_bytes, message.index_chunk_bytes
    require(max(sizes) <= _CHUNK_BYTES_MAX, f"chunks of {max(sizes)} bytes")
    numbers = message.oldest_us, message.beat_us, message.data_start, message.index_start, message.data_needed
    require(max(*numbers, message.behind_bytes) <= _NUMBER_MAX, "a number above 2**63")
    return Batch(
        segment=_segment(message),
        pieces=tuple(_piece(piece, content) for piece, content in pieces),
        oldest_us=message.oldest_us,
        beat_us=message.beat_us,
        data_chunk_bytes=message.data_chunk_bytes,
        index_chunk_bytes=message.index_chunk_bytes,
        data_start=message.data_start,
        index_start=message.index_start,
        data_needed=message.data_needed,
        behind_bytes=message.behind_bytes,
    )


def _piece(message: pb.Piece, content: memoryview) -> Piece:
    size = message.raw_bytes or len(content)
    require(message.track < len(TRACKS), f"track {message.track}")
    require(0 < size <= PIECE_BYTES_MAX and len(content) <= PIECE_BYTES_MAX, f"a piece of {size} bytes")
    require(message.offset <= _NUMBER_MAX - size, f"a piece at {message.offset}")
    track: Track = TRACKS[message.track]
    return Piece(track, message.offset, content, message.raw_bytes)


def encode_standing(standing: Standing) -> bytes:
    message = pb.Standing(
        data_length=standing.data_length,
        index_length=standing.index_length,
        taken_bytes=standing.taken_bytes,
        window_bytes=standing.window_bytes,
    )
    if standing.segment is not None:
        message.created_us, message.data_base, message.index_base = _numbers(standing.segment)
    return message.SerializeToString()


def decode_standing(data: bytes) -> Standing:
    message = parse(pb.Standing, data)
    numbers = message.data_length, message.index_length, message.taken_bytes, message.window_bytes
    require(max(numbers) <= _NUMBER_MAX, "a number above 2**63")
    return Standing(
        segment=_segment(message),
        data_length=message.data_length,
        index_length=message.index_length,
        taken_bytes=message.taken_bytes,
        window_bytes=message.window_bytes,
    )


def encode_orders(orders: Orders) -> bytes:
    return pb.Orders(
        orders=[
            pb.Order(
                operation=_message(order.operation),
                writers=order.writers,
                origin=order.origin,
                epoch=order.epoch,
                compression=order.compression,
                bytes_per_s=order.bytes_per_s,
            )
            for order in orders.orders
        ]
    ).SerializeToString()


def decode_orders(data: bytes) -> Orders:
    message = parse(pb.Orders, data)
    require(len(message.orders) <= _OPERATIONS_MAX, f"{len(message.orders)} orders")
    return Orders(orders=tuple(map(_order, message.orders)))


def _order(message: pb.Order) -> Order:
    require(len(message.writers) <= _WRITERS_MAX, f"{len(message.writers)} writers")
    require(message.compression in ("", "zstd"), f"compression {message.compression[:20]!r}")
    require(max(message.epoch, message.bytes_per_s) <= _NUMBER_MAX, "a number above 2**63")
    return Order(
        operation=_operation(message.operation),
        writers=tuple(map(_text, message.writers)),
        origin=named(message.origin, "cluster"),
        epoch=message.epoch,
        compression=message.compression,
        bytes_per_s=message.bytes_per_s,
    )


def encode_report(report: Report) -> bytes:
    return pb.Report(
        reader=report.reader,
        running=[
            pb.Running(
                operation=_message(one.operation),
                writer=one.writer,
                state=one.state,
                copied_bytes=one.copied_bytes,
                behind_bytes=one.behind_bytes,
                problem=one.problem[:_CHARS_MAX],
            )
            for one in report.running
        ],
    ).SerializeToString()


def decode_report(data: bytes) -> Report:
    message = parse(pb.Report, data)
    require(len(message.running) <= _OPERATIONS_MAX, f"{len(message.running)} operations")
    return Report(reader=named(message.reader, "reader"), running=tuple(map(_running, message.running)))


def _running(message: pb.Running) -> Running:
    states: dict[str, State] = {state: state for state in STATES}
    require(message.state in states, f"state {message.state[:20]!r}")
    require(max(message.copied_bytes, message.behind_bytes) <= _NUMBER_MAX, "a number above 2**63")
    return Running(
        operation=_operation(message.operation),
        writer=_text(message.writer),
        state=states[message.state],
        copied_bytes=message.copied_bytes,
        behind_bytes=message.behind_bytes,
        problem=_text(message.problem),
    )


# ---- what several of them have


def _message(operation: Operation) -> pb.Operation:
    return pb.Operation(
        stream=operation.stream, shard=operation.shard, storage=operation.storage, target=operation.target
    )


def _operation(message: pb.Operation | pb.Opening) -> Operation:
    storages: dict[str, Storage] = {storage: storage for storage in STORAGES}
    require(message.storage in storages, f"storage {message.storage[:20]!r}")
    require(message.shard < _SHARDS_MAX, f"shard {message.shard}")
    return Operation(
        named(message.stream, "stream"), message.shard, storages[message.storage], named(message.target, "cluster")
    )


def _segment(message: pb.Batch | pb.Standing) -> Segment | None:
    segment = Segment(message.created_us, message.data_base, message.index_base)
    require(max(_numbers(segment)) <= _NUMBER_MAX, "a segment above 2**63")
    return segment if segment.created_us else None


def _numbers(segment: Segment) -> tuple[int, int, int]:
    return segment.created_us, segment.data_base, segment.index_base


def _text(text: str) -> str:
    require(len(text) <= _CHARS_MAX, f"a text of {len(text)} characters")
    return text
