"""The consumer as a user meets it, on a real disk."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tailrace
from conftest import wait_until
from tailrace.errors import Closed, ConfigError, Corrupt, NameRefused, PositionRetired, StreamMissing
from tailrace.files.lengths import hint_slot
from tailrace.native import Pages
from tailrace.native.hints import Waiter


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as world:
        yield world


def fill(world: tailrace.World, stream: str, *values: bytes, **settings: object) -> None:
    with world.producer(stream, **settings) as producer:  # type: ignore[arg-type]
        producer.send_many(list(values), shard=0)


def values(consumer: tailrace.Consumer) -> list[bytes | None]:
    return [message.value for batch in consumer for message in batch]


def test_earliest_latest_and_positions(world: tailrace.World) -> None:
    fill(world, "s", b"one", b"two", b"three")
    assert values(world.consumer("s", start="earliest", follow=False)) == [b"one", b"two", b"three"]
    assert values(world.consumer("s", follow=False)) == []
    assert values(world.consumer("s", start={0: 3}, follow=False)) == [b"two", b"three"]
    assert values(world.consumer("s", start={0: 4}, follow=False)) == [b"three"], (
        "between messages, the next one is meant"
    )
    assert values(world.consumer("s", start={0: 11}, follow=False)) == []


def test_a_position_ahead_of_what_is_there_waits_for_it(world: tailrace.World) -> None:
    """A cursor that comes from another cluster may be ahead of the local copy."""
    fill(world, "s", b"one")
    consumer = world.consumer("s", start={0: 6}, follow=False)
    assert values(consumer) == []
    assert consumer.position() == 6
    fill(world, "s", b"two", b"three")
    assert values(consumer) == [b"three"]


def test_by_time(world: tailrace.World) -> None:
    fill(world, "s", b"before")
    (message,) = [m for batch in world.consumer("s", start="earliest", follow=False) for m in batch]
    then = datetime.fromtimestamp(message.timestamp_us / 1e6, UTC)
    assert values(world.consumer("s", start=then - timedelta(seconds=1), follow=False)) == [b"before"]
    assert values(world.consumer("s", start=then + timedelta(seconds=1), follow=False)) == []
    with pytest.raises(ValueError, match="no time zone"):
        world.consumer("s", start=datetime(2026, 1, 1))


def test_a_stream_that_is_empty_now_can_be_followed(world: tailrace.World) -> None:
    world.create_stream("s")
    consumer = world.consumer("s", start="earliest")
    assert consumer.poll() is None
    fill(world, "s", b"x")
    batch = consumer.poll(timeout_s=60)
    assert batch is not None
    assert [m.value for m in batch] == [b"x"]


def test_a_batch_in_its_three_shapes(world: tailrace.World) -> None:
    with world.producer("s") as producer:
        producer.send(b"9.99", key=b"sku")
        producer.send(b"", key=b"")
        producer.send(None, key=b"sku")
        producer.send(b"plain")
    (batch,) = world.consumer("s", start="earliest", follow=False)
    assert (batch.stream, batch.shard, batch.start, batch.end, batch.count, len(batch)) == ("s", 0, 0, 16, 4, 4)
    assert bytes(batch.data) == b"sku9.99\0skuplain"
    assert [(m.key, m.value, m.position) for m in batch] == [
        (b"sku", b"9.99", 0),
        (b"", b"", 7),
        (b"sku", None, 8),
        (None, b"plain", 11),
    ]
    table = batch.to_arrow()
    table.validate(full=True)
    assert table.drop_columns(["timestamp"]).to_pydict() == {
        "key": [b"sku", b"", b"sku", None],
        "value": [b"9.99", b"", None, b"plain"],
        "shard": [0] * 4,
        "position": [0, 7, 8, 11],
    }
    assert table.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")
    assert [t.value for t in table["timestamp"]] == [m.timestamp_us for m in batch]


def test_arrow_outlives_the_batch_and_the_consumer(world: tailrace.World) -> None:
    for in_place in (False, True):
        fill(world, "s", *[b"%06d" % i for i in range(100_000)])
        with world.consumer("s", start="earliest", follow=False, batch_bytes=100_000, in_place=in_place) as consumer:
            tables = [batch.to_arrow() for batch in consumer]
        world.delete_stream("s")
        assert pa.concat_tables(tables)["value"].to_pylist() == [b"%06d" % i for i in range(100_000)]


def test_large_batches_of_files_lie_where_the_kernel_has_them_and_small_ones_do_not(world: tailrace.World) -> None:
    world.create_stream("s", cached=False)
    fill(world, "s", *[b"%06d" % i for i in range(100_000)])

    def read(**settings: Any) -> list[memoryview]:
        with world.consumer("s", start="earliest", follow=False, **settings) as consumer:
            return [batch.data for batch in consumer]

    in_place, copied, small = read(), read(in_place=False), read(batch_bytes=60_000)
    assert b"".join(in_place) == b"".join(copied) == b"".join(small)
    assert [isinstance(data.obj, Pages) for data in in_place] == [len(data) >= 65_536 for data in in_place]
    assert len(in_place[0]) >= 65_536
    assert not any(isinstance(data.obj, Pages) for data in [*copied, *small])


def test_many_streams_and_shards_take_turns(world: tailrace.World) -> None:
    fill(world, "a", *[b"a%d" % i for i in range(10)])
    with world.producer("b", shards=2) as producer:
        for i in range(10):
            producer.send(b"b%d" % i)
    consumer = world.consumer("a", "b", start="earliest", follow=False, batch_bytes=4)
    places = [(batch.stream, batch.shard) for batch in consumer]
    assert places[:6] == [("a", 0), ("b", 0), ("b", 1)] * 2
    assert consumer.positions == {("a", 0): 20, ("b", 0): 10, ("b", 1): 10}
    with pytest.raises(ValueError, match="of which stream"):
        consumer.position(0)
    assert consumer.position(1, stream="b") == 10


def test_seek_and_pause(world: tailrace.World) -> None:
    with world.producer("s", shards=2) as producer:
        for i in range(4):
            producer.send(b"%d" % i)
    consumer = world.consumer("s", start="earliest", follow=False)
    consumer.pause(0)
    assert values(consumer) == [b"1", b"3"]
    consumer.resume(0)
    assert values(consumer) == [b"0", b"2"]
    consumer.seek("earliest")
    consumer.seek(1, shard=1)
    assert sorted(values(consumer)) == [b"0", b"2", b"3"]  # type: ignore[type-var]
    consumer.seek("earliest", shard=0)
    consumer.seek("latest", shard=0)
    assert values(consumer) == []
    with pytest.raises(ValueError, match="of which shard"):
        consumer.seek(1)
    with pytest.raises(ValueError, match="does not follow"):
        consumer.seek(1, shard=7)


def test_a_checkpoint_is_taken_up_again(world: tailrace.World, tmp_path: Path) -> None:
    fill(world, "s", b"one", b"two")
    first = world.consumer("s", start="earliest", checkpoint="billing", follow=False)
    assert values(first) == [b"one", b"two"]
    first.commit()
    fill(world, "s", b"three")
    with tailrace.open(tmp_path) as other:
        assert values(other.consumer("s", start="earliest", checkpoint="billing", follow=False)) == [b"three"]
        assert values(other.consumer("s", start="earliest", checkpoint="audit", follow=False))[0] == b"one"
    assert world.checkpoints("s") == {"billing": {0: 6}, "audit": {0: 0}}
    world.forget_checkpoint("s", "billing")
    assert world.checkpoints("s") == {"audit": {0: 0}}


def test_commit_needs_a_name(world: tailrace.World) -> None:
    world.create_stream("s")
    with pytest.raises(ConfigError, match="checkpoint='NAME'"):
        world.consumer("s").commit()
    with pytest.raises(NameRefused):
        world.consumer("s", checkpoint="../x")


@pytest.mark.parametrize("has_read", [True, False], ids=["in the middle of a file", "before there was one"])
def test_a_stream_that_was_made_anew_is_not_taken_for_the_one_before(world: tailrace.World, has_read: bool) -> None:
    """A position in the old one means nothing in the new one, wherever a consumer stood."""
    world.create_stream("s")
    if has_read:
        fill(world, "s", b"old", b"older")
    with world.consumer("s", start={0: 3}) as consumer:
        batches = iter(consumer)
        if has_read:
            assert [message.value for message in next(batches)] == [b"older"]
        world.delete_stream("s")
        fill(world, "s", b"new", b"newer", b"newest")
        with pytest.raises(StreamMissing, match="made anew"):
            next(batches)


def test_the_rate_limit_is_passive(world: tailrace.World) -> None:
    from tailrace.config import ConsumerConfig
    from tailrace.streams import Consumer, ShardTail
    from tailrace.testing import ManualClock

    fill(world, "s", *[b"x" * 100] * 100)
    clock = ManualClock()
    tail = ShardTail(world.files, clock, "s", 0, "earliest")
    consumer = Consumer([tail], ConsumerConfig(batch_bytes=500, bytes_per_s=1000.0), clock, follow=False)
    begin_s = clock.monotonic_s()
    assert len(values(consumer)) == 100
    assert 8.0 <= clock.monotonic_s() - begin_s <= 12.0, "10,000 bytes at 1,000 a second"


def test_async_iteration(world: tailrace.World) -> None:
    fill(world, "s", b"one", b"two")

    async def story() -> list[bytes | None]:
        consumer = world.consumer("s", start="earliest")
        seen: list[bytes | None] = []
        async for batch in consumer:
            seen += [m.value for m in batch]
            if len(seen) == 2:
                fill(world, "s", b"three")
            if len(seen) == 3:
                break
        return seen

    assert asyncio.run(story()) == [b"one", b"two", b"three"]


def test_a_coroutine_that_waits_is_woken_and_does_not_poll(world: tailrace.World) -> None:
    fill(world, "s", b"one")

    async def story() -> list[bytes | None]:
        seen: list[bytes | None] = []
        with world.consumer("s", start="earliest", poll_s=3600.0) as consumer:
            async for batch in consumer:
                seen += [m.value for m in batch]
                if len(seen) == 2:
                    return seen
                await asyncio.to_thread(fill, world, "s", b"two")
        return seen

    assert asyncio.run(asyncio.wait_for(story(), 60.0)) == [b"one", b"two"]


def test_a_coroutine_that_was_cancelled_while_it_slept_gets_what_comes_then(world: tailrace.World) -> None:
    fill(world, "s", b"one")

    async def story() -> list[bytes | None]:
        with world.consumer("s", start="latest", poll_s=3600.0) as consumer:
            asked = asyncio.ensure_future(anext(aiter(consumer)))
            while consumer._sleeper is None:  # it has not come so far as to sleep
                await asyncio.sleep(0)
            asked.cancel()
            with suppress(asyncio.CancelledError):
                await asked
            await asyncio.to_thread(fill, world, "s", b"two")
            return [m.value for m in await asyncio.wait_for(anext(aiter(consumer)), 60.0)]

    assert asyncio.run(story()) == [b"two"]


def test_who_begins_to_produce_wakes_those_who_wait_for_what_another_had_flushed(world: tailrace.World) -> None:
    fill(world, "s", b"one")
    hints = world._hints()
    assert hints is not None
    waiter = Waiter(hints, [hint_slot(world._catalog.incarnation("s"))])
    with world.producer("s"):
        assert waiter.wait_for(60.0)


def test_closing_ends_an_iteration_that_waits_in_another_thread(world: tailrace.World) -> None:
    fill(world, "s", b"one")
    consumer = world.consumer("s", start="earliest")
    seen: list[bytes | None] = []

    def work() -> None:
        for batch in consumer:
            seen.extend(m.value for m in batch)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: seen, "the first message")
    consumer.close()
    thread.join(60)
    assert not thread.is_alive()
    with pytest.raises(Closed):
        consumer.poll()


def test_a_consumer_follows_through_new_files_and_new_producers(world: tailrace.World) -> None:
    world.create_stream("s", file_bytes=50)
    consumer = world.consumer("s", start="earliest")
    expected: list[bytes | None] = []
    for round_ in range(5):
        with world.producer("s") as producer:
            for i in range(5):
                value = b"%d-%d" % (round_, i) * 5
                producer.send(value)
                producer.flush()
                expected.append(value)
    seen: list[bytes | None] = []
    while len(seen) < len(expected) and (batch := consumer.poll(timeout_s=60)):
        seen += [m.value for m in batch]
    assert seen == expected
    assert world.stream_status("s")[0].files > 5


def test_reading_before_the_retained_start_names_both_positions(world: tailrace.World) -> None:
    world.create_stream("s", file_bytes=50, retention=tailrace.Retention(size_bytes=100))
    slow = world.consumer("s", start="earliest")
    for i in range(20):
        fill(world, "s", b"%020d" % i)
    start = world.stream_status("s")[0].start
    assert start > 0
    with pytest.raises(PositionRetired, match=f"position 0 is before {start}") as retired:
        slow.poll()
    assert (retired.value.position, retired.value.retained_start) == (0, start)
    slow.seek(retired.value.retained_start)
    assert slow.poll() is not None


def test_retention_waits_for_a_declared_checkpoint(world: tailrace.World) -> None:
    retention = tailrace.Retention(size_bytes=1, waits_for=("billing",))
    world.create_stream("s", file_bytes=50, retention=retention)
    consumer = world.consumer("s", start="earliest", checkpoint="billing", follow=False)
    for i in range(10):
        fill(world, "s", b"%020d" % i)
    assert world.stream_status("s")[0].messages == 10
    assert len(values(consumer)) == 10
    consumer.commit()
    (collected,) = world.trim("s")
    assert collected.segments == 9
    assert world.stream_status("s")[0].messages == 1


def test_damage_is_reported_with_its_place_and_can_be_stepped_over(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", cached=False)  # what the cache has is not damaged
    fill(world, "s", b"one", b"two", b"three")
    (path,) = (tmp_path / "streams" / "s" / "00000").glob("*.data")
    raw = bytearray(path.read_bytes())
    raw[4] ^= 1
    path.write_bytes(raw)
    consumer = world.consumer("s", start="earliest", follow=False)
    seen = []
    with pytest.raises(Corrupt, match="byte 3,") as corrupt:
        seen += values(consumer)
    assert corrupt.value.position == 3
    consumer.seek(corrupt.value.resume_position or 0)
    assert values(consumer) == [b"three"]


def test_streams_that_are_not_there(world: tailrace.World) -> None:
    fill(world, "prices", b"x")
    with pytest.raises(StreamMissing, match="there are: prices"):
        world.consumer("prizes")
    with pytest.raises(NameRefused):
        world.consumer("../prices")
    with pytest.raises(ConfigError, match="shards 0 to 0"):
        world.consumer("prices", shards=[1])


def test_retention_that_overtakes_a_consumer_in_the_middle_of_a_file_is_named(world: tailrace.World) -> None:
    world.create_stream("s", file_bytes=100)
    fill(world, "s", *[b"%020d" % i for i in range(5)])
    consumer = world.consumer("s", start="earliest", batch_bytes=20)
    assert consumer.poll() is not None
    for i in range(5):
        fill(world, "s", b"%020d" % i)
    world.set_retention("s", tailrace.Retention(size_bytes=100))
    world.trim("s")
    start = world.stream_status("s")[0].start
    with pytest.raises(PositionRetired, match="retention overtook") as retired:
        while consumer.poll():
            pass
    assert retired.value.retained_start == start
    consumer.seek(start)
    assert consumer.poll() is not None


def test_retention_that_takes_the_next_file_before_it_has_begun_is_named(world: tailrace.World, tmp_path: Path) -> None:
    """Seen by a consumer of a copy: the next file was made, but nothing had come; then the source's retention took it,
    and the copy went on further behind. What lies between is gone, and that must be said."""
    world.create_stream("prices", file_bytes=1000, cached=False)
    with world.producer("prices", buffer_s=float("inf")) as producer:
        for number in range(3):
            producer.send(bytes([number]) * 1000)
            producer.flush()
    folder = next(tmp_path.rglob("streams/prices/00000"))
    first, second, third = sorted(folder.glob("*.data"))
    second_index, third_index = sorted(folder.glob("*.index"))[1:]
    base = int(third.name.split("-")[1].split(".")[0])
    later = {path: path.read_bytes() for path in (third, third_index)}
    for path in later:
        path.unlink()
    for path in (second, second_index):
        path.write_bytes(b"")
    with world.consumer("prices", start="earliest") as consumer:
        batch = consumer.poll()
        assert batch is not None
        assert batch.data == b"\0" * 1000
        assert consumer.poll() is None
        for path in (first, *sorted(folder.glob("*.index"))):
            path.unlink()
        second.unlink()
        for path, content in later.items():
            path.write_bytes(content)
        with pytest.raises(PositionRetired, match="retention overtook") as retired:
            consumer.poll()
        assert retired.value.retained_start == base
        consumer.seek(base)
        batch = consumer.poll()
        assert batch is not None
        assert batch.data == b"\2" * 1000


def test_a_cancelled_coroutine_loses_no_batch(world: tailrace.World) -> None:
    fill(world, "s", *[b"%d" % i for i in range(300)])

    async def story() -> list[bytes | None]:
        seen: list[bytes | None] = []
        consumer = world.consumer("s", start="earliest", checkpoint="c", batch_bytes=20, follow=False)
        for _ in range(40):  # each asks for a batch and is cancelled before it comes
            asked = asyncio.ensure_future(anext(aiter(consumer)))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            asked.cancel()
            try:
                seen += [m.value for m in await asked]
            except asyncio.CancelledError:
                consumer.commit()
        consumer.commit()
        consumer.close()
        again = world.consumer("s", start="earliest", checkpoint="c", follow=False)
        return seen + [m.value for batch in again for m in batch]

    assert asyncio.run(story()) == [b"%d" % i for i in range(300)]


def test_close_in_a_signal_handler_does_not_wait_for_the_read_it_interrupts(world: tailrace.World) -> None:
    fill(world, "s", b"x")
    consumer = world.consumer("s", start="earliest")
    tail = consumer._tails["s", 0]
    poll = tail.poll

    def interrupted(bytes_max: int) -> tailrace.Batch | None:
        consumer.close()  # as a handler would, in the thread that reads
        return poll(bytes_max)

    tail.poll = interrupted  # type: ignore[method-assign]
    assert len(list(consumer)) == 1
    with pytest.raises(Closed):
        consumer.poll()


def test_damage_at_the_very_end_is_met_after_all_that_is_good(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", cached=False)
    fill(world, "s", b"one", b"two", b"three")
    (path,) = (tmp_path / "streams" / "s" / "00000").glob("*.index")
    good = path.read_bytes()
    for bit in range(0, 24 * 8, 5):  # bits all over the last entry
        raw = bytearray(good)
        raw[-24 + bit // 8] ^= 1 << bit % 8
        path.write_bytes(raw)
        seen = []
        with pytest.raises(Corrupt):
            for batch in world.consumer("s", start="earliest", follow=False):
                seen += [m.value for m in batch]
        assert seen == [b"one", b"two"]
        with pytest.raises(Corrupt, match="last message is damaged"):
            world.producer("s")
    path.write_bytes(good)
    assert len(values(world.consumer("s", start="earliest", follow=False))) == 3


def test_a_poll_in_vain_takes_as_long_as_it_is_told(world: tailrace.World) -> None:
    """Also right after a batch that was all there is: what it slept then is part of the time."""
    with world.producer("s") as producer, world.consumer("s", start="earliest") as consumer:
        for _ in range(3):
            producer.send(b"a message")
            producer.flush()
            assert consumer.poll(30.0) is not None
        slept = []
        sleep = consumer._sleep

        def noting(timeout_s: float) -> bool | None:
            slept.append(timeout_s)
            return sleep(timeout_s)

        consumer._sleep = noting  # type: ignore[method-assign]
        assert consumer.poll(0.4) is None
        assert sum(slept) < 0.5
