"""Consumers of the producer's host read in place what it has in memory; everything else stays as it is without that."""

import os
import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from glob import glob
from pathlib import Path

import pytest

import tailrace
from conftest import wait_until
from tailrace.config import ConsumerConfig, WorldConfig
from tailrace.errors import Closed, ConfigError, Corrupt
from tailrace.native import Block, Records
from tailrace.node.hosts import world_folder
from tailrace.streams import Batch, Consumer

MIB = 1 << 20


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[tailrace.World]:
    """What another process would have."""
    with tailrace.open(tmp_path) as opened:
        yield opened


def taken(consumer: Consumer, count: int) -> list[bytes]:
    values: list[bytes] = []
    while len(values) < count:
        batch = consumer.poll(30.0)
        assert batch is not None, f"{len(values)} of {count} messages came"
        values += [message.value or b"" for message in batch]
    return values


def in_place_bytes(consumer: Consumer) -> int:
    assert consumer._board is not None
    return consumer._board.bytes_from()["in_place"]


def pins_open() -> int:
    """How many ends of sheets this process has open."""
    count = 0
    for link in glob("/proc/self/fd/*"):
        with suppress(OSError):  # another thread has just closed it
            count += os.readlink(link).endswith(".pins")
    return count


def sheets_of(folder: Path) -> list[str]:
    path = os.path.join(world_folder(str(folder)), "sheets")
    return os.listdir(path) if os.path.exists(path) else []


@pytest.mark.parametrize("file_bytes", [300_000, 256 * MIB])
def test_messages_of_all_sizes_come_in_place_and_across_files(
    world: tailrace.World, beside: tailrace.World, file_bytes: int
) -> None:
    draw = random.Random(1)
    world.create_stream("s", file_bytes=file_bytes)
    sent: list[bytes] = []
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:
        for number in range(300):
            values = [b"%d " % number + draw.randbytes(draw.choice([0, 10, 1000, 40_000])) for _ in range(3)]
            producer.send_many(values)
            producer.flush()
            sent += values
            assert taken(consumer, 3) == values
        assert in_place_bytes(consumer) > 0.9 * sum(map(len, sent))
        assert consumer.position() == producer.positions[0]
    assert [m.value for batch in beside.consumer("s", start="earliest", follow=False) for m in batch] == sent


def test_batches_that_are_kept_stay_as_they_are_while_the_producer_goes_round(
    world: tailrace.World, beside: tailrace.World
) -> None:
    world.create_stream("s", in_place_bytes=48 * MIB)
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:
        kept: list[tuple[int, Batch]] = []
        for number in range(40):
            producer.send_many([b"%08d" % number * 1000] * 500)
            producer.flush()
            got = 0
            while got < 500:
                batch = consumer.poll(30.0)
                assert batch is not None
                kept.append((number, batch))
                got += batch.count
        for number, batch in kept:
            assert bytes(batch.data[:8000]) == b"%08d" % number * 1000
            assert {message.value for message in batch} == {b"%08d" % number * 1000}
            assert batch.to_arrow().column("value").combine_chunks()[0].as_py() == b"%08d" % number * 1000


def test_arrow_columns_lie_in_the_producers_memory_and_keep_it(world: tailrace.World, beside: tailrace.World) -> None:
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:
        producer.send_many([b"%06d" % number * 200 for number in range(1000)])
        producer.flush()
        batch = consumer.poll(30.0)
        assert batch is not None
        assert batch.data.readonly
        table = batch.to_arrow()
        count = batch.count
        del batch
    assert table.column("value").to_pylist() == [b"%06d" % number * 200 for number in range(count)]


