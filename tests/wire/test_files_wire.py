"""Files from afar: what is sent is what arrives; what nobody would send, and what lies elsewhere, is refused."""

import contextlib
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.env import SystemClock
from tailrace.errors import Busy, Denied, PeerFailed, Unreachable, WireRefused
from tailrace.files import PosixFiles
from tailrace.files.served import ServedFiles
from tailrace.model.segment import Segment
from tailrace.wire import (
    RANGES_MAX,
    READ_BYTES_MAX,
    ByteRange,
    FileBytes,
    FilesPeer,
    Listing,
    NewestSegment,
    Reach,
    ShardSight,
    Sight,
    files_codec,
    serve_copies,
)
from tailrace.wire.generated import files_pb2 as pb
from wire.certificates import Authority

NUMBER = st.integers(0, 2**63 - 1)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
PATH = st.lists(NAME, min_size=2, max_size=4).map(lambda names: "/".join(["streams", *names]))
REACH = st.builds(lambda one, two, up: Reach(min(one, two), max(one, two), up), NUMBER, NUMBER, st.booleans())
SEGMENT = st.builds(Segment, NUMBER, NUMBER, NUMBER)
SHARD = st.builds(
    ShardSight,
    st.integers(0, 65535),
    st.integers(1, 2**64 - 1),
    st.none() | st.builds(NewestSegment, SEGMENT, REACH, REACH),
)
SIGHT = st.none() | st.builds(Sight, st.integers(1, 2**64 - 1), st.lists(SHARD, max_size=3).map(tuple))
PART = st.none() | st.builds(FileBytes, REACH, st.binary(max_size=50))


@given(NAME, st.integers(0, 2**64 - 1), SIGHT)
def test_sights_arrive_as_they_were(stream: str, seen: int, sight: Sight | None) -> None:
    assert files_codec.decode_look(files_codec.encode_look(stream, seen)) == (stream, seen)
    assert files_codec.decode_sight(files_codec.encode_sight(sight)) == sight


@given(PATH, st.builds(Listing, NUMBER, st.lists(NAME, max_size=5).map(tuple)))
def test_listings_arrive_as_they_were(folder: str, listing: Listing) -> None:
    assert files_codec.decode_folder(files_codec.encode_folder(folder)) == folder
    assert files_codec.decode_listing(files_codec.encode_listing(listing)) == listing


@given(st.lists(st.tuples(PATH, st.integers(0, 2**62), PART), max_size=4))
def test_ranges_and_parts_arrive_as_they_were(asked: list[tuple[str, int, FileBytes | None]]) -> None:
    ranges = [ByteRange(path, offset, 50) for path, offset, _ in asked]
    parts = [part for _, _, part in asked]
    assert files_codec.decode_ranges(files_codec.encode_ranges(ranges)) == ranges
    packed = files_codec.encode_parts(parts)
    assert files_codec.decode_parts(packed, ranges) == parts
    assert [one.content for one in pb.ReadReply.FromString(packed).parts] == [
        part.content if part else b"" for part in parts
    ]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_are_refused(data: bytes) -> None:
    decoders: list[Callable[[bytes], object]] = [
        files_codec.decode_look,
        files_codec.decode_sight,
        files_codec.decode_folder,
        files_codec.decode_listing,
        files_codec.decode_ranges,
        lambda data: files_codec.decode_parts(data, [ByteRange("streams/s/a", 0, 9)]),
    ]
    for decode in decoders:
        with contextlib.suppress(WireRefused):
            decode(data)


OUTSIDE = [
    "",
    "/",
    "streams",
    "streams/s",
    "/etc/passwd",
    "../secret",
    "streams/../secret",
    "streams/s/../../secret",
    "streams//s/a",
    "streams/s/.a.fence",
    "streams/.gone.s/a",
    "secret",
    "cluster.json",
    "streams/s/a\0b",
    "streams/s/" + "x" * 200,
    "streams/" + "/".join(["a"] * 20),
]


@pytest.fixture
def door(tmp_path: Path) -> str:
    """A cluster with a stream, and with things that are nobody's business."""
    tmp_path.chmod(0o700)
    files = PosixFiles(str(tmp_path / "root"))
    files.make_folder("streams/s/00000")
    files.publish("secret", b"key")
    files.publish("streams/s/stream.json", b"{}")
    files.publish("streams/s/a", b"0123456789")
    return f"unix:{tmp_path}/door"


def served(tmp_path: Path) -> ServedFiles:
    return ServedFiles(PosixFiles(str(tmp_path / "root")), SystemClock())


