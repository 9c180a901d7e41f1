"""Reading and mutating have budgets of their own: whoever has used up one does not touch the other."""

from collections.abc import Iterator
from contextlib import contextmanager

from conftest import wait_until
from tailrace.native.cell import Cell, key_hash
from tailrace.native.engine import Engine, State

from ..cell.places import folder
from ..client.frames import SET, Mutation, written
from .frames import MUTATE, SCAN, Mutated, Peer
from .served import link_to, peer_of, roomy_cell

CLOCK_ERROR_US = 2**62  # versions of these tests are any numbers
KEYS = [b"key %d" % number for number in range(40)]
TAKEN = Mutated(0, bytes(1), (0, 0, 0))


@contextmanager
def mutable() -> Iterator[tuple[Cell, Engine]]:
    with folder() as path:
        cell = roomy_cell(path)
        for number, key in enumerate(KEYS):
            cell.set(key, b"." * 5000, (1 + number, 0, 0))
        with Engine(path, mutator=cell.mutator(CLOCK_ERROR_US)) as engine:
            yield cell, engine
        cell.close()


def mutation(number: int) -> bytes:
    return written([Mutation(SET, b"other", b"%d" % number, (100 + number, 1, 0))])


def use_up(peer: Peer) -> None:
    """Read more than any budget of one byte per second allows."""
    assert all(one.state for one in peer.scan([key_hash(key) for key in KEYS]))


def test_readers_without_a_budget_keep_no_mutation_waiting() -> None:
    with mutable() as (cell, engine), peer_of(engine) as reader, peer_of(engine) as writer:
        assert writer.mutate(mutation(0)) == TAKEN
        use_up(reader)  # now both are known for what they are
        engine.budget(1, 0)
        reader.send(reader.request(SCAN, [key_hash(key) for key in KEYS], data_bytes_max=1 << 20))
        wait_until(lambda: engine.stats()["reads_held"] > 0, "the reader to be held")
        for number in range(1, 50):
            assert writer.mutate(mutation(number)) == TAKEN
        assert cell.get(b"other", 0) == (b"49", (149, 1, 0))
        engine.budget(0, 0)
        assert reader.receive_answer().tag == reader.tag


def test_writers_without_a_budget_keep_no_reader_waiting() -> None:
    with mutable() as (cell, engine), peer_of(engine) as writer, link_to(engine) as link:
        assert writer.mutate(mutation(0)) == TAKEN
        assert link.scan(KEYS[:1], 0)[0][0] == State.HIT
        engine.budget(0, 1)
        writer.send(writer.request(MUTATE, [mutation(1)]))
        wait_until(lambda: engine.stats()["writes_held"] > 0, "the writer to be held")
        for _ in range(50):
            assert [state for state, _, _ in link.scan(KEYS, 0)] == [State.HIT] * len(KEYS)
        engine.budget(0, 0)
        wait_until(lambda: cell.get(b"other", 0) == (b"1", (101, 1, 0)), "the mutation to be taken")


def test_a_budget_lets_everything_through_in_the_end_and_newcomers_in() -> None:
    with mutable() as (_, engine), peer_of(engine) as reader:
        engine.budget(3_000_000, 3_000_000)
        for _ in range(5):
            use_up(reader)
        with link_to(engine) as link:
            assert [state for state, _, _ in link.scan(KEYS, 0)] == [State.HIT] * len(KEYS)
        assert engine.stats()["closed_stalled"] == 0