def test_who_begins_late_reads_on_in_place(world: tailrace.World, beside: tailrace.World) -> None:
    sent = [b"%06d" % number * 20 for number in range(5000)]
    with world.producer("s") as producer:
        for at in range(0, 5000, 100):
            producer.send_many(sent[at : at + 100])
            producer.flush()
        with beside.consumer("s", start="earliest") as consumer:
            assert taken(consumer, 5000) == sent
            producer.send(b"more")
            producer.flush()
            assert taken(consumer, 1) == [b"more"]
            assert in_place_bytes(consumer) > 0


def test_the_next_producer_is_followed(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s")
    with world.consumer("s", start="earliest") as consumer:
        for turn in range(4):
            with tailrace.open(tmp_path) as producing:
                producer = producing.producer("s")
                for number in range(5):
                    producer.send(b"%d %d" % (turn, number))
                    producer.flush()
                    assert taken(consumer, 1) == [b"%d %d" % (turn, number)]
                if turn % 2:  # else the next one shuts it out
                    producer.close()


def test_where_there_are_no_sheets_everything_comes_all_the_same(world: tailrace.World, beside: tailrace.World) -> None:
    world.create_stream("s", in_place_bytes=0)
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:
        for number in range(20):
            producer.send(b"%d" % number)
            producer.flush()
            assert taken(consumer, 1) == [b"%d" % number]
        assert in_place_bytes(consumer) == 0
    with pytest.raises(ConfigError, match=r"in_place_bytes=-1: use 0"):
        tailrace.StreamConfig(in_place_bytes=-1)


def test_who_does_not_want_to_reads_through_the_cache(world: tailrace.World, tmp_path: Path) -> None:
    config = WorldConfig(consumer=ConsumerConfig(in_place=False))
    with (
        world.producer("s") as producer,
        tailrace.open(tmp_path, config=config) as other,
        other.consumer("s", start="earliest") as consumer,
    ):
        for number in range(20):
            producer.send(b"%d" % number)
            producer.flush()
            assert taken(consumer, 1) == [b"%d" % number]
        assert in_place_bytes(consumer) == 0


def test_nobody_sleeps_over_the_rest_of_a_large_flush(world: tailrace.World, beside: tailrace.World) -> None:
    with (
        world.producer("s") as producer,
        beside.consumer("s", start="earliest", batch_bytes=70_000) as consumer,
    ):
        producer.send(b"first")
        producer.flush()
        assert taken(consumer, 1) == [b"first"]
        assert consumer.poll(1.2) is None  # so that the cache, too, is known to have no more
        watched = 0
        for _ in range(5):
            producer.send_many([b"%06d" % number * 150 for number in range(1500)])
            producer.flush()
            end = 0
            while end < producer.positions[0]:
                batch = consumer.poll(30.0)
                assert batch is not None
                end = batch.end
                if (vigil := consumer._vigil) is not None:
                    watched += 1
                    assert vigil.drained == (end == producer.positions[0])  # else it would wait, with more there
                else:
                    assert not consumer._drained or end == producer.positions[0]
        assert watched > 50


def test_several_shards_in_place(world: tailrace.World, beside: tailrace.World) -> None:
    with world.producer("s", shards=3) as producer, beside.consumer("s", start="earliest") as consumer:
        for number in range(200):
            producer.send(b"%d" % number, key=b"%d" % number)
            producer.flush()
            assert taken(consumer, 1) == [b"%d" % number]
        assert in_place_bytes(consumer) > 0


def test_nothing_is_left_in_memory_and_what_the_killed_left_goes(world: tailrace.World, tmp_path: Path) -> None:
    with world.producer("s", shards=2) as producer:
        producer.send(b"x")
        producer.flush()
        assert len(sheets_of(tmp_path)) == 4
    assert sheets_of(tmp_path) == []
    if (pid := os.fork()) == 0:
        try:
            opened = tailrace.open(tmp_path).producer("killed")
            opened.send(b"x")
            opened.flush()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert len(sheets_of(tmp_path)) == 2
    with world.producer("s"):
        wait_until(lambda: len(sheets_of(tmp_path)) == 4, "the killed one's memory to go")


def test_positions_can_be_sought_and_committed(world: tailrace.World, beside: tailrace.World) -> None:
    with world.producer("s") as producer, beside.consumer("s", start="earliest", checkpoint="c") as consumer:
        producer.send_many([b"%d" % number for number in range(100)])
        producer.flush()
        assert len(taken(consumer, 100)) == 100
        consumer.commit()
        for position in (0, 10, 50):
            consumer.seek(position, shard=0)
            producer.send(b"again")
            producer.flush()
            values = taken(consumer, 100 - (position if position <= 10 else 30))
            assert values[0] == (b"%d" % (position if position <= 10 else 30))
            consumer.seek("latest")
    assert beside.checkpoints("s")["c"] == {0: 190}


def test_whatever_else_is_asked_of_a_consumer_between_two_batches_in_place(
    world: tailrace.World, beside: tailrace.World
) -> None:
    """Whoever waits in the producer's memory knows best where the consumer is; everybody else must hear of it."""
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:

        def send(value: bytes) -> None:
            producer.send(value)
            producer.flush()

        def until_in_place() -> None:
            def waits_there() -> bool:
                send(b"warm")
                assert taken(consumer, 1) == [b"warm"]
                return consumer._vigil is not None

            wait_until(waits_there, "a consumer that waits in the producer's memory")

        until_in_place()
        before = consumer.position()
        send(b"one")
        assert taken(consumer, 1) == [b"one"]
        assert consumer.position() == before + 3
        assert consumer.poll() is None
        assert consumer.position() == before + 3
        until_in_place()
        consumer.seek(before)
        assert taken(consumer, 1)[0] == b"one"
        consumer.seek("latest")
        until_in_place()
        consumer.pause()
        send(b"two")
        assert consumer.poll(0.05) is None
        consumer.resume()
        assert taken(consumer, 1) == [b"two"]
        until_in_place()

        before = consumer.position()
        send(b"three")
        assert taken(consumer, 1) == [b"three"]
        with pytest.raises(ValueError, match="no time zone"):
            consumer.seek(datetime(2026, 1, 1))
        assert consumer.position() == before + 5, "a seek that fails leaves it where it is"
        send(b"four")
        assert taken(consumer, 1) == [b"four"]
        until_in_place()
        assert pins_open() == 2, "the producer's and the consumer's"
        threading.Timer(0.05, consumer.close).start()
        with pytest.raises(Closed):
            while consumer.poll(30.0) is None:
                pass
        wait_until(lambda: pins_open() == 1, "whoever is closed to hold nothing")


def test_a_read_that_nobody_waits_for_and_a_wait_give_each_message_once(
    world: tailrace.World, beside: tailrace.World
) -> None:
    """As when a coroutine is cancelled while a thread reads for it, and the next one to ask does so directly."""
    with world.producer("s") as producer, beside.consumer("s", start="earliest") as consumer:
        for turn in range(50):
            values = [b"%d %d" % (turn, number) for number in range(2)]
            producer.send(b"warm")
            producer.flush()
            assert taken(consumer, 1) == [b"warm"]
            reading = threading.Thread(target=consumer._keep_next)
            reading.start()
            for value in values:
                producer.send(value)
                producer.flush()
            assert taken(consumer, 2) == values
            reading.join()


def test_damaged_memory_makes_no_message() -> None:
    """As if another process had written over it: what is handed out is checked when it is looked at."""
    with pytest.raises(Corrupt, match="in_place=False"):
        Records(
            "s", 0, 0, bytes(16) + bytes(8) + (5).to_bytes(8, "little") + bytes(16), b"12345", shown=True
        ).messages()
    nothing = Records("s", 0, 0, (7).to_bytes(8, "little") + bytes(16), b"12345", shown=True)
    assert (nothing.count, nothing.messages()) == (0, [])
    assert Records("s", 0, 0, Block(0), b"", shown=True).count == 0
