"""Every method there and back; limits; what a backend refuses; many calls at once."""

import concurrent.futures
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest

from conftest import wait_until
from tailrace.errors import (
    Busy,
    Closed,
    DeadlineExceeded,
    DiskFull,
    PeerFailed,
    TailraceError,
    Unreachable,
    WireRefused,
)
from tailrace.wire import Answer, BackendPeer, Engine, Server, Shared, serve
from tailrace.wire.generated import backend_pb2 as pb
from tailrace.wire.methods import MUTATE
from wire.example import CONFIG_ID, INSTANCE, RECORDS, SHARED, SUMMARY, ExampleBackend


@pytest.fixture
def backend() -> Iterator[ExampleBackend]:
    example = ExampleBackend()
    yield example
    example.go_on.set()


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/door/rpc"


@pytest.fixture
def server(backend: ExampleBackend, address: str) -> Iterator[Server]:
    with serve(backend, [address]) as running:
        yield running
        backend.go_on.set()


@pytest.fixture
def peer(server: Server) -> Iterator[BackendPeer]:
    with BackendPeer(server.addresses[0]) as connected:
        yield connected


def test_attach(peer: BackendPeer) -> None:
    reply = peer.attach("client-1", True)
    assert (reply.instance, reply.config_id) == (INSTANCE, CONFIG_ID)
    assert (reply.cache, reply.backend, reply.host, reply.mode) == ("prices", 2, "for client-1", "R=3.2")
    assert (reply.folder, reply.time_us) == ("/dev/shm/x", 1_700_000_000_000_000)
    assert reply.engine == Engine(host="here", port=7101, ticket=bytes(range(32)))
    assert "ticket" not in repr(reply), "a ticket is a secret"
    assert peer.attach("client-1", False).engine is None


@pytest.mark.parametrize("size", [0, 1, 127, 128, 16_383, 16_384, 300_000])
def test_mutate(peer: BackendPeer, backend: ExampleBackend, size: int) -> None:
    for frame in (bytes(size), bytearray(size), memoryview(bytes(size))):
        reply = peer.mutate(INSTANCE, 77, frame)
        assert (reply.instance, reply.config_id, reply.floor) == (INSTANCE, 77, SUMMARY)
        assert reply.outcomes == bytes([size % 251]) * 3
        assert backend.mutated[-1] == bytes(size)


def test_mutations_sent_at_once_are_answered_each(peer: BackendPeer) -> None:
    futures = [peer.mutate_async(INSTANCE, size, bytes(size)) for size in range(40)]
    concurrent.futures.wait(futures)
    assert [future.result().config_id for future in futures] == list(range(40))
    assert not futures[0].cancel()


def test_a_mutation_for_a_predecessor_is_answered_by_who_is_there(peer: BackendPeer) -> None:
    reply = peer.mutate(1, 2, b"frame")
    assert (reply.instance, reply.outcomes) == (INSTANCE, b"")
    answers = peer.lookup(1, [b"key"], 0)
    assert (answers.instance, answers.answers) == (INSTANCE, [])


def test_lookup(peer: BackendPeer) -> None:
    reply = peer.lookup(INSTANCE, [b"key", b"other", b"empty", b""], 99)
    assert (reply.instance, reply.config_id) == (INSTANCE, 99)
    assert reply.answers == [Answer(b"value", (1, 2, 3), 4), None, Answer(b"", (4, 5, 6), 0), None]
    assert peer.lookup(INSTANCE, [], 0).answers == []


def test_answers_that_do_not_fit_a_message_come_in_several(tmp_path: Path, backend: ExampleBackend) -> None:
    keys = [b"%d" % number for number in range(50)]
    backend.values = {key: Answer(key * 1000, (1, 1, 1), 0) for key in keys}
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"], message_bytes_max=9_000) as server,
        BackendPeer(server.addresses[0], message_bytes_max=9_000) as peer,
    ):
        assert peer.lookup(INSTANCE, keys, 0).answers == [backend.values[key] for key in keys]
        backend.values[b"0"] = Answer(bytes(9_000), (1, 1, 1), 0)
        with pytest.raises(WireRefused, match="raise message_bytes_max") as refused:
            peer.lookup(INSTANCE, keys, 0)
        assert refused.value.took_effect is False


