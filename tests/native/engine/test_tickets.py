"""Who gets in: one link for each ticket, in time; and how little others can hold."""

import os
import socket
import time

import pytest

from conftest import wait_until
from tailrace.native.engine import Link, State

from ..cell.places import folder
from .frames import HELLO, NO_MAGIC, NO_PLACE, NO_TICKET, NO_VERSION, WELCOMED, HungUp, Peer, hello
from .served import EngineProcess, link_to, peer_of, roomy_cell, served, ticket_for


def refused(engine, content: bytes) -> int:
    """The status for such a hello, and that the engine hangs up behind it."""
    with Peer(engine.address) as peer:
        peer.send(content)
        told = peer.receive_welcome()
        assert (told.instance, told.layout, told.reserved, told.version) == (0, 0, 0, 1)
        assert peer.is_ended()
        return told.status


def test_a_ticket_is_good_for_one_link():
    with served() as (_, engine):
        ticket = ticket_for(engine)
        with Peer(engine.address, ticket) as peer:
            assert peer.welcome.status == WELCOMED
            assert refused(engine, hello(ticket)) == NO_TICKET
            assert peer.ping().tag == 1, "whoever is in stays in"
            with pytest.raises(ValueError, match="in use"):
                engine.admit(ticket, 1.0)
        wait_until(lambda: engine.stats()["connections"] == 0, "the link to end")
        assert refused(engine, hello(ticket)) == NO_TICKET, "not even when it has gone"
        assert engine.stats()["refused"] == 2


def test_a_ticket_expires_unless_it_is_given_more_time():
    with served() as (_, engine):
        brief, renewed = ticket_for(engine, 0.001), ticket_for(engine, 0.001)
        engine.admit(renewed, 60.0)
        over_s = time.monotonic() + 0.01
        wait_until(lambda: time.monotonic() > over_s, "its time to be over")
        assert refused(engine, hello(brief)) == NO_TICKET
        with pytest.raises(PermissionError, match=r"127\.0\.0\.1 port \d+: it does not know the ticket"):
            Link(*engine.address, brief)
        Link(*engine.address, renewed).close()


def test_no_other_ticket_gets_in():
    with served() as (_, engine):
        ticket = ticket_for(engine)
        for place in (0, 7, 8, 31):
            other = bytearray(ticket)
            other[place] ^= 1
            assert refused(engine, hello(bytes(other))) == NO_TICKET
        assert refused(engine, hello(bytes(32))) == NO_TICKET, "empty places of the table are no tickets"
        Peer(engine.address, ticket).close()


def test_a_revoked_ticket_ends_its_link():
    with served() as (cell, engine):
        cell.set(b"key", b"value", (1, 0, 0))
        waiting, taken, other = (ticket_for(engine) for _ in range(3))
        with Link(*engine.address, taken) as link, Link(*engine.address, other) as unhurt:
            assert engine.revoke(waiting) is engine.revoke(taken) is True
            assert engine.revoke(os.urandom(32)) is engine.revoke(waiting) is False
            assert refused(engine, hello(waiting)) == NO_TICKET
            wait_until(lambda: engine.stats()["connections"] == 1, "the link to be ended")
            with pytest.raises(ConnectionError, match="is broken"):
                link.scan([b"key"], 0)
            with pytest.raises(ConnectionError, match="is broken"):
                link.scan([b"key"], 0)
            assert unhurt.scan([b"key"], 0) == [(State.HIT, b"value", (1, 0, 0))]


def test_the_table_is_bounded_and_expired_tickets_make_room():
    with served() as (_, engine):
        last = ticket_for(engine)
        for _ in range(4095):
            last = ticket_for(engine)
        with pytest.raises(OSError, match="as many tickets wait"):
            ticket_for(engine)
        Peer(engine.address, last).close()
        fleeting = ticket_for(engine, 0.001)
        with Peer(engine.address, ticket_for_when_there_is_room(engine)) as peer:
            assert peer.ping().tag == 1
        assert refused(engine, hello(fleeting)) == NO_TICKET


def ticket_for_when_there_is_room(engine) -> bytes:
    ticket = os.urandom(32)

    def admitted() -> bool:
        try:
            engine.admit(ticket, 60.0)
        except OSError:
            return False
        return True

    wait_until(admitted, "an expired ticket to make room")
    return ticket


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: engine\r\n\r\n" + bytes(1000), NO_MAGIC),
        (b"x", NO_MAGIC),
        (b"TAILLINX", NO_MAGIC),
        (hello(bytes(32), version=2), NO_VERSION),
        (hello(bytes(32), version=2)[:12], NO_VERSION),
        (hello(bytes(32), version=0), NO_VERSION),
        (HELLO.pack(b"TAILLINK", 1, 1, bytes(32)), NO_VERSION),
    ],
)
def test_others_are_told_what_is_wrong_as_soon_as_it_is(content, status):
    with served() as (_, engine):
        assert refused(engine, content) == status


