"""Slow, silent, greedy and too many: what an engine holds for all of them has a bound, and others are served on."""

import os
import resource
import socket
import threading

import pytest

from conftest import wait_until
from tailrace.native.cell import SLAB_BYTES, key_hash
from tailrace.native.engine import Engine, Link, State

from ..cell.places import folder
from .frames import PING, SCAN, HungUp, Peer, hello
from .served import EngineProcess, link_to, peer_of, roomy_cell, served, ticket_for

KEYS = [b"key %d" % number for number in range(400)]
HASHES = [key_hash(key) for key in KEYS]
SIZE = 20_000
# A sanitizer keeps freed memory for a while, to notice whoever uses it.
SANITIZED = "asan" in os.environ.get("LD_PRELOAD", "")


def fill(cell):
    for number, key in enumerate(KEYS):
        cell.set(key, bytes([number % 251]) * SIZE, (1 + number, 0, 0))


@pytest.fixture
def many_files():
    """Room for a thousand sockets on our side, whatever the shell allows by default."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < 4096 else max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def greedy(peer, times=1):
    """Ask for everything, and never take the answer."""
    peer.send(peer.request(SCAN, HASHES, data_bytes_max=1 << 20) * times)


def unfinished(peer):
    """Ask for as much as one request can hold, but for its last byte."""
    peer.send(peer.request(SCAN, HASHES * 10)[:-1])


def test_answers_that_are_not_taken_are_bounded_and_end_in_time():
    with served(buckets=4096, stall_s=0.3) as (cell, engine):
        fill(cell)
        with peer_of(engine, receive_buffer=4096) as stalled, link_to(engine) as link:
            greedy(stalled, 5)
            wait_until(lambda: engine.stats()["pending_bytes"] > 0, "answers to wait")
            sent = engine.stats()["sent_bytes"]
            assert link.scan(KEYS[:1], 0)[0][0] == State.HIT, "others are served meanwhile"
            assert sent < 4 << 20, "the kernel's buffers are bounded too"
            wait_until(lambda: engine.stats()["closed_stalled"] == 1, "the stalled one to be hung up on")
            assert engine.stats()["pending_bytes"] == 0
            assert engine.stats()["pending_bytes_peak"] < 600_000
            assert stalled.is_ended()
            assert link.scan(KEYS[:1], 0)[0][0] == State.HIT


def test_a_slow_client_gets_everything_in_the_end():
    """It takes a little at a time, always in time. No byte is lost or repeated."""
    with served(buckets=4096) as (cell, engine):
        fill(cell)
        with peer_of(engine, receive_buffer=4096) as slow:
            greedy(slow, 2)
            for _ in range(2):
                items = []
                while len(items) < len(KEYS):
                    items += slow.receive_answer().items
                assert [item.raw[-SIZE:] for item in items] == [bytes([n % 251]) * SIZE for n in range(len(KEYS))]
        wait_until(lambda: engine.stats()["pending_bytes"] == 0, "nothing to wait")


def test_half_a_request_is_held_for_a_while_only():
    with served(stall_s=0.1) as (_, engine), peer_of(engine) as half, peer_of(engine) as whole:
        half.send(half.request(SCAN, HASHES)[:-1])
        wait_until(lambda: engine.stats()["pending_bytes"] == 48 + 16 * len(HASHES) - 1, "the half to be held")
        assert half.is_ended()
        assert engine.stats()["pending_bytes"] == 0
        assert engine.stats()["closed_stalled"] == 1
        assert whole.ping().tag == 1


def test_bytes_now_and_then_do_not_hold_memory_for_good():
    """A request that comes byte by byte has the time of one request, not of each byte."""
    with served(stall_s=0.3) as (_, engine), peer_of(engine) as trickling:
        trickling.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        content = iter(trickling.request(SCAN, HASHES)[:-1])

        def is_ended_after_one_more() -> bool:
            try:
                trickling.send(bytes([next(content)]))
            except HungUp:
                return True
            return engine.stats()["closed_stalled"] == 1

        wait_until(is_ended_after_one_more, "the trickling one to be hung up on")


def test_when_memory_is_short_those_that_stall_longest_go():
    with served(buckets=4096, pending_bytes_max=1 << 20) as (cell, engine):
        fill(cell)
        peers = [peer_of(engine, receive_buffer=4096) for _ in range(40)]
        for number, peer in enumerate(peers):
            (greedy if number % 4 == 0 else unfinished)(peer)
        wait_until(lambda: engine.stats()["closed_short_of_memory"] > 0, "memory to be short")
        with link_to(engine) as link:
            for _ in range(20):
                assert [state for state, _, _ in link.scan(KEYS, 0)] == [State.HIT] * len(KEYS)
        stats = engine.stats()
        assert stats["pending_bytes"] <= 1 << 20
        assert stats["pending_bytes_peak"] <= (1 << 20) + (1 << 20), "no more than one turn above it, for a moment"
        for peer in peers:
            peer.close()


def test_a_thousand_connections_take_little_memory_and_all_are_served(many_files):
    with folder() as path:
        cell = roomy_cell(path, buckets=4096)
        fill(cell)
        with EngineProcess(path, pending_bytes_max=16 << 20, connections_max=1100) as engine:
            first = os.urandom(32)
            engine.admit(first, 60.0)
            with Link(*engine.address, first, 60.0) as link:
                assert link.scan(KEYS, 0)[0][0] == State.HIT
                before = engine.anonymous_bytes()
                tickets = [os.urandom(32) for _ in range(1000)]
                for ticket in tickets:
                    engine.admit(ticket, 120.0)
                peers = [Peer(engine.address, ticket, receive_buffer=4096) for ticket in tickets]
                wait_until(lambda: engine.stats()["connections"] == 1001, "all to be in")
                assert [peer.ping().tag for peer in peers] == [1] * 1000
                idle = engine.anonymous_bytes() - before
                assert SANITIZED or idle < 4 << 20, "an idle connection holds next to nothing"
                for number, peer in enumerate(peers):  # some stall with answers, and more with a part of a request
                    (greedy if number % 3 == 0 else unfinished)(peer)
                wait_until(lambda: engine.stats()["closed_short_of_memory"] > 0, "memory to be short")
                for _ in range(10):
                    assert [state for state, _, _ in link.scan(KEYS, 0)] == [State.HIT] * len(KEYS)
                stats = engine.stats()
                assert stats["pending_bytes"] <= 16 << 20
                assert stats["pending_bytes_peak"] <= (16 << 20) + (1 << 20)
                assert SANITIZED or engine.anonymous_bytes() - before < (16 << 20) + (24 << 20)
                print("idle:", idle, "stalled:", engine.anonymous_bytes() - before, stats)
                for peer in peers:
                    peer.close()
        cell.close()


def test_no_descriptors_left_is_survived_without_a_frenzy():
    with folder() as path:
        cell = roomy_cell(path)
        cell.set(b"key", b"value", (1, 0, 0))
        with EngineProcess(path, files_max=64) as engine:
            ticket = os.urandom(32)
            engine.admit(ticket, 60.0)
            with Link(*engine.address, ticket, 60.0) as link:
                crowd = [Peer(engine.address) for _ in range(100)]
                wait_until(lambda: engine.stats()["accept_failures"] >= 3, "descriptors to run out")
                assert link.scan([b"key"], 0)[0][0] == State.HIT
                assert engine.stats()["accept_failures"] < 1000, "it looks away for a while after each failure"
                for peer in crowd:
                    peer.close()
                ticket = os.urandom(32)
                engine.admit(ticket, 60.0)
                with Link(*engine.address, ticket, 60.0) as late:
                    assert late.scan([b"key"], 0)[0][0] == State.HIT
        cell.close()


def test_one_with_huge_batches_starves_nobody():
    """While one connection takes 320 MB, another asks a hundred small questions, and is done long before."""
    with served(buckets=4096) as (cell, engine):
        fill(cell)
        with link_to(engine) as small, peer_of(engine) as huge:
            done = threading.Event()

            def take_everything():
                for _ in range(40 * len(KEYS)):
                    huge.receive(SIZE)
                done.set()

            greedy(huge, 40)
            taker = threading.Thread(target=take_everything)
            taker.start()
            for _ in range(100):
                assert small.scan(KEYS[:2], 0)[1][0] == State.HIT
            assert not done.is_set()
            taker.join()


def test_pipelined_requests_beyond_the_bound_wait_in_the_kernel():
    """A client that only sends is not read from while its answers wait."""
    with served(buckets=4096) as (cell, engine):
        fill(cell)
        with peer_of(engine, receive_buffer=4096) as peer:
            peer.socket.settimeout(0.5)
            content = peer.request(SCAN, HASHES, data_bytes_max=1 << 20)
            with pytest.raises(TimeoutError):
                for _ in range(10_000):
                    peer.send(content)
            stats = engine.stats()
            assert stats["received_bytes"] < 1 << 20
            assert stats["pending_bytes"] < 1 << 20


def test_malformed_requests_are_told_and_end_the_link():
    with served() as (_, engine):
        with peer_of(engine) as good:
            sample = good.request(SCAN, HASHES[:3])
        broken = {
            "too short a size": (40).to_bytes(4, "little") + sample[4:],
            "a size that does not fit the items": (48 + 32).to_bytes(4, "little") + sample[4:],
            "too large": (1 << 30).to_bytes(4, "little") + sample[4:],
            "an unknown kind": sample[:4] + b"\3\0" + sample[6:],
            "a zero that is not": sample[:6] + b"\1" + sample[7:],
            "another": sample[:44] + b"\1" + sample[45:],
            "a ping with items": sample[:4] + b"\0\0" + sample[6:],
            "no items": (48).to_bytes(4, "little") + sample[4:32] + bytes(4) + sample[36:48],
            "items that overflow": sample[:32] + (2**28 + 3).to_bytes(4, "little") + sample[36:],
        }
        for number, (what, content) in enumerate(broken.items(), start=1):
            with peer_of(engine) as peer:
                peer.send(peer.request(PING) + content + sample)
                assert peer.receive_answer().status == 0, what
                answer = peer.receive_answer()
                assert (answer.status, answer.tag, answer.items) == (2, 0, ()), what
                assert peer.is_ended(), what
            assert engine.stats()["closed_malformed"] == number


def test_closing_an_engine_ends_active_clients():
    with served(buckets=4096) as (cell, engine):
        fill(cell)
        ended = []

        def ask_until_the_end(link):
            try:
                while True:
                    link.scan(KEYS, 0)
            except ConnectionError as seen:
                ended.append(seen)

        links = [link_to(engine) for _ in range(4)]
        threads = [threading.Thread(target=ask_until_the_end, args=(link,)) for link in links]
        with peer_of(engine, receive_buffer=4096) as stalled, Peer(engine.address) as silent:
            greedy(stalled)
            for thread in threads:
                thread.start()
            wait_until(lambda: engine.stats()["requests"] > 20, "all to be at it")
            engine.close()
            for thread in threads:
                thread.join()
            assert len(ended) == 4
            assert silent.is_ended()
            assert stalled.is_ended()
        with pytest.raises(ConnectionRefusedError):
            Peer((links[0].host, links[0].port))


def test_an_engine_can_be_closed_at_any_moment_and_started_again_on_its_port():
    with folder() as path:
        cell = roomy_cell(path)
        cell.set(b"key", bytes(SLAB_BYTES // 2), (1, 0, 0))
        port = 0
        for _ in range(20):
            engine = Engine(path, port=port)
            port = engine.address[1]
            peer = peer_of(engine)
            peer.send(peer.request(SCAN, [key_hash(b"key")] * 40, data_bytes_max=1 << 20))
            engine.close()
            peer.close()
        cell.close()


def test_a_forked_child_can_let_go_of_the_engine():
    with served() as (cell, engine):
        cell.set(b"key", b"value", (1, 0, 0))
        child = os.fork()
        if child == 0:
            engine.close()
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        with link_to(engine) as link:
            assert link.scan([b"key"], 0)[0][0] == State.HIT


def test_connections_that_vanish_leave_nothing(many_files):
    with served(buckets=4096) as (cell, engine):
        fill(cell)
        for number in range(60):
            with peer_of(engine, receive_buffer=4096) as peer:
                if number % 3 == 0:
                    greedy(peer)
                    wait_until(lambda: engine.stats()["pending_bytes"] > 0, "answers to wait")
                if number % 3 == 1:
                    peer.send(peer.request(SCAN, HASHES)[:100])
                if number % 2:  # not a farewell, but a reset
                    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        wait_until(lambda: engine.stats()["connections"] == 0, "all to be gone")
        assert engine.stats()["pending_bytes"] == 0
        half = Peer(engine.address)
        half.send(hello(ticket_for(engine))[:20])
        half.close()
        wait_until(lambda: engine.stats()["greeting"] == 0, "the last one to be gone")