def test_touch(peer: BackendPeer, backend: ExampleBackend) -> None:
    hashes = [bytes([number]) * 16 for number in range(100)]
    assert peer.touch(b"".join(hashes)).instance == INSTANCE
    assert backend.touched == hashes


def test_digest(peer: BackendPeer) -> None:
    assert peer.digest(SHARED).digests == b"\2" * 512


def test_list_of_a_hundred_thousand_records(peer: BackendPeer) -> None:
    parts = list(peer.list_hashes(SHARED))
    assert b"".join(part.records for part in parts) == RECORDS
    assert b"".join(part.tombstones for part in parts) == bytes(64)
    assert {(part.instance, part.config_id, part.summary) for part in parts} == {(INSTANCE, CONFIG_ID, SUMMARY)}
    assert [part.complete for part in parts] == [False] * (len(parts) - 1) + [True]


def test_a_list_that_nobody_reads_on_ends_at_the_backend_too(peer: BackendPeer, backend: ExampleBackend) -> None:
    for _ in range(20):  # more than it serves at a time
        parts = peer.list_hashes(SHARED)
        next(parts)
        del parts
        gc.collect()
        wait_until(lambda: backend.streams_open == 0, "the backend's stream to end")
    wait_until(lambda: _succeeds(lambda: list(peer.list_hashes(SHARED))), "the backend to have a stream to spare")


def test_a_list_that_breaks_off_is_an_error(peer: BackendPeer, backend: ExampleBackend) -> None:
    backend.list_holds = True
    parts = peer.list_hashes(SHARED)
    next(parts)
    backend.problem = DiskFull("no room")
    backend.go_on.set()
    with pytest.raises(PeerFailed, match="DiskFull: no room") as failed:
        list(parts)
    assert failed.value.took_effect is False
    backend.problem = None
    backend.list_ends_at = 1 << 20
    with pytest.raises(PeerFailed, match="ended before it was complete") as failed:
        list(peer.list_hashes(SHARED))
    assert failed.value.took_effect is False


def test_streams_leave_threads_to_short_calls(tmp_path: Path, backend: ExampleBackend) -> None:
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"], threads=4) as server,
        BackendPeer(server.addresses[0]) as peer,
    ):
        backend.list_holds = True
        held = [peer.list_hashes(SHARED) for _ in range(2)]
        for parts in held:
            next(parts)
        with pytest.raises(Busy) as refused:
            next(peer.list_hashes(SHARED))
        assert refused.value.took_effect is False
        assert peer.stats().instance == INSTANCE
        backend.go_on.set()
        assert all(list(parts)[-1].complete for parts in held)
        wait_until(lambda: _succeeds(lambda: list(peer.list_hashes(SHARED))), "the backend to have a stream to spare")


def test_fetch(peer: BackendPeer) -> None:
    hashes = [bytes([number]) * 16 for number in range(20)]
    parts = list(peer.fetch(b"".join(hashes)))
    assert [bytes(part.frame) for part in parts] == [one * 1000 for one in hashes]
    assert {(part.instance, part.config_id) for part in parts} == {(INSTANCE, CONFIG_ID)}


def test_stats(peer: BackendPeer) -> None:
    assert peer.stats().counters == {"hits": 1 << 62, "balance": -1}


def test_many_threads_share_a_peer(peer: BackendPeer) -> None:
    def work(number: int) -> set[bool]:
        return {
            peer.mutate(INSTANCE, number, bytes(number)).config_id == number
            and peer.lookup(INSTANCE, [b"key"], number).config_id == number
            for _ in range(50)
        }

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set().union(*pool.map(work, range(8))) == {True}


def test_who_makes_messages_by_protobuf_is_understood(server: Server, backend: ExampleBackend) -> None:
    """Another program need not know our shortcut: fields left out, in another order, or unknown are right as well."""
    shapes = [
        pb.MutateRequest(frame=b"f").SerializeToString(),
        pb.MutateRequest(instance=INSTANCE, config_id=1, frame=b"f").SerializeToString(),
        b"\x1a\x01f" + pb.MutateRequest(instance=INSTANCE).SerializeToString(),
        pb.MutateRequest(instance=INSTANCE, config_id=1, frame=b"f").SerializeToString() + b"\x20\x01",
        MUTATE.encode_request(0, 0, b"f"),
    ]
    target = server.addresses[0] if server.addresses[0].startswith("unix") else f"ipv4:{server.addresses[0]}"
    with grpc.insecure_channel(target) as channel:
        for shape in shapes:
            reply = pb.MutateReply.FromString(channel.unary_unary(MUTATE.path)(shape))
            assert reply.instance == INSTANCE
            assert backend.mutated[-1] == b"f"