def test_a_ticket_in_small_pieces_is_one_too():
    with served() as (_, engine), Peer(engine.address) as peer:
        peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        received = engine.stats()["received_bytes"]
        for number, byte in enumerate(hello(ticket_for(engine)), start=1):
            peer.send(bytes([byte]))
            wait_until(lambda count=number: engine.stats()["received_bytes"] == received + count, "the byte to arrive")
        assert peer.receive_welcome().status == WELCOMED


def test_requests_may_follow_a_hello_at_once():
    with served() as (_, engine), peer_of(engine) as first:
        ping = first.request(0)
        with Peer(engine.address) as peer:
            peer.send(hello(ticket_for(engine)) + ping * 10)
            peer.welcome = peer.receive_welcome()
            assert [peer.receive_answer().tag for _ in range(10)] == [1] * 10


def test_whoever_sends_no_ticket_in_time_is_hung_up_on():
    with served(hello_s=0.05) as (_, engine):
        with Peer(engine.address) as silent, Peer(engine.address) as slow:
            slow.send(hello(ticket_for(engine))[:40])
            assert silent.is_ended()
            assert slow.is_ended()
        wait_until(lambda: engine.stats()["greeting"] == 0, "both to be gone")
        assert engine.stats()["closed_stalled"] == 2
        link_to(engine).close()


def test_whoever_gives_up_in_the_middle_of_a_hello_is_gone_at_once():
    """Bytes and the end of the connection are there when the engine looks: it was stopped meanwhile."""
    with folder() as path:
        cell = roomy_cell(path)
        with EngineProcess(path, hello_s=600.0, idle_s=600.0) as engine:
            for count in (0, 1, 8, 20, 47, 48):
                ticket = os.urandom(32)
                engine.admit(ticket, 60.0)
                with engine.stopped(), Peer(engine.address) as peer:
                    peer.send(hello(ticket)[:count])
                    peer.socket.shutdown(socket.SHUT_WR)
                    engine.go_on()
                    assert peer.is_ended()
        cell.close()


def test_whoever_hangs_up_behind_a_request_is_answered_and_gone():
    with folder() as path:
        cell = roomy_cell(path)
        with EngineProcess(path, idle_s=600.0, stall_s=600.0) as engine:
            ticket = os.urandom(32)
            engine.admit(ticket, 60.0)
            with Peer(engine.address, ticket) as peer, engine.stopped():
                peer.send(peer.request(0) + peer.request(0) + peer.request(0)[:40])
                peer.socket.shutdown(socket.SHUT_WR)
                engine.go_on()
                assert [peer.receive_answer().tag, peer.receive_answer().tag] == [1, 2]
                assert peer.is_ended()
        cell.close()


def test_many_without_a_ticket_keep_nobody_with_one_out():
    """More connections than may greet at once. The oldest of them go, and none of those with a ticket."""
    with served(connections_max=2) as (_, engine), peer_of(engine) as before:
        crowd = [Peer(engine.address) for _ in range(600)]
        try:
            with peer_of(engine) as within:
                assert (before.ping().tag, within.ping().tag) == (1, 1)
                assert engine.stats()["greeting"] <= 256
                wait_until(lambda: engine.stats()["accepted"] == 602, "all to be accepted")
                assert 250 <= engine.stats()["greeting"] <= 256
                assert before.ping().tag == 2
        finally:
            for peer in crowd:
                peer.close()


def test_more_links_than_the_engine_takes_are_refused_and_may_come_again():
    with served(connections_max=3) as (_, engine):
        links = [link_to(engine) for _ in range(3)]
        ticket = ticket_for(engine)
        assert refused(engine, hello(ticket)) == NO_PLACE
        with pytest.raises(OSError, match="it has as many links as it takes"):
            Link(*engine.address, ticket)
        links.pop().close()
        wait_until(lambda: engine.stats()["connections"] == 2, "one to leave")
        links.append(Link(*engine.address, ticket))
        assert engine.stats()["connections"] == 3
        for link in links:
            link.close()


def test_refused_peers_that_do_not_hang_up_are_left_behind():
    with served() as (_, engine):
        crowd = [Peer(engine.address) for _ in range(200)]
        for peer in crowd:
            peer.send(b"nonsense" * 20)
        for peer in crowd:
            assert peer.is_ended()
            peer.close()
        link_to(engine).close()
        assert engine.stats()["refused"] == 200


def test_silence_after_the_ticket_ends_too():
    with served(idle_s=0.05) as (_, engine):
        with peer_of(engine) as peer:
            assert peer.is_ended()
        link = link_to(engine)
        wait_until(lambda: engine.stats()["closed_idle"] == 2, "both to be hung up on")
        with pytest.raises(ConnectionError, match="broken"):
            link.scan([b"key"], 0)


def test_a_link_that_pings_is_not_silent():
    with served(idle_s=0.5) as (_, engine), peer_of(engine) as silent, link_to(engine) as link:
        wait_until(lambda: link.ping() or engine.stats()["closed_idle"] == 1, "the silent one to be hung up on")
        with pytest.raises(HungUp):
            silent.receive(1)
        assert link.scan([b"key"], 0) == [(State.MISS, None, None)]
