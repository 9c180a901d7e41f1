"""Frames of mutations by an engine: applied in its thread, or refused with nothing changed. And sockets of the host."""

import struct
import threading
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.native.cell import key_hash
from tailrace.native.engine import Engine, Link, State

from ..cell.places import folder
from ..client.frames import ERASE, SET, Mutation, written
from .frames import CHANGED_HANDS, FOUND, MUTATE, SHUT, WRONG, HungUp, Mutated
from .served import link_to, peer_of, roomy_cell, served, ticket_for

CLOCK_ERROR_US = 2**62  # versions of these tests are any numbers
FIRST = Mutation(SET, b"key", b"value", (5, 1, 0))


def test_an_engine_without_a_mutator_takes_none():
    with served() as (cell, engine), peer_of(engine) as peer:
        refused = peer.mutate(written([FIRST]))
        assert refused == Mutated(SHUT, b"no mutations are taken here")
        assert cell.get(b"key", 0) is None
        assert engine.stats()["mutated"] == 0


def test_mutations_are_applied_in_order_and_seen_by_the_next_scan():
    with folder() as path:
        cell = roomy_cell(path)
        with Engine(path, mutator=cell.mutator(CLOCK_ERROR_US)) as engine, peer_of(engine) as peer:
            again = [
                FIRST,
                Mutation(SET, b"other", b"two", (6, 1, 0)),
                FIRST,
                Mutation(ERASE, b"other", b"", (7, 1, 0)),
            ]
            assert peer.mutate(written(again)) == Mutated(
                0, bytes(4), (0, 0, 0)
            )  # what is there already counts as applied
            found, gone = peer.scan([key_hash(b"key"), key_hash(b"other")])
            assert (found.state, found.version) == (FOUND, (5, 1, 0))
            assert gone.state != FOUND
            with link_to(engine) as link:
                assert link.scan([b"key"], 0) == [(State.HIT, b"value", (5, 1, 0))]
            assert cell.get(b"key", 0) == (b"value", (5, 1, 0))
            assert engine.stats()["mutated"] == 4
        cell.close()


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"x",
        written([FIRST])[:-1],
        written([FIRST]) + b"12345678",
        written([FIRST], count=2),
        written([FIRST], magic=b"NONE"),
        written([FIRST, Mutation(9, b"key")]),
    ],
)
def test_a_frame_that_is_wrong_changes_nothing_and_the_link_goes_on(frame):
    with folder() as path:
        cell = roomy_cell(path)
        with Engine(path, mutator=cell.mutator(CLOCK_ERROR_US)) as engine, peer_of(engine) as peer:
            refused = peer.mutate(frame)
            assert refused.status == WRONG
            assert refused.raw.decode().isprintable()
            assert cell.get(b"key", 0) is None
            assert peer.mutate(written([FIRST])).status == 0
        cell.close()


def test_mutations_for_another_cell_are_not_applied():
    with folder() as path:
        cell = roomy_cell(path)
        with Engine(path, mutator=cell.mutator(CLOCK_ERROR_US)) as engine, peer_of(engine) as peer:
            for other in ({"instance": 1}, {"config_id": 1}):
                (answer,) = peer.ask(MUTATE, [written([FIRST])], **other)
                assert (answer.status, answer.items) == (CHANGED_HANDS, ())
            assert cell.get(b"key", 0) is None
        cell.close()


def test_a_mutation_has_one_item():
    with served() as (_, engine), peer_of(engine) as peer:
        content = bytearray(peer.request(MUTATE, [written([FIRST])]))
        content[32:36] = struct.pack("<I", 2)
        peer.send(bytes(content))
        assert peer.receive_answer().status == 2
        with pytest.raises(HungUp):
            peer.receive(1)


def test_several_clients_and_the_backend_mutate_at_once():
    """Each counts its own keys up; in the end each has its last value, and none was lost on the way."""
    with folder() as path:
        cell, turns = roomy_cell(path), 200
        with Engine(path, mutator=cell.mutator(CLOCK_ERROR_US)) as engine:

            def mutate(name):
                with peer_of(engine) as peer:
                    for turn in range(1, turns + 1):
                        frame = written(
                            [Mutation(SET, b"%s %d" % (name, n), b"%d" % turn * 50, (turn, n, 0)) for n in range(20)]
                        )
                        assert peer.mutate(frame) == Mutated(0, bytes(20))

            names = [b"first", b"second", b"third"]
            threads = [threading.Thread(target=mutate, args=(name,)) for name in names]
            for thread in threads:
                thread.start()
            for turn in range(1, turns + 1):
                for n in range(20):
                    cell.set(b"own %d" % n, b"%d" % turn * 50, (turn, n, 0))
            for thread in threads:
                thread.join()
            for name in [*names, b"own"]:
                for n in range(20):
                    assert cell.get(b"%s %d" % (name, n), 0) == (b"%d" % turns * 50, (turns, n, 0))
        cell.close()


def test_a_socket_of_the_host_serves_like_any_other():
    with folder() as path:
        cell = roomy_cell(path)
        cell.set(b"key", b"value" * 5000, (1, 0, 0))
        where = f"unix:{path}/engine.sock"
        for _ in range(2):  # what an earlier engine left is no obstacle
            with Engine(path, where) as engine:
                assert engine.address == (where, 0)
                assert (Path(path) / "engine.sock").stat().st_mode & 0o777 == 0o600
                with Link(*engine.address, ticket_for(engine), 60.0) as link:
                    assert link.scan([b"key"] * 100, 0) == [(State.HIT, b"value" * 5000, (1, 0, 0))] * 100
                    assert link.read([b"key"], 0)[0][0] == State.HIT
                wait_until(lambda engine=engine: engine.stats()["connections"] == 0, "the link to end")
        with pytest.raises(OSError, match="connecting"):
            Link(where, 0, bytes(32))
        with pytest.raises(OSError, match="path"):
            Engine(path, "unix:" + "x" * 200)
        with pytest.raises(OSError, match="path is too long"):
            Link("unix:" + "x" * 200, 0, bytes(32))
        cell.close()