@pytest.mark.parametrize(
    ("method", "request_bytes", "complaint"),
    [
        ("Mutate", b"\x1a\xff", "no MutateRequest"),
        ("Attach", pb.AttachRequest(client="x" * 257).SerializeToString(), "257 characters"),
        ("Touch", pb.TouchRequest(hashes=b"x" * 17).SerializeToString(), "17 bytes of hashes"),
        ("Fetch", pb.FetchRequest(hashes=b"x").SerializeToString(), "1 bytes of hashes"),
        ("List", pb.ListRequest(home=3, backends=3).SerializeToString(), "a home 3 among 3"),
        ("Digest", pb.DigestRequest().SerializeToString(), "a home 0 among 0"),
        ("Lookup", b"\xff", "no LookupRequest"),
    ],
)
def test_malformed_requests_never_reach_the_backend(
    server: Server, backend: ExampleBackend, method: str, request_bytes: bytes, complaint: str
) -> None:
    target = server.addresses[0] if server.addresses[0].startswith("unix") else f"ipv4:{server.addresses[0]}"
    with grpc.insecure_channel(target) as channel:
        path = f"/tailrace.cache.v1.Backend/{method}"
        with pytest.raises(grpc.RpcError) as refused:
            if method in ("List", "Fetch"):
                next(channel.unary_stream(path)(request_bytes))
            else:
                channel.unary_unary(path)(request_bytes)
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert complaint in (refused.value.details() or "")
    assert not backend.mutated


def test_arguments_that_can_never_be_right_are_errors_of_the_caller(peer: BackendPeer) -> None:
    with pytest.raises(ValueError, match="unsigned"):
        peer.mutate(-1, 0, b"")
    with pytest.raises(ValueError, match="range"):
        peer.digest(Shared(home=-1, backends=3, partitions=0))
    with pytest.raises(WireRefused):
        peer.touch(b"x")


def test_messages_above_the_limit_are_refused_before_they_are_sent(peer: BackendPeer, backend: ExampleBackend) -> None:
    frame = bytes(peer.frame_bytes_max)
    assert peer.mutate(INSTANCE, 0, frame).instance == INSTANCE
    backend.mutated.clear()
    frame += bytes(8)
    for call in (lambda: peer.mutate(INSTANCE, 0, frame), peer.mutate_async(INSTANCE, 0, frame).result):
        with pytest.raises(WireRefused, match="send less at once or raise it at both ends") as refused:
            call()
        assert refused.value.took_effect is False
    assert not backend.mutated


def test_messages_above_the_servers_limit_are_refused_there(tmp_path: Path, backend: ExampleBackend) -> None:
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"], message_bytes_max=10_000) as server,
        BackendPeer(server.addresses[0]) as peer,
    ):
        with pytest.raises(WireRefused, match="larger than max") as refused:
            peer.mutate(INSTANCE, 0, bytes(10_000))
        assert refused.value.took_effect is False
        assert not backend.mutated
        with pytest.raises(PeerFailed, match="above message_bytes_max"):
            list(peer.list_hashes(SHARED))


def test_a_reply_above_our_own_limit_leaves_the_effect_unknown(server: Server, backend: ExampleBackend) -> None:
    with BackendPeer(server.addresses[0], message_bytes_max=30) as peer:
        with pytest.raises(PeerFailed, match="larger than max") as failed:
            peer.mutate(INSTANCE, 0, b"f")
        assert failed.value.took_effect is None
        assert backend.mutated == [b"f"]


