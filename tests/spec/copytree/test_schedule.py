"""Who runs which operation: every wanted one is run by somebody, none moves without need, none stops before its
successor runs."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tailrace.copytree.schedule import Event, Joined, Left, Reported, Schedule, Tell, Tick, Wanted
from tailrace.wire import Operation, Order, Running


def operations(count: int) -> dict[Operation, Order]:
    made = [Operation("prices", shard, "durable", "west") for shard in range(count)]
    return {one: Order(operation=one, writers=("w",), origin="east") for one in made}


class Readers:
    """Readers that do as they are told, and a scheduler."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule, self.now_s = schedule, 0.0
        schedule.handle(Tick(), -1.0)
        self.running: dict[str, dict[Operation, Order]] = {}

    def handle(self, event: Event) -> None:
        """Later than a new scheduler listens."""
        self.now_s += 0.001
        for tell in self.schedule.handle(event, self.now_s):
            assert isinstance(tell, Tell)
            if tell.reader in self.running:
                self.running[tell.reader] = {order.operation: order for order in tell.orders}

    def join(self, name: str, running: dict[Operation, Order] | None = None) -> None:
        self.running[name] = dict(running or {})
        self.handle(Joined(name))
        self.report(name)

    def report(self, name: str) -> None:
        self.handle(Reported(name, [Running(operation=one, state="running") for one in self.running[name]]))

    def leave(self, name: str) -> None:
        del self.running[name]
        self.handle(Left(name))

    def settle(self) -> None:
        for _ in range(30):
            self.now_s += 10.0
            self.handle(Tick())
            for name in list(self.running):
                self.report(name)

    def counts(self) -> Counter[Operation]:
        return Counter(one for mine in self.running.values() for one in mine)


def test_all_operations_run_once_and_evenly() -> None:
    readers = Readers(Schedule())
    readers.handle(Wanted(operations(100)))
    for name in ("r0", "r1", "r2"):
        readers.join(name)
    readers.settle()
    assert readers.counts() == Counter(list(operations(100)))
    loads = [len(mine) for mine in readers.running.values()]
    assert max(loads) - min(loads) <= 1


def test_the_operations_of_a_dead_reader_go_to_the_others_at_once() -> None:
    readers = Readers(Schedule())
    readers.handle(Wanted(operations(30)))
    for name in ("r0", "r1", "r2"):
        readers.join(name)
    readers.settle()
    kept = {name: set(readers.running[name]) for name in ("r1", "r2")}
    readers.leave("r0")
    assert readers.counts() == Counter(list(operations(30)))
    assert all(kept[name] <= set(readers.running[name]) for name in kept)  # nobody else is disturbed


def test_what_readers_run_already_is_left_to_them() -> None:
    """A scheduler that was away comes back: nothing moves."""
    orders = operations(20)
    mine = {
        name: {one: order for one, order in orders.items() if one.shard % 2 == odd}
        for name, odd in (("r0", 0), ("r1", 1))
    }
    readers = Readers(Schedule(gather_s=1.1))
    readers.handle(Wanted(orders))
    for name, running in mine.items():
        readers.running[name] = dict(running)
        readers.handle(Joined(name))
    for name in mine:
        readers.report(name)
    assert readers.running == mine
    readers.settle()
    assert readers.running == mine


def test_an_operation_moves_by_being_made_before_it_is_broken() -> None:
    readers = Readers(Schedule())
    readers.handle(Wanted(operations(10)))
    readers.join("r0")
    readers.join("r1")
    for _ in range(100):
        readers.now_s += 10.0
        readers.handle(Tick())
        assert all(readers.counts()[one] >= 1 for one in operations(10))
        for name in ("r0", "r1"):
            readers.report(name)
            assert all(readers.counts()[one] >= 1 for one in operations(10))
    assert {name: len(mine) for name, mine in readers.running.items()} == {"r0": 5, "r1": 5}


def test_new_operations_are_handed_out_a_few_at_a_time() -> None:
    readers = Readers(Schedule(starting_max=5))
    readers.handle(Wanted(operations(12)))
    readers.join("r0")
    assert len(readers.running["r0"]) == 5
    readers.report("r0")
    assert len(readers.running["r0"]) == 10
    readers.report("r0")
    assert len(readers.running["r0"]) == 12


@settings(max_examples=150)
@given(st.data())
def test_whatever_happens_all_that_is_wanted_runs_in_the_end(data: st.DataObject) -> None:
    readers = Readers(Schedule(starting_max=data.draw(st.integers(1, 8))))
    wanted = operations(0)
    for _ in range(data.draw(st.integers(0, 25))):
        match data.draw(st.sampled_from(["want", "join", "leave", "report", "tick", "return"])):
            case "want":
                wanted = operations(data.draw(st.integers(0, 12)))
                readers.handle(Wanted(wanted))
            case "join" | "return":
                name = data.draw(st.sampled_from(["r0", "r1", "r2", "r3"]))
                before = readers.running.get(name)
                if before is not None:
                    readers.handle(Left(name))
                readers.join(name, before)
            case "leave" if readers.running:
                readers.leave(data.draw(st.sampled_from(sorted(readers.running))))
            case "report" if readers.running:
                readers.report(data.draw(st.sampled_from(sorted(readers.running))))
            case _:
                readers.now_s += data.draw(st.floats(0, 10))
                readers.handle(Tick())
    readers.join("last")
    readers.settle()
    assert readers.counts() == Counter(list(wanted))
