"""A request that waits: answered when one of its keys has another version, and not before; nobody else waits for it."""

import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from conftest import wait_until
from tailrace.native.cell import Cell, key_hash
from tailrace.native.engine import Engine

from ..cell.places import folder
from ..client.frames import SET, Mutation, written
from .frames import AWAITED, FOUND, MALFORMED, MISS, SCAN, WAIT, HungUp, Peer, Scanned, Version
from .served import peer_of, roomy_cell

NOTHING = (0, 0, 0)
LONG_MS, MOST_MS = 50_000, 60_000


@contextmanager
def heard() -> Iterator[tuple[Cell, Engine]]:
    """A cell with an engine that hears of its mutations."""
    with folder() as path:
        cell = roomy_cell(path)
        with Engine(path, mutator=cell.mutator(3_600_000_000)) as engine:
            yield cell, engine
        cell.close()


def awaited(key: bytes, version: Version = NOTHING) -> bytes:
    return AWAITED.pack(key_hash(key), *version)


def begin(peer: Peer, *items: bytes, wait_ms: int = LONG_MS, **more: int) -> None:
    peer.send(peer.request(WAIT, items, wait_ms=wait_ms, data_bytes_max=1 << 20, **more))


def is_answered(peer: Peer, seconds: float = 0.0) -> bool:
    return bool(select.select([peer.socket], [], [], seconds)[0])


def answer_of(peer: Peer) -> list[Scanned]:
    answer = peer.receive_answer()
    assert (answer.kind, answer.tag) == (WAIT, peer.tag)
    return [item for item in answer.items if isinstance(item, Scanned)]


def test_news_that_are_there_already_are_told_at_once():
    with heard() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"a", b"first", (1, 1, 1))
        begin(peer, awaited(b"a"), awaited(b"absent"))
        a, absent = answer_of(peer)
        assert (a.state, a.version, a.raw.endswith(b"first\0\0\0") or b"first" in a.raw) == (FOUND, (1, 1, 1), True)
        assert absent.state == MISS


@pytest.mark.parametrize("by", ["the cell", "the engine", "another engine"])
def test_whoever_mutates_wakes_those_who_wait_and_no_others(by):
    with folder() as path:
        cell = roomy_cell(path)
        mutator = cell.mutator(3_600_000_000)
        with Engine(path, mutator=mutator) as engine, Engine(path, mutator=mutator) as second:
            cell.set(b"a", b"1", (1, 1, 1))
            cell.set(b"b", b"1", (1, 1, 1))
            with peer_of(engine) as waits_a, peer_of(engine) as waits_b, peer_of(engine) as other:
                begin(waits_a, awaited(b"a", (1, 1, 1)))
                begin(waits_b, awaited(b"b", (1, 1, 1)))
                assert other.scan([key_hash(b"a")])[0].version == (1, 1, 1)  # nobody else has to wait
                frame = written([Mutation(SET, b"a", b"2", (2, 1, 1))])
                if by == "the cell":
                    cell.apply(frame, 0, 1 << 60)
                elif by == "the engine":
                    other.mutate(frame)
                else:
                    with peer_of(second) as further:
                        further.mutate(frame)
                (a,) = answer_of(waits_a)
                assert (a.version, b"2" in a.raw) == ((2, 1, 1), True)
                assert other.scan([key_hash(b"b")])[0].version == (1, 1, 1)
                assert not is_answered(waits_b)
                cell.erase(b"b", (3, 1, 1))
                (b,) = answer_of(waits_b)
                assert b.state == MISS
        cell.close()


def test_after_its_time_it_is_answered_without_news():
    with heard() as (cell, engine), peer_of(engine) as peer, peer_of(engine) as longer:
        cell.set(b"a", b"1", (1, 1, 1))
        begin(longer, awaited(b"a", (1, 1, 1)))
        begin(peer, awaited(b"a", (1, 1, 1)), wait_ms=20)
        (a,) = answer_of(peer)
        assert a.version == (1, 1, 1)
        assert not is_answered(longer)


def test_what_is_asked_behind_it_is_answered_behind_it():
    with heard() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"a", b"1", (1, 1, 1))
        begin(peer, awaited(b"a", (1, 1, 1)))
        peer.send(peer.request(SCAN, [key_hash(b"a")]))
        assert not is_answered(peer, 0.05)
        cell.set(b"a", b"2", (2, 1, 1))
        first, second = peer.receive_answer(), peer.receive_answer()
        assert (first.kind, second.kind) == (WAIT, SCAN)


def test_one_that_hangs_up_while_it_waits_is_gone():
    with heard() as (cell, engine):
        cell.set(b"a", b"1", (1, 1, 1))
        peer = peer_of(engine)
        begin(peer, awaited(b"a", (1, 1, 1)))
        wait_until(lambda: engine.stats()["pending_bytes"] > 0, "the request to be held")
        peer.close()
        wait_until(lambda: engine.stats()["connections"] == 0, "the connection to go")
        assert engine.stats()["pending_bytes"] == 0


def test_an_engine_stops_although_some_wait():
    with heard() as (cell, engine):
        cell.set(b"a", b"1", (1, 1, 1))
        peer = peer_of(engine)
        begin(peer, awaited(b"a", (1, 1, 1)))
        engine.close()
        with pytest.raises(HungUp):
            peer.receive_answer()


def test_a_cell_that_changes_hands_is_told():
    with folder() as path:
        first = roomy_cell(path)
        with Engine(path, mutator=first.mutator(0)) as engine, peer_of(engine) as peer:
            begin(peer, awaited(b"a"), instance=peer.welcome.instance + 1)
            assert peer.receive_answer().status != 0
        first.close()


@pytest.mark.parametrize(("kind", "items", "wait_ms"), [(WAIT, 1, MOST_MS + 1), (SCAN, 1, 1), (WAIT, 0, 5)])
def test_what_is_no_such_request_is_refused(kind, items, wait_ms):
    with heard() as (_, engine), peer_of(engine) as peer:
        item = awaited(b"a") if kind == WAIT else key_hash(b"a")
        peer.send(peer.request(kind, [item] * items, wait_ms=wait_ms))
        assert peer.receive_answer().status == MALFORMED
        assert peer.is_ended()


def test_none_of_many_who_wait_is_forgotten():
    """Mutations come from another thread while requests come in: one side or the other must notice."""
    with heard() as (cell, engine), peer_of(engine) as peer:
        rounds = 2000
        cell.set(b"a", b"", (1, 1, 0))
        go = threading.Semaphore(0)

        def mutate() -> None:
            for number in range(rounds):
                go.acquire()
                cell.set(b"a", b"%d" % number, (2, 1, number))

        thread = threading.Thread(target=mutate)
        thread.start()
        known: Version = (1, 1, 0)
        for _ in range(rounds):
            go.release()
            begin(peer, awaited(b"a", known))
            (a,) = answer_of(peer)
            assert a.version > known
            known = a.version
        thread.join()
        assert known == (2, 1, rounds - 1)