@pytest.mark.parametrize(
    ("raised", "seen", "took_effect", "words"),
    [
        (WireRefused("bad frame"), WireRefused, False, "bad frame"),
        (Busy("too much"), Busy, False, "too much"),
        (Closed("going down"), Unreachable, False, "going down"),
        (DiskFull("no room"), PeerFailed, False, "DiskFull: no room"),
        (PeerFailed("half done"), PeerFailed, None, "half done"),
        (RuntimeError("a bug"), PeerFailed, None, "RuntimeError: a bug"),
        (RuntimeError("x" * 100_000), PeerFailed, None, "RuntimeError: xxx"),
    ],
)
def test_what_a_backend_raises_arrives(
    peer: BackendPeer,
    backend: ExampleBackend,
    raised: Exception,
    seen: type[TailraceError],
    took_effect: bool | None,
    words: str,
) -> None:
    backend.problem = raised
    for call in (peer.mutate, lambda *arguments: peer.mutate_async(*arguments).result()):
        with pytest.raises(seen, match=words) as refused:
            call(INSTANCE, 0, b"f")
        assert type(refused.value) is seen
        assert refused.value.took_effect is took_effect
        assert str(refused.value).startswith(f"Mutate at {peer.address}: ")


def test_more_calls_than_are_allowed_are_refused_at_once(tmp_path: Path, backend: ExampleBackend) -> None:
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"], threads=1, calls_max=2) as server,
        BackendPeer(server.addresses[0]) as peer,
    ):
        first = peer.mutate_async(INSTANCE, 0, b"hold")
        backend.reached.wait()
        others = [peer.mutate_async(INSTANCE, 0, b"f") for _ in range(6)]
        wait_until(lambda: sum(other.done() for other in others) == 5, "all but one to be refused")
        backend.go_on.set()
        assert first.result().instance == INSTANCE
        refused = [other.exception() for other in others if other.exception() is not None]
        assert {type(problem) for problem in refused} == {Busy}
        assert {problem.took_effect for problem in refused if isinstance(problem, Busy)} == {False}


def test_calls_that_nobody_waits_for_any_more_are_not_begun(tmp_path: Path, backend: ExampleBackend) -> None:
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"], threads=1, calls_max=2) as server,
        BackendPeer(server.addresses[0]) as peer,
    ):
        first = peer.mutate_async(INSTANCE, 0, b"hold")
        backend.reached.wait()
        with pytest.raises(DeadlineExceeded) as late:
            peer.mutate(INSTANCE, 0, b"late", deadline_s=0.05)
        assert late.value.took_effect is None
        with pytest.raises((Busy, DeadlineExceeded)):  # by now the server has heard that the late one was given up
            peer.mutate(INSTANCE, 0, b"later", deadline_s=0.05)
        backend.go_on.set()
        first.result()
        wait_until(lambda: _succeeds(lambda: peer.mutate(INSTANCE, 0, b"last")), "the server to have a thread again")
        assert backend.mutated == [b"hold", b"last"]


def _succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except Busy:
        return False
    return True


def test_a_closed_peer_says_so(server: Server) -> None:
    peer = BackendPeer(server.addresses[0])
    peer.stats()
    peer.close()
    peer.close()
    for call in (peer.stats, peer.mutate_async(INSTANCE, 0, b"").result, lambda: list(peer.list_hashes(SHARED))):
        with pytest.raises(Closed, match="make a new one"):
            call()


def test_when_close_returns_the_backend_is_left_alone(tmp_path: Path, backend: ExampleBackend) -> None:
    """Calls under way are answered within the grace, or cancelled; either way nobody is in the backend afterwards."""
    server = serve(backend, [f"unix:{tmp_path}/rpc"])
    with BackendPeer(server.addresses[0]) as peer:
        held = peer.mutate_async(INSTANCE, 0, b"hold")
        backend.reached.wait()
        closing = threading.Thread(target=server.close, args=(0.0,))
        closing.start()
        with pytest.raises(Unreachable) as gone:
            held.result()
        assert gone.value.took_effect is None
        assert closing.is_alive(), "close waits for the backend"
        backend.go_on.set()
        closing.join()
        server.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("tailrace-wire")]


def test_a_server_that_closes_lets_calls_finish(tmp_path: Path, backend: ExampleBackend) -> None:
    server = serve(backend, [f"unix:{tmp_path}/rpc"])
    with BackendPeer(server.addresses[0]) as peer:
        held = peer.mutate_async(INSTANCE, 0, b"hold", deadline_s=60)
        backend.reached.wait()
        closing = threading.Thread(target=server.close, args=(60.0,))
        closing.start()
        backend.go_on.set()
        assert held.result().instance == INSTANCE
        closing.join()
