"""Tasks among processes: each is answered once, whoever dies, and a death costs one task only."""

import os
import random
import socket
from collections import deque
from collections.abc import Callable

import pytest

from tailrace.pipeline.failure import Failure
from tailrace.pipeline.ranges import ByteRange
from tailrace.pipeline.work import Done, Failed, Result, Task
from tailrace.pipeline.workers.crew import Hand, drive
from tailrace.pipeline.workers.frames import receive, send


def task(number: int) -> Task:
    return Task(f"u{number}", (ByteRange("s", 0, "f", number, number + 1),), f"u{number}.parquet")


class Pretended:
    """A process that answers at once, except that some tasks are its death."""

    def __init__(self, deadly: set[str], log: list[tuple[str, int]]) -> None:
        reading, writing = os.pipe()
        self._answers, self._results = os.fdopen(reading, "rb", buffering=0), os.fdopen(writing, "wb")
        self._deadly, self._log, self.ended, self.waiting = deadly, log, False, 0

    def fileno(self) -> int:
        return self._answers.fileno()

    def begin(self, task: Task) -> None:
        if self._results.closed:
            return
        self.waiting += 1
        self._log.append((task.unit, self.waiting))
        if task.unit in self._deadly:
            self._results.close()
        else:
            send(self._results, Done(task.unit, {}, 1, 1))

    def result(self) -> Result | None:
        self.waiting -= 1
        found = receive(self._answers)
        return found if isinstance(found, Result) else None

    def close(self) -> None:
        self.ended = True
        self._answers.close()
        self._results.close()


class Crew:
    def __init__(self, slots: int, deadly: set[str]) -> None:
        self.slots, self._deadly, self.log = slots, deadly, list[tuple[str, int]]()
        self.idle: deque[Hand] = deque()
        self.made: list[Pretended] = []

    def ready(self) -> bool:
        return True

    def take(self) -> Hand:
        if self.idle:
            return self.idle.popleft()
        self.made.append(Pretended(self._deadly, self.log))
        return self.made[-1]

    def give_back(self, hand: Hand) -> None:
        self.idle.append(hand)

    def end(self, hand: Hand) -> str:
        assert isinstance(hand, Pretended)
        hand.close()
        return "died"


def source(count: int) -> Callable[[], Task | None]:
    left = deque(task(number) for number in range(count))
    return lambda: left.popleft() if left else None


@pytest.mark.parametrize("seed", range(20))
def test_every_task_is_answered_once_and_only_the_deadly_ones_fail(seed: int) -> None:
    dice = random.Random(seed)
    count, slots = dice.randint(0, 40), dice.randint(1, 4)
    deadly = {f"u{number}" for number in range(count) if dice.random() < 0.2}
    crew = Crew(slots, deadly)
    results = list(drive(crew, source(count), 60.0))
    assert sorted(result.unit for result in results) == sorted(f"u{number}" for number in range(count))
    assert {result.unit for result in results if isinstance(result, Failed)} == deadly
    assert all(depth <= 2 for _, depth in crew.log), "one under way and one that waits"
    assert sum(not hand.ended for hand in crew.made) == len(crew.idle) <= slots
    for hand in crew.made:
        hand.close()


def test_everybody_has_one_before_anybody_has_two() -> None:
    crew = Crew(3, set())
    results = drive(crew, source(5), 60.0)
    next(results)
    assert [depth for _, depth in crew.log] == [1, 1, 1, 2, 2]
    results.close()
    assert all(hand.ended for hand in crew.made), "whoever stops asking does not want the rest"


def test_a_task_that_hangs_is_ended() -> None:
    crew = Crew(1, set())
    quiet = Pretended(set(), [])
    quiet.begin = lambda task: None  # type: ignore[method-assign]
    crew.idle.append(quiet)
    (result,) = drive(crew, source(1), deadline_s=0.0)
    assert isinstance(result, Failed)
    assert isinstance(result.failure, Failure)
    assert "no result within" in result.failure.reason
    assert quiet.ended


def test_only_who_knows_the_key_may_talk() -> None:
    pytest.importorskip("pyspark")
    from concurrent.futures import ThreadPoolExecutor

    from tailrace.pipeline.spark.slots import greet

    with ThreadPoolExecutor(1) as pool:
        for other, welcome in ((b"k", True), (b"guessed", False)):
            ours, theirs = socket.socketpair()
            with ours, theirs:
                answer = pool.submit(greet, theirs, other, first=True)
                if welcome:
                    greet(ours, b"k", first=False)
                    answer.result()
                else:
                    with pytest.raises(ConnectionError):
                        greet(ours, b"k", first=False)
                    with pytest.raises(ConnectionError):
                        answer.result()
        ours, theirs = socket.socketpair()
        with ours, theirs:  # one that sends back what it hears
            echo = pool.submit(lambda: [theirs.sendall(theirs.recv(64)) for _ in range(2)])
            with pytest.raises(ConnectionError):
                greet(ours, b"k", first=False)
            echo.result()
