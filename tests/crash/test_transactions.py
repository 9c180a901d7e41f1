"""Transactions on a disk that fails at every call in turn: a batch is there as a whole or not at all, and once."""

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

import pyarrow as pa
import pytest

from tailrace.env import Disk
from tailrace.errors import ConfigError, Corrupt, Fenced, TailraceError
from tailrace.native import shard_of
from tailrace.streams import Output, Stage, TransactionName, Transactions, complete_stale, staging, transactions
from tailrace.testing import Fault, FaultyDisk, ManualClock, SimulatedCrash, SimulatedDisk
from worlds import STREAM, SimulatedWorld, small_config

SHARDS, BATCHES, APP = 3, 3, "query"
Effect = Literal["none", "half", "whole"]
Keep = Literal["nothing", "everything", "random"]


@pytest.fixture(autouse=True)
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a handful of messages already takes every way: in the record, joined, and as files."""
    monkeypatch.setattr(staging, "ADOPT_BYTES", 150)
    monkeypatch.setattr(transactions, "ADOPT_BYTES", 150)
    monkeypatch.setattr(staging, "_BUFFER_BYTES", 400)
    monkeypatch.setattr(staging, "_INLINE_BYTES", 200)
    monkeypatch.setattr(transactions, "_KEPT_BYTES", 500)


def rows(batch: int, task: int) -> list[tuple[bytes, bytes]]:
    """Of different sizes: batch 0 is small, batch 1 large in one task, batch 2 in between."""
    count = {0: 3, 1: 14 if task else 2, 2: 7}[batch % 3]
    return [
        (b"key %d" % (number % 5), b"%d/%d/%03d" % (batch, task, number) + b"." * number) for number in range(count)
    ]


def stage(world: SimulatedWorld, batch: int, tasks: int = 2, app: str = APP) -> list[Output]:
    outputs = []
    for task in range(tasks):
        one = Stage(
            world.files,
            STREAM,
            TransactionName(app, batch),
            shards=SHARDS,
            message_bytes_max=4096,
            file_bytes=world.config.file_bytes,
        )
        keys, values = zip(*rows(batch, task), strict=True)
        for at in range(0, len(keys), 4):
            one.add(pa.array(values[at : at + 4]), pa.array(keys[at : at + 4]))
        outputs.append(one.finish())
    return outputs


def a_world(disk: Disk, clock: ManualClock, seed: int = 1) -> SimulatedWorld:
    return SimulatedWorld(disk, clock, small_config(shards=SHARDS, file_bytes=400), seed=seed)


def transactions_of(world: SimulatedWorld, app: str = APP) -> Transactions:
    return Transactions(world.files, world.clock, STREAM, world.config, app)


def run(world: SimulatedWorld, first: int, committed: list[int]) -> None:
    """As Spark does: batch after batch, beginning with the one of which it does not know that it was committed."""
    committing = transactions_of(world)
    for batch in range(first, BATCHES):
        world.clock.advance(1.0)
        committing.commit(batch, stage(world, batch))
        committed.append(batch)
    committing.close()


def seen(world: SimulatedWorld) -> Counter[bytes]:
    return Counter(message.value or b"" for message in world.read())


def of_batch(batch: int, tasks: int = 2) -> Counter[bytes]:
    return Counter(value for task in range(tasks) for _, value in rows(batch, task))


def assert_in_order(world: SimulatedWorld) -> None:
    """Each message in its key's shard, and those of a task in the order in which it had them."""
    last: dict[tuple[int, bytes, bytes], int] = {}
    for message in world.read():
        assert message.key is not None
        assert message.value is not None
        if message.value.startswith(b"other"):
            continue
        assert message.shard == shard_of(message.key, SHARDS)
        batch, task, number = message.value.rstrip(b".").split(b"/")
        place = message.shard, batch, task
        assert last.get(place, -1) < int(number), place
        last[place] = int(number)


def assert_whole_batches(world: SimulatedWorld, committed: Sequence[int]) -> None:
    """Those that were confirmed, and perhaps one more, each as a whole."""
    found = seen(world)
    for batch in range(BATCHES):
        expected = of_batch(batch)
        there = Counter({value: found[value] for value in expected if value in found})
        assert there == expected or (not there and batch not in committed), f"batch {batch}: {there}"


