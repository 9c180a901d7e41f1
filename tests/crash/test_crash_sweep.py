"""Fail the first disk call, then the second, … until none fails. Whatever was flushed is there after reopening, in
order; nothing torn and nothing twice is delivered; and the shard goes on."""

import errno
from contextlib import suppress
from dataclasses import replace
from typing import Literal

import pytest

from tailrace.env import Identity
from tailrace.errors import FlushFailed, TailraceError
from tailrace.files.fence import FENCE_BYTES, FenceRecord
from tailrace.streams import ShardTail
from tailrace.testing import Fault, FaultyDisk, ManualClock, SimulatedCrash, SimulatedDisk
from worlds import SimulatedWorld, small_config, values

ROUNDS = 6  # flushes of a run; small files, so that several of them begin new ones
Keep = Literal["nothing", "everything", "random"]


def message(number: int) -> bytes:
    return b"message %04d " % number + bytes([number % 251]) * (number * 7 % 40)


class History:
    """What a run sent and what it was told is durable."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.flushed = 0


def produce(world: SimulatedWorld, history: History, rounds: int = ROUNDS) -> None:
    producer = world.producer()
    for _ in range(rounds):
        for _ in range(3):
            value = message(len(history.sent))
            producer.send(value)
            history.sent.append(value)
        producer.flush()
        history.flushed = len(history.sent)
        world.clock.advance(1.0)
    producer.close()


def assert_prefix(seen: list[bytes | None], history: History) -> None:
    """All that was flushed, in order; of what came after, a whole run from its start or nothing."""
    assert seen[: history.flushed] == history.sent[: history.flushed]
    assert seen == history.sent[: len(seen)]


def reopen_and_go_on(disk: SimulatedDisk, clock: ManualClock, history: History) -> None:
    """Consumers alone first, then a new producer, then both again."""
    world = SimulatedWorld(disk.process(), clock, small_config(), seed=2)
    before = values(world.read())
    assert_prefix(before, history)
    after = History()
    produce(world, after, rounds=2)
    seen = values(world.read())
    assert seen[: len(before)] == before, "a producer that starts again must not take back what was readable"
    assert seen[len(before) :] == after.sent


@pytest.mark.parametrize("keep", ["nothing", "everything", "random"])
@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_the_machine_goes_down_at_every_call(keep: Keep, effect: Literal["none", "half", "whole"]) -> None:
    for at in range(1, 100_000):
        disk, clock, history = SimulatedDisk(seed=at), ManualClock(), History()
        faulty = FaultyDisk(disk.process(), Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            produce(SimulatedWorld(faulty, clock, small_config(), seed=1), history)
        disk.crash(keep)
        reopen_and_go_on(disk, clock, history)
        if not faulty.fired:
            assert history.flushed == 3 * ROUNDS
            assert at > 100, "the sweep ended suspiciously early"
            return


@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_the_process_dies_at_every_call(effect: Literal["none", "half", "whole"]) -> None:
    """The page cache survives: what was written but not flushed is still in the files, and must not be delivered."""
    for at in range(1, 100_000):
        disk, clock, history = SimulatedDisk(), ManualClock(), History()
        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            produce(SimulatedWorld(faulty, clock, small_config(), seed=1), history)
        process.kill()
        reopen_and_go_on(disk, clock, history)
        if not faulty.fired:
            return


@pytest.mark.parametrize("keep", ["nothing", "random"])
def test_the_machine_goes_down_again_while_it_recovers(keep: Keep) -> None:
    """A crash in the middle of a run, then one at every call of the producer that starts again after it."""
    for at in range(1, 100_000):
        disk, clock, history = SimulatedDisk(seed=at), ManualClock(), History()
        faulty = FaultyDisk(disk.process(), Fault(at=40 + at % 97, kind="crash", effect="half"))
        with pytest.raises(SimulatedCrash):
            produce(SimulatedWorld(faulty, clock, small_config(), seed=1), history)
        disk.crash("random")
        world = SimulatedWorld(disk.process(), clock, small_config(), seed=2)
        first = values(world.read())
        assert_prefix(first, history)
        second = History()
        second.sent, second.flushed = list(first), len(first)  # type: ignore[arg-type]
        faulty = FaultyDisk(disk.process(), Fault(at=at, kind="crash", effect="half"))
        with suppress(SimulatedCrash):
            produce(SimulatedWorld(faulty, clock, small_config(), seed=3), second, rounds=2)
        disk.crash(keep)
        reopen_and_go_on(disk, clock, second)
        if not faulty.fired:
            return


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_a_call_fails_once_and_the_producer_goes_on(code: int, effect: Literal["none", "half", "whole"]) -> None:
    """The same producer retries: everything arrives once, in order, without reopening."""
    for at in range(1, 100_000):
        disk, clock = SimulatedDisk(), ManualClock()
        healthy = SimulatedWorld(disk.process(), clock, small_config(), seed=1)
        producer = healthy.producer()
        faulty = FaultyDisk(healthy.files._disk, Fault(at=at, kind="error", errno=code, effect=effect))
        healthy.files._disk = faulty
        sent = []
        failures = 0
        for number in range(3 * ROUNDS):
            producer.send(message(number))
            sent.append(message(number))
            if number % 3 == 2:
                for _ in range(3):  # one fault may cost one flush; it must never cost a message
                    try:
                        producer.flush()
                        break
                    except TailraceError as problem:
                        failures += 1
                        assert problem.took_effect is not True
                else:
                    pytest.fail(f"call {at} failed once, and flush went on failing")
        try:
            producer.close()
        except TailraceError:
            failures += 1
        assert values(SimulatedWorld(disk.process(), clock, small_config(), seed=2).read()) == sent, at
        if not faulty.fired:
            assert failures == 0
            return


def test_the_disk_is_full_for_a_while() -> None:
    disk, clock = SimulatedDisk(capacity_bytes=3000), ManualClock()
    world = SimulatedWorld(disk.process(), clock, small_config(file_bytes=500), seed=1)
    producer = world.producer()
    sent: list[bytes] = []
    refused = 0
    while refused < 3:
        producer.send(message(len(sent)))
        sent.append(message(len(sent)))
        try:
            producer.flush()
        except TailraceError as problem:
            refused += 1
            assert "Make room" in str(problem)
    assert values(world.read()) == sent[: len(sent) - 3]
    disk.capacity_bytes = None
    producer.flush()
    producer.close()
    assert values(world.read()) == sent


@pytest.mark.parametrize("effect", ["none", "half", "whole"])
def test_a_consumer_that_waits_never_sees_what_the_next_producer_cut_off(
    effect: Literal["none", "half", "whole"],
) -> None:
    """It has listed the files before the producer dies, and looks again only after the next one has settled them: the
    old file's length then counts bytes that were never flushed."""
    for at in range(1, 100_000):
        disk, clock, history = SimulatedDisk(), ManualClock(), History()
        process = disk.process()
        world = SimulatedWorld(process, clock, small_config(file_bytes=10_000), seed=1)
        waiting = SimulatedWorld(disk.process(), clock, small_config(), seed=4)
        producer = world.producer()
        producer.send(b"first")
        producer.flush()
        tail = waiting.tail()
        seen = [message.value for batch in iter(lambda: tail.poll(1000), None) for message in batch]  # noqa: B023
        assert seen == [b"first"]
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect=effect))
        for log in producer._logs.values():
            assert log._open is not None
            for appender in (log._open._data, log._open._index):
                appender._disk = appender._fence._disk = faulty  # type: ignore[attr-defined]
        producer.send(b"perhaps")
        with suppress(SimulatedCrash):
            producer.flush()
        process.kill()
        produce(SimulatedWorld(disk.process(), clock, small_config(), seed=2), history, rounds=1)
        while batch := tail.poll(1000):
            seen += [message.value for message in batch]
        assert seen in ([b"first", *history.sent], [b"first", b"perhaps", *history.sent]), at
        assert seen == values(waiting.read())
        if not faulty.fired:
            return


