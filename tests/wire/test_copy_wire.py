"""Copy messages: what is sent is what arrives, and what nobody would send is refused before it touches anything."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

import tailrace.wire
from tailrace.config import TlsConfig
from tailrace.errors import Denied, Superseded, Unreachable, WireProblem, WireRefused
from tailrace.model.segment import Segment
from tailrace.wire import (
    Batch,
    CopyPeer,
    Opening,
    Operation,
    Order,
    Orders,
    Piece,
    Report,
    Running,
    Standing,
    copy_codec,
    serve_copies,
)
from tailrace.wire.generated import copy_pb2 as pb
from wire.certificates import Authority

ROOM = Path(tailrace.wire.__file__).parent
NUMBER = st.integers(0, 2**63 - 1)
SMALL = st.integers(0, 1 << 20)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
OPERATION = st.builds(Operation, NAME, st.integers(0, 65535), st.sampled_from(["durable", "cache"]), NAME)
SEGMENT = st.builds(Segment, st.integers(1, 2**63 - 1), NUMBER, NUMBER)
PIECE = st.builds(Piece, st.sampled_from(["data", "index"]), st.integers(0, 2**40), st.binary(min_size=1, max_size=50))
BATCH = st.builds(
    Batch,
    segment=SEGMENT,
    pieces=st.lists(PIECE, max_size=4).map(tuple),
    oldest_us=NUMBER,
    beat_us=NUMBER,
    data_chunk_bytes=SMALL,
    index_chunk_bytes=SMALL,
    data_start=NUMBER,
    index_start=NUMBER,
    data_needed=NUMBER,
    behind_bytes=NUMBER,
)
OPENING = st.builds(
    Opening, operation=OPERATION, source=NAME, origin=NAME, settings=st.binary(max_size=99), epoch=NUMBER, reader=NAME
)
OPENED = Opening(operation=Operation("s", 0, "durable", "west"), source="east", origin="east", settings=b"{}")


def test_the_generated_messages_were_made_from_this_proto() -> None:
    proto = ROOM / "protos" / "tailrace" / "copy" / "v1" / "copy.proto"
    recorded = (ROOM / "generated" / "copy.sha256").read_text().strip()
    assert recorded == hashlib.sha256(proto.read_bytes()).hexdigest(), "run src/tailrace/wire/generate.sh"


@given(OPENING, BATCH)
def test_openings_and_batches_arrive_as_they_were(opening: Opening, batch: Batch) -> None:
    assert copy_codec.decode_to_writer(copy_codec.encode_opening(opening)) == opening
    assert copy_codec.decode_to_writer(copy_codec.encode_batch(batch)) == batch


@given(BATCH)
def test_a_batch_is_the_protobuf_message(batch: Batch) -> None:
    message = pb.ToWriter.FromString(copy_codec.encode_batch(batch)).batch
    assert [(piece.track, piece.offset, piece.content) for piece in message.pieces] == [
        (("data", "index").index(piece.track), piece.offset, piece.content) for piece in batch.pieces
    ]
    assert copy_codec._batch(message, []) == batch


@given(BATCH, st.data())
def test_what_the_shortcut_takes_the_library_understands_in_the_same_way(batch: Batch, data: st.DataObject) -> None:
    packed = bytearray(copy_codec.encode_batch(batch))
    for _ in range(data.draw(st.integers(0, 3))):
        packed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    changed = bytes(packed[: data.draw(st.integers(0, len(packed)))])
    with contextlib.suppress(WireRefused):
        taken = copy_codec.decode_to_writer(changed)
        if isinstance(taken, Batch):
            try:
                message = pb.ToWriter.FromString(changed)
            except DecodeError:
                return  # the library looks into fields that nobody knows; nothing is done with them here
            assert copy_codec._batch(message.batch, []) == taken


@given(st.builds(Standing, segment=SEGMENT, data_length=NUMBER, index_length=NUMBER, taken_bytes=NUMBER))
def test_standings_arrive_as_they_were(standing: Standing) -> None:
    assert copy_codec.decode_standing(copy_codec.encode_standing(standing)) == standing


@given(
    st.lists(
        st.builds(
            Order,
            operation=OPERATION,
            writers=st.lists(NAME, max_size=3).map(tuple),
            origin=NAME,
            epoch=NUMBER,
            compression=st.sampled_from(["", "zstd"]),
            bytes_per_s=NUMBER,
        ),
        max_size=3,
    ),
    st.lists(st.builds(Running, operation=OPERATION, writer=NAME, problem=st.text(max_size=30)), max_size=3),
)
def test_orders_and_reports_arrive_as_they_were(orders: list[Order], running: list[Running]) -> None:
    sent = Orders(orders=tuple(orders))
    assert copy_codec.decode_orders(copy_codec.encode_orders(sent)) == sent
    report = Report(reader="reader-0", running=tuple(running))
    assert copy_codec.decode_report(copy_codec.encode_report(report)) == report


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [
        copy_codec.decode_to_writer,
        copy_codec.decode_standing,
        copy_codec.decode_orders,
        copy_codec.decode_report,
    ]
    for decode in decoders:
        with contextlib.suppress(WireRefused):
            decode(data)


@pytest.mark.parametrize(
    "hostile",
    [
        pb.Opening(stream="../../etc", storage="durable", source="a", target="b", origin="a"),
        pb.Opening(stream="s", storage="durable", source="a", target="b/c", origin="a"),
        pb.Opening(stream="s", storage="tape", source="a", target="b", origin="a"),
        pb.Opening(stream="s", storage="durable", shard=1 << 20, source="a", target="b", origin="a"),
        pb.Opening(stream="s", storage="durable", source="a", target="b", origin="a", settings=b"x" * 70000),
        pb.Batch(pieces=[pb.Piece(content=b"x")]),
        pb.Batch(created_us=1, pieces=[pb.Piece(content=b"x", track=2)]),
        pb.Batch(created_us=1, pieces=[pb.Piece(content=b"x", offset=1 << 63)]),
        pb.Batch(created_us=1, pieces=[pb.Piece(content=b"x", raw_bytes=1 << 31)]),
        pb.Batch(created_us=1, pieces=[pb.Piece()]),
        pb.Batch(created_us=1, pieces=[pb.Piece(content=b"x")] * 65),
        pb.Batch(created_us=1 << 63),
    ],
)
def test_what_nobody_sends_is_refused(hostile: pb.Opening | pb.Batch) -> None:
    field = "opening" if isinstance(hostile, pb.Opening) else "batch"
    with pytest.raises(WireRefused):
        copy_codec.decode_to_writer(pb.ToWriter(**{field: hostile}).SerializeToString())


class Counting:
    """A writer that only counts."""

    def copy(self, opening: Opening, batches: Iterator[Batch], stop: Callable[[], None]) -> Iterator[Standing]:
        yield Standing(window_bytes=100)
        taken = 0
        for batch in batches:
            taken += batch.size
            if taken > 1000:
                raise Superseded("enough")
            yield Standing(taken_bytes=taken)


def one(size: int) -> Batch:
    return Batch(segment=Segment(1, 0, 0), pieces=(Piece("data", 0, b"x" * size),))


def names(seen: list[object]) -> Callable[[tuple[str, ...] | None], None]:
    def admit(found: tuple[str, ...] | None) -> None:
        seen.append(found)
        if found is not None and "reader.east" not in found:
            raise Denied("not one of our readers")

    return admit


def test_a_call_goes_on_until_the_reader_ends_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        serve_copies([f"unix:{tmp_path}/w"], writer=Counting()) as server,
        CopyPeer(server.addresses[0]) as peer,
    ):
        told = list(peer.copy(OPENED, [one(5), one(7)]))
        assert [standing.taken_bytes for standing in told] == [0, 5, 12]
        with pytest.raises(Superseded, match="enough"):
            list(peer.copy(OPENED, [one(2000)]))
    with CopyPeer(server.addresses[0]) as peer, pytest.raises(Unreachable):
        list(peer.copy(OPENED, []))


def test_readers_are_known_by_their_certificates(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    server_tls = authority.issue("writer.west", "localhost", file="server")
    seen: list[object] = []
    with serve_copies(["localhost:0"], writer=Counting(), tls=server_tls, admit=names(seen)) as server:

        def call(tls: TlsConfig | None) -> list[Standing]:
            with CopyPeer(server.addresses[0], tls=tls) as peer:
                return list(peer.copy(OPENED, [one(5)]))

        assert call(authority.issue("reader.east", file="reader"))[-1].taken_bytes == 5
        with pytest.raises(Denied, match="not one of our readers"):
            call(authority.issue("consumer.east", file="consumer"))
        assert seen == [("reader.east",), ("consumer.east",)]
        for foreign in (stranger.issue("reader.east", file="foreign"), None):
            with pytest.raises(WireProblem):
                call(foreign)
        assert len(seen) == 2