def recover(disk: SimulatedDisk, clock: ManualClock, committed: list[int]) -> None:
    """A consumer opens, then the query goes on, then everything is there once."""
    world = a_world(disk.process(), clock, seed=2)
    clock.advance(60.0)
    complete_stale(world.files, clock, STREAM, world.config)
    assert_whole_batches(world, committed)
    run(world, committed[-1] + 1 if committed else 0, [])
    assert seen(world) == sum((of_batch(batch) for batch in range(BATCHES)), Counter())
    assert_in_order(world)
    assert world.files.list(f"streams/{STREAM}/transactions/pending") == []
    assert world.files.list(f"streams/{STREAM}/transactions/staged") == []


# A sweep takes a while, so each one takes every third call, and they begin at different ones.
@pytest.mark.parametrize(("first", "keep"), [(1, "nothing"), (2, "everything"), (3, "random")])
def test_the_machine_goes_down_at_any_call(first: int, keep: Keep) -> None:
    for at in range(first, 100_000, 3):
        disk, clock, committed = SimulatedDisk(seed=at), ManualClock(), list[int]()
        faulty = FaultyDisk(disk.process(), Fault(at=at, kind="crash", effect="half"))
        with suppress(SimulatedCrash):
            run(a_world(faulty, clock), 0, committed)
        disk.crash(keep)
        recover(disk, clock, committed)
        if not faulty.fired:
            assert at > 200, "the sweep ended suspiciously early"
            assert committed == list(range(BATCHES))
            return


@pytest.mark.parametrize(("first", "effect"), [(1, "none"), (2, "whole")])
def test_the_process_dies_at_any_call(first: int, effect: Effect) -> None:
    for at in range(first, 100_000, 3):
        disk, clock, committed = SimulatedDisk(), ManualClock(), list[int]()
        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect=effect))
        with suppress(SimulatedCrash):
            run(a_world(faulty, clock), 0, committed)
        process.kill()
        recover(disk, clock, committed)
        if not faulty.fired:
            return


def test_an_ordinary_producer_completes_what_is_committed_before_it_sends() -> None:
    """The driver dies at any call; then a producer opens all shards and sends, before anybody else looks."""
    for at in range(3, 100_000, 3):
        disk, clock, committed = SimulatedDisk(), ManualClock(), list[int]()
        process = disk.process()
        faulty = FaultyDisk(process, Fault(at=at, kind="crash", effect="none"))
        with suppress(SimulatedCrash):
            run(a_world(faulty, clock), 0, committed)
        process.kill()
        world = a_world(disk.process(), clock, seed=2)
        with world.producer() as producer:
            for number in range(9):
                producer.send(b"other %d" % number, key=b"key %d" % number)
        assert_whole_batches(world, committed)
        recover_beside_others(world, committed)
        if not faulty.fired:
            return


def recover_beside_others(world: SimulatedWorld, committed: list[int]) -> None:
    run(world, committed[-1] + 1 if committed else 0, [])
    others = Counter(b"other %d" % number for number in range(9))
    assert seen(world) == sum((of_batch(batch) for batch in range(BATCHES)), others)
    assert_in_order(world)


def test_a_call_fails_once_and_the_batch_is_tried_again() -> None:
    for at in range(2, 100_000, 3):
        disk, clock = SimulatedDisk(), ManualClock()
        world = a_world(disk.process(), clock)
        faulty = FaultyDisk(world.files._disk, Fault(at=at, kind="error"))
        world.files._disk = faulty
        committing = transactions_of(world)
        for batch in range(BATCHES):
            for _ in range(3):
                with suppress(TailraceError):
                    committing.commit(batch, stage(world, batch))
                    break
            else:
                pytest.fail(f"call {at} failed once, and batch {batch} went on failing")
        assert seen(a_world(disk.process(), clock, seed=2)) == sum(
            (of_batch(batch) for batch in range(BATCHES)), Counter()
        )
        if not faulty.fired:
            return