@pytest.mark.parametrize("effect", ["none", "whole"])
def test_a_consumer_that_looks_between_a_death_and_the_restart_goes_on(effect: Literal["none", "whole"]) -> None:
    """What it meets then, half-made files among it, must not be the last that it looks at."""
    for at in range(1, 100_000):
        disk, clock, before, after = SimulatedDisk(), ManualClock(), History(), History()
        waiting = SimulatedWorld(disk.process(), clock, small_config(), seed=4)
        tail, seen = waiting.tail(), list[bytes | None]()

        def look(tail: ShardTail = tail, seen: list[bytes | None] = seen) -> None:
            while batch := tail.poll(1000):
                seen += [message.value for message in batch]

        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            produce(SimulatedWorld(faulty, clock, small_config(), seed=1), before, rounds=3)
        process.kill()
        look()
        produce(SimulatedWorld(disk.process(), clock, small_config(), seed=2), after, rounds=1)
        look()
        assert seen == values(waiting.read()), at
        assert_prefix(seen[: len(seen) - len(after.sent)], before)
        assert seen[len(seen) - len(after.sent) :] == after.sent
        if not faulty.fired:
            return


def test_a_full_disk_does_not_breed_files() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    world = SimulatedWorld(disk.process(), clock, small_config(file_bytes=10), seed=1)
    producer = world.producer()
    producer.send(b"x" * 20)
    producer.flush()
    disk.capacity_bytes = 0
    producer.send(b"y" * 20)
    for _ in range(10):
        with pytest.raises(FlushFailed):
            producer.flush()
    assert len(world.files.list("streams/prices/00000")) <= 4
    disk.capacity_bytes = None
    producer.close()
    assert values(world.read()) == [b"x" * 20, b"y" * 20]


def test_a_disk_that_moved_to_another_machine_after_a_power_loss() -> None:
    """Its fences are as old as the last time the first machine wrote them back, and name a machine that is not ours."""
    disk, clock = SimulatedDisk(), ManualClock()
    world = SimulatedWorld(disk.process(), clock, small_config(file_bytes=10_000), seed=1)
    producer = world.producer()
    producer.send(b"first")
    producer.flush()
    folder = "/root/streams/prices/00000"
    old = {}
    for path in (f"{folder}/{name}" for name in disk.list(folder) if name.endswith(".fence")):
        raw = bytearray(FENCE_BYTES)
        disk.read_into(disk.open(path, write=False), 0, memoryview(raw))
        record = FenceRecord.decode(bytes(raw))
        assert record is not None
        old[path] = replace(record, identity=Identity(host=b"another machine!", boot=b"and another boot")).encode()
    producer.send(b"second")
    producer.flush()
    disk.crash("everything")
    for path, content in old.items():
        disk.write(disk.open(path, write=True), 0, [content])
    moved = SimulatedWorld(disk.process(), clock, small_config(), seed=2)
    moved.producer().close()
    assert values(moved.read()) == [b"first", b"second"]
