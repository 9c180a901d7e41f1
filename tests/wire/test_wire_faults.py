"""Servers that are not there, go away, come back, freeze or never answer: each error says what may have happened."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import freeze, wait_until
from tailrace.errors import Closed, ConfigError, DeadlineExceeded, Unreachable
from tailrace.wire import BackendPeer, serve
from wire.example import INSTANCE, SHARED, ExampleBackend

TESTS = Path(__file__).parents[1]


@pytest.fixture(params=["tcp", "unix"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path}/rpc"


@contextmanager
def process(address: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A backend in a process of its own, and where it listens."""
    child = subprocess.Popen(
        [sys.executable, "-m", "wire.example", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=TESTS,
    )
    assert child.stdout is not None
    try:
        yield child, child.stdout.readline().strip()
    finally:
        child.kill()
        child.communicate()


def answers(peer: BackendPeer) -> bool:
    try:
        return peer.stats().instance == INSTANCE
    except Unreachable:
        return False


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def test_nobody_there_means_that_nothing_was_sent(tmp_path: Path) -> None:
    for address in (f"127.0.0.1:{free_port()}", f"unix:{tmp_path}/nobody", "no-such-host.invalid:7100"):
        with BackendPeer(address) as peer:
            for call in (
                lambda peer=peer: peer.mutate(INSTANCE, 0, b"f"),
                lambda peer=peer: peer.mutate_async(INSTANCE, 0, b"f").result(),
                lambda peer=peer: next(peer.list_hashes(SHARED)),
            ):
                with pytest.raises(Unreachable, match="is it running there") as gone:
                    call()
                assert gone.value.took_effect is False
                assert address in str(gone.value)


def test_a_server_killed_in_the_middle_leaves_a_mutation_unknown_and_a_look_harmless(address: str) -> None:
    with process(address) as (child, where), BackendPeer(where) as peer:
        assert child.stdout is not None
        mutation = peer.mutate_async(INSTANCE, 0, b"hold", deadline_s=60)
        parts = peer.list_hashes(SHARED)
        next(parts)
        assert child.stdout.readline() == "reached\n"
        child.kill()
        with pytest.raises(Unreachable, match="ask what happened before repeating a change") as gone:
            mutation.result()
        assert gone.value.took_effect is None
        with pytest.raises(Unreachable) as gone:
            list(parts)
        assert gone.value.took_effect is False


def test_a_peer_finds_a_server_that_was_killed_and_started_again(address: str) -> None:
    with process(address) as (_, where):
        peer = BackendPeer(where)
        assert peer.stats().instance == INSTANCE
    for _ in range(3):
        wait_until(lambda: not answers(peer), "the peer to notice")
        with process(where) as (_, again):
            assert again == where
            wait_until(lambda: answers(peer), "the peer to find it again")
    peer.close()


def test_a_server_may_come_and_go_many_times_at_one_address(address: str) -> None:
    """What gRPC removes late must not be the next server's socket."""
    where = address
    with serve(ExampleBackend(), [where]) as server:
        where = server.addresses[0]
        peer = BackendPeer(where)
        peer.stats()
    for _ in range(20):
        with serve(ExampleBackend(), [where]):
            wait_until(lambda: answers(peer), "the peer to find it again")
            with BackendPeer(where) as fresh:
                assert fresh.stats().instance == INSTANCE
    peer.close()


def test_a_frozen_server_is_given_up_at_the_deadline(address: str) -> None:
    with process(address) as (child, where), BackendPeer(where) as peer:
        peer.stats()
        freeze(child.pid)
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.2 s") as late:
            peer.mutate(INSTANCE, 0, b"f", deadline_s=0.2)
        assert late.value.took_effect is None
        with pytest.raises(DeadlineExceeded) as late:
            peer.lookup(INSTANCE, [b"key"], 0, deadline_s=0.2)
        assert late.value.took_effect is False
        child.send_signal(signal.SIGCONT)
        assert peer.stats().instance == INSTANCE


def test_a_half_open_connection_is_noticed_before_a_long_deadline(address: str) -> None:
    with process(address) as (child, where), BackendPeer(where, keepalive_s=0.5) as peer:
        assert child.stdout is not None
        held = peer.mutate_async(INSTANCE, 0, b"hold", deadline_s=200)
        assert child.stdout.readline() == "reached\n"
        freeze(child.pid)
        with pytest.raises(Unreachable) as gone:
            held.result()
        assert gone.value.took_effect is None


def test_who_never_answers_is_given_up_at_the_deadline() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        BackendPeer(f"127.0.0.1:{listener.getsockname()[1]}", deadline_s=0.2) as peer,
    ):
        with pytest.raises(DeadlineExceeded):
            peer.stats()
        with pytest.raises(DeadlineExceeded):
            peer.mutate_async(INSTANCE, 0, b"f").result()


def test_what_is_no_backend_is_called_so() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        BackendPeer(f"127.0.0.1:{listener.getsockname()[1]}") as peer,
    ):
        future = peer.mutate_async(INSTANCE, 0, b"f")
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(Unreachable) as refused:
            future.result()
        assert refused.value.took_effect is False


def test_a_deadline_of_a_call_overrules_the_peers(tmp_path: Path) -> None:
    backend = ExampleBackend()
    with (
        serve(backend, [f"unix:{tmp_path}/rpc"]) as server,
        BackendPeer(server.addresses[0], deadline_s=60) as peer,
    ):
        held = peer.mutate_async(INSTANCE, 0, b"hold")
        with pytest.raises(DeadlineExceeded, match=r"within 0\.1 s"):
            peer.mutate(INSTANCE, 0, b"hold", deadline_s=0.1)
        backend.go_on.set()
        held.result()


def test_a_forked_process_is_told_to_be_spawned() -> None:
    """In a process of its own, since this one has threads."""
    script = """
import os
from tailrace.wire import BackendPeer
from tailrace.errors import Closed
peer = BackendPeer("unix:/nowhere/rpc")
if os.fork() == 0:
    try:
        peer.stats()
    except Closed as problem:
        os.write(1, str(problem).encode())
    peer.close()
    os._exit(0)
os.wait()
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60).stdout
    assert "start processes with spawn" in said


def test_two_servers_never_share_a_port() -> None:
    with serve(ExampleBackend(), ["127.0.0.1:0"]) as server:
        with pytest.raises(ConfigError, match="is it in use") as refused:
            serve(ExampleBackend(), server.addresses)
        assert refused.value.took_effect is False
        with BackendPeer(server.addresses[0]) as peer:
            assert peer.stats().instance == INSTANCE


def test_environment_variables_do_not_redirect_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    with serve(ExampleBackend(), ["localhost:0"]) as server, BackendPeer(server.addresses[0]) as peer:
        assert peer.stats().instance == INSTANCE


def test_closing_a_peer_ends_its_calls(tmp_path: Path) -> None:
    backend = ExampleBackend()
    with serve(backend, [f"unix:{tmp_path}/rpc"]) as server:
        peer = BackendPeer(server.addresses[0], deadline_s=60)
        held = peer.mutate_async(INSTANCE, 0, b"hold")
        backend.reached.wait()
        peer.close()
        with pytest.raises(Unreachable, match="closed") as gone:
            held.result()
        assert gone.value.took_effect is None
        with pytest.raises(Closed):
            peer.stats()
        backend.go_on.set()