def test_a_batch_that_comes_again_changes_nothing_whatever_it_brings() -> None:
    world = a_world(SimulatedDisk().process(), ManualClock())
    committing = transactions_of(world)
    assert committing.commit(0, stage(world, 0)) is True
    assert committing.commit(1, stage(world, 1)) is True
    before = world.read()
    assert committing.commit(1, stage(world, 1, tasks=1)) is False
    assert transactions_of(world).commit(0, stage(world, 0)) is False
    assert world.read() == before


def test_a_batch_from_before_what_is_known_is_refused() -> None:
    world = a_world(SimulatedDisk().process(), ManualClock())
    committing = transactions_of(world)
    for batch in range(30):
        committing.commit(batch, stage(world, batch))
    assert len(world.files.list(f"streams/{STREAM}/transactions/kept/{APP}")) == 16
    with pytest.raises(ConfigError, match="batch 2 of query comes after batch 29"):
        committing.commit(2, stage(world, 2))


def test_small_batches_follow_each_other_in_one_file() -> None:
    world = SimulatedWorld(SimulatedDisk().process(), ManualClock(), small_config(shards=SHARDS, file_bytes=1 << 20))
    committing = transactions_of(world)
    for batch in range(0, 30, 3):
        committing.commit(batch, stage(world, batch))
    for shard in range(SHARDS):
        assert len(world.files.list(f"streams/{STREAM}/{shard:05d}")) <= 2


def test_another_process_that_commits_for_the_same_application_takes_over() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    old, new = a_world(disk.process(), clock, 1), a_world(disk.process(), clock, 2)
    first, second = transactions_of(old), transactions_of(new)
    first.commit(0, stage(old, 0))
    late = stage(old, 1)
    assert second.commit(1, stage(new, 1)) is True
    with pytest.raises(Fenced):
        first.commit(1, late)
    assert seen(new) == of_batch(0) + of_batch(1)


def test_a_producer_that_opens_meanwhile_is_shut_out_and_nothing_is_lost() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    world, other = a_world(disk.process(), clock, 1), a_world(disk.process(), clock, 2)
    committing = transactions_of(world)
    committing.commit(0, stage(world, 0))
    producer = other.producer()
    producer.send(b"other 1", key=b"key 1")
    producer.flush()
    committing.commit(1, stage(world, 1))
    producer.send(b"other 2", key=b"key 1")
    with pytest.raises(Fenced):
        producer.flush()
    assert seen(world) == of_batch(0) + of_batch(1) + Counter([b"other 1"])
    assert_in_order(world)


def test_what_was_staged_and_never_committed_goes_in_the_end() -> None:
    world = a_world(SimulatedDisk().process(), ManualClock())
    staged = f"streams/{STREAM}/transactions/staged"
    lost = TransactionName.for_once(world.clock.time_us(), "abc")
    stage(world, 1, app=lost.app)
    stage(world, 0)
    transactions_of(world).commit(1, stage(world, 1))
    assert world.files.list(staged) == [f"{lost.app}.{1:020d}"], "its own of before are gone"
    world.clock.advance(8 * 86400.0)
    transactions_of(world).commit(2, stage(world, 2))
    assert world.files.list(staged) == []


def test_two_applications_share_the_shards() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    worlds = [a_world(disk.process(), clock, seed) for seed in (1, 2)]
    committing = [transactions_of(world, f"app-{number}") for number, world in enumerate(worlds)]
    for batch in range(3):
        for number in (0, 1):
            assert committing[number].commit(batch, stage(worlds[number], batch, app=f"app-{number}"))
    once = sum((of_batch(batch) for batch in range(3)), Counter[bytes]())
    assert seen(worlds[0]) == once + once


def test_a_record_that_is_damaged_is_named_and_nothing_is_sent_past_it() -> None:
    disk, clock = SimulatedDisk(), ManualClock()
    world = a_world(disk.process(), clock)
    world.files.make_folder(f"streams/{STREAM}/transactions/pending")
    world.files.publish(f"streams/{STREAM}/transactions/pending/x.{7:020d}", b"TRTXN001" + bytes(40))
    with pytest.raises(Corrupt, match="fails its checksum"):
        world.producer()
