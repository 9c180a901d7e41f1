"""Two operations for one target at once, at one writer or at two: the newer wins, the older stops within a second (of
virtual time, so that it is a fact and not a matter of the machine), and what is copied is right."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from copytree_world import Copying, Reader, Scheduler, World, all_files, is_settled

from tailrace.wire import Storage

STOPS_S = 1.0


class Duel:
    """A world at peace. The reader that runs an operation gets a rival, which knows nothing of it."""

    def __init__(self, seed: int, storage: Storage) -> None:
        self.world = World(seed, clusters=2)
        self.world.time.run(3.0)
        site = self.world.origin
        self.readers: list[Reader] = [process.does for process in site.readers]
        self.older, self.reader = next(
            (copying, reader)
            for reader in self.readers
            for operation, copying in reader.copyings.items()
            if operation.storage == storage and copying.state == "running"
        )

    def rival(self, *, same_writer: bool) -> Copying:
        other = next(reader for reader in self.readers if reader is not self.reader)
        turn = self.older.writer_turn if same_writer else self.older.writer_turn + 1
        return Copying(other, self.older.order, turn=turn)

    def run_until(self, state: str, copying: Copying, limit_s: float) -> float:
        begin_s = self.world.time.now_s
        while copying.state != state:
            assert self.world.time.now_s < begin_s + limit_s, f"not {state} after {limit_s:g} s, but {copying.state}"
            self.world.time.run(self.world.time.now_s + 0.01)
        return self.world.time.now_s - begin_s


@pytest.mark.parametrize("same_writer", [True, False], ids=["one writer", "two writers"])
@pytest.mark.parametrize("making", [True, False], ids=["flowing", "quiet"])
@pytest.mark.parametrize("storage", ["durable", "cache"])
def test_the_newer_wins_and_the_older_stops_within_a_second(storage: Storage, making: bool, same_writer: bool) -> None:
    for seed in range(2):
        duel = Duel(seed, storage)
        try:
            duel.world.making = making
            newer = duel.rival(same_writer=same_writer)
            duel.run_until("running", newer, STOPS_S)
            duel.run_until("superseded", duel.older, STOPS_S)
            assert newer.state == "running"
            duel.run_until("running", duel.older, 10.0)  # it was ordered, too, and comes back: then the other stops
            duel.run_until("superseded", newer, STOPS_S)
            newer.stop()
            duel.world.making = False
            for _ in range(30):
                duel.world.time.run(duel.world.time.now_s + 1.0)
                if is_settled(duel.world):
                    break
            kept = all_files(duel.world)
            assert kept["b"] == kept["a"]
            assert duel.world.sites["b"].consumer.seen == duel.world.origin.consumer.seen
        finally:
            Scheduler.running.pop(id(duel.world), None)