def call(address: str, method: str, request: bytes) -> bytes:
    """As somebody who does not keep to our codec."""
    with grpc.insecure_channel(address) as channel:
        reply: bytes = channel.unary_unary(f"/tailrace.files.v1.Files/{method}")(request, timeout=10)
        return reply


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_out_of_the_streams(tmp_path: Path, door: str, path: str) -> None:
    with serve_copies([door], files=served(tmp_path)) as server:
        requests = [("Read", pb.ReadRequest(ranges=[pb.Range(path=path, size=10)]))]
        if path not in ("streams", "streams/s"):  # which may be listed
            requests.append(("List", pb.ListRequest(folder=path)))  # type: ignore[arg-type]
        for method, request in requests:
            with pytest.raises(grpc.RpcError) as refused:
                call(server.addresses[0], method, request.SerializeToString())
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_a_link_to_a_file_elsewhere_is_not_followed(tmp_path: Path, door: str) -> None:
    (tmp_path / "root" / "streams" / "s" / "link").symlink_to(tmp_path / "root" / "secret")
    with (
        serve_copies([door], files=served(tmp_path)) as server,
        FilesPeer(server.addresses[0]) as peer,
        pytest.raises(PeerFailed, match="symbolic link"),
    ):
        peer.read([ByteRange("streams/s/link", 0, 10)])


@pytest.mark.parametrize(
    "hostile",
    [
        [pb.Range(path="streams/s/a", size=READ_BYTES_MAX + 1)],
        [pb.Range(path="streams/s/a", size=READ_BYTES_MAX)] * 2,
        [pb.Range(path="streams/s/a", size=2**32 - 1)] * 9,
        [pb.Range(path="streams/s/a")] * (RANGES_MAX + 1),
        [pb.Range(path="streams/s/a", offset=2**64 - 1, size=1)],
    ],
)
def test_more_than_anybody_needs_is_refused(tmp_path: Path, door: str, hostile: list[pb.Range]) -> None:
    with serve_copies([door], files=served(tmp_path)) as server:
        with pytest.raises(grpc.RpcError) as refused:
            call(server.addresses[0], "Read", pb.ReadRequest(ranges=hostile).SerializeToString())
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT  # type: ignore[attr-defined]


def test_what_is_not_there_is_no_error_and_leaves_nothing_behind(tmp_path: Path, door: str) -> None:
    service = served(tmp_path)
    with serve_copies([door], files=service) as server, FilesPeer(server.addresses[0]) as peer:
        assert [peer.sight(f"no-{number}", 0) for number in range(5)] == [None] * 5
        assert not service._sights
        assert peer.list("streams/nowhere").names == ()
        there = FileBytes(Reach(10, 10, appending=False), b"89")
        asked = [ByteRange("streams/s/nothing", 0, 5), ByteRange("streams/s/a", 8, READ_BYTES_MAX - 5)]
        assert peer.read(asked) == [None, there]
        assert peer.read([ByteRange("streams/s/a", 2**60, 5)]) == [FileBytes(there.reach, b"")]
        assert list((tmp_path / "root" / "streams").iterdir()) == [tmp_path / "root" / "streams" / "s"]


def test_a_sight_that_was_seen_is_not_told_again(tmp_path: Path, door: str) -> None:
    with serve_copies([door], files=served(tmp_path)) as server, FilesPeer(server.addresses[0]) as peer:
        first = peer.sight("s", 0)
        assert first is not None
        assert [one.shard for one in first.shards] == [0]
        assert peer.sight("s", first.number) == Sight(first.number)
        assert peer.sight("s", first.number + 1) == first


class Standing:
    """Answers when it may."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Semaphore(0), threading.Event()

    def sight(self, stream: str, seen: int) -> Sight | None:
        return None

    def list(self, folder: str) -> Listing:
        self.entered.release()
        self.go_on.wait()
        return Listing(1, ())

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        return []


def test_so_many_calls_are_served_at_a_time_and_the_next_one_hears_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    standing, count = Standing(), 32
    with (
        serve_copies([f"unix:{tmp_path}/door"], files=standing) as server,
        FilesPeer(server.addresses[0]) as peer,
        ThreadPoolExecutor(count) as pool,
    ):
        calls = [pool.submit(peer.list, "streams") for _ in range(count)]
        for _ in calls:
            standing.entered.acquire()
        with pytest.raises(Busy):
            peer.sight("s", 0)
        standing.go_on.set()
        assert {call.result().number for call in calls} == {1}
        assert peer.sight("s", 0) is None


def test_over_tls_only_who_is_known_reads(tmp_path: Path, door: str) -> None:
    ours, others = Authority(tmp_path), Authority(tmp_path, "others")
    here = ours.issue("127.0.0.1", file="here")

    def admit(names: tuple[str, ...] | None) -> None:
        if names is not None and "west" not in names:
            raise Denied("not one of ours")

    with serve_copies(["127.0.0.1:0"], files=served(tmp_path), tls=here, admit=admit) as server:
        (address,) = server.addresses
        with FilesPeer(address, tls=ours.issue("west", file="west")) as peer:
            assert peer.list("streams").names == ("s",)
        with FilesPeer(address, tls=ours.issue("east", file="east")) as peer, pytest.raises(Denied, match="not one"):
            peer.list("streams")
        for tls in (others.issue("west", file="other"), None):
            with FilesPeer(address, tls=tls) as peer, pytest.raises((Denied, Unreachable)):
                peer.list("streams")


def test_an_answer_that_makes_no_sense_is_the_peers_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with (
        serve_copies([f"unix:{tmp_path}/door"], files=Standing()) as server,
        FilesPeer(server.addresses[0]) as peer,
        pytest.raises(PeerFailed, match="0 parts for 1 ranges"),
    ):
        peer.read([ByteRange("streams/s/a", 0, 1)])
