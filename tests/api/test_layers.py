"""A stream in two layers, as a program sees it: the same messages wherever their bytes come from."""

import os
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tailrace
from conftest import wait_until
from tailrace.cache import Cache
from tailrace.config import DATA_CACHE, LENGTHS_CACHE, ConsumerConfig, WorldConfig
from tailrace.errors import CacheUnavailable, ConfigError
from tailrace.node.hosts import cell_folder, world_folder
from tailrace.node.membership import write_membership
from tailrace.streams import Layers

THROUGH_THE_CACHE = WorldConfig(consumer=ConsumerConfig(in_place=False))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as opened:
        yield opened


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[tailrace.World]:
    """What another process would have: it shares nothing with the producer's world but the folder and the host, and not
    even the memory that its producer packs messages in. That would be read first, and this is about what comes then."""
    with tailrace.open(tmp_path, config=THROUGH_THE_CACHE) as opened:
        yield opened


def layers_of(world: tailrace.World) -> Layers:
    found = world._find_layers()
    assert found is not None
    return found


def taken(consumer: tailrace.Consumer, count: int) -> list[bytes]:
    """The next messages, so many of them."""
    values: list[bytes] = []
    while len(values) < count:
        batch = consumer.poll(10.0)
        assert batch is not None, f"{len(values)} of {count} came"
        values += [message.value for message in batch if message.value is not None]
    return values


def wait_for_cache(world: tailrace.World, stream: str, shard: int = 0) -> None:
    """Until the cache has all that is on disk."""
    status = world.stream_status(stream)[shard]

    def is_there() -> bool:
        layers = world._find_layers()
        if layers is None:
            return False
        from tailrace.files.lengths import ShardLengths, lengths_key

        (raw,) = layers.lengths.get_many([lengths_key(world._incarnation(stream)[1], shard)])
        told = ShardLengths.decode(raw) if raw else None
        return told is not None and told.newest.segment.data_base + told.newest.data_cached == status.end

    wait_until(is_there, "the cache to have everything")
    wait_until(lambda: not layers_of(world).far, "the cache's memory to be mapped")


def sized(draw: random.Random, number: int) -> bytes:
    return b"%d " % number + draw.randbytes(draw.choice([0, 10, 1000, 5000, 40_000]))


@pytest.mark.parametrize("chunk_bytes", [None, 1024, 65_472])
def test_messages_of_all_sizes_come_through_the_cache(
    world: tailrace.World, beside: tailrace.World, chunk_bytes: int | None
) -> None:
    draw = random.Random(1)
    world.create_stream("s", chunk_bytes=chunk_bytes, file_bytes=300_000)
    with world.producer("s") as producer:
        sent = [sized(draw, number) for number in range(30)]
        producer.send_many(sent)
        producer.flush()
        wait_for_cache(beside, "s")
        with beside.consumer("s", start="earliest") as consumer:
            assert taken(consumer, 30) == sent
            for number in range(30, 200):
                sent.append(sized(draw, number))
                producer.send(sent[-1])
                if draw.random() < 0.3:
                    producer.flush()
            producer.flush()
            assert taken(consumer, 170) == sent[30:]
        bytes_from = layers_of(beside).bytes_from
        assert bytes_from["relaxed"] > 0.5 * sum(map(len, sent)), bytes_from


def test_a_waiting_consumer_is_woken_and_does_not_poll(world: tailrace.World, beside: tailrace.World) -> None:
    """Nobody would wait for ten minutes for a poll."""
    with world.producer("s", buffer_s=600.0) as producer, beside.consumer("s", poll_s=600.0) as consumer:
        producer.send(b"first")
        producer.flush()
        wait_until(lambda: consumer.poll(0.0) is not None, "the first message, and with it the hints")
        for number in range(20):
            producer.send(b"%d" % number)
            producer.flush()
            assert taken(consumer, 1) == [b"%d" % number]


def test_a_stream_that_raises_no_hints_is_not_slept_through(world: tailrace.World, beside: tailrace.World) -> None:
    """Who follows a cached stream and one that is not looks now and then: hints would tell of the first alone."""
    world.create_stream("plain", cached=False)
    world.create_stream("hot")
    with (
        world.producer("hot") as hot,
        world.producer("plain") as plain,
        beside.consumer("hot", "plain") as both,
        beside.consumer("hot") as one,
    ):
        assert one._waiter is not None
        assert both._waiter is None
        for producer, value in ((hot, b"1"), (plain, b"2"), (hot, b"3"), (plain, b"4")):
            producer.send(value)
            producer.flush()
            assert taken(both, 1) == [value]


def test_a_waiting_consumer_can_be_closed_by_another_thread(world: tailrace.World, beside: tailrace.World) -> None:
    with world.producer("s") as producer:
        producer.send(b"first")
        producer.flush()
        wait_for_cache(beside, "s")
        consumer = beside.consumer("s", start="earliest", poll_s=600.0)
        seen: list[bytes] = []
        waiting = threading.Thread(
            target=lambda: seen.extend(message.value or b"" for batch in consumer for message in batch)
        )
        waiting.start()
        wait_until(lambda: seen == [b"first"], "the message")
        consumer.close()
        waiting.join(5.0)
        assert not waiting.is_alive()


class Faulty:
    """The data cache, of which chunks go missing or come back shorter than they are."""

    def __init__(self, cache: Any, fault: str, draw: random.Random) -> None:
        self._cache, self._fault, self._draw = cache, fault, draw

    def set_many(self, items: Any) -> object:
        if self._fault == "write fails" and self._draw.random() < 0.5:
            raise CacheUnavailable("made to fail")
        return self._cache.set_many(items)

    def get_parts(self, prefix: bytes, first: int, count: int, buffer: Any, stride: int, **how: Any) -> list[int]:
        sizes: list[int] = self._cache.get_parts(prefix, first, count, buffer, stride, **how)
        for number, size in enumerate(sizes):
            if size < 0 or self._draw.random() < 0.5:
                continue
            if self._fault == "missing":
                memoryview(buffer).cast("B")[number * stride : number * stride + size] = bytes(size)
                sizes[number] = -1
            elif self._fault == "behind" and how.get("relaxed"):
                memoryview(buffer).cast("B")[number * stride + size // 2 : number * stride + size] = bytes(
                    size - size // 2
                )
                sizes[number] = size // 2
        return sizes


@pytest.mark.parametrize("fault", ["missing", "behind", "write fails"])
def test_what_the_cache_does_not_have_is_read_from_the_files(
    world: tailrace.World, beside: tailrace.World, fault: str
) -> None:
    draw = random.Random(2)
    world.create_stream("s", chunk_bytes=1024)
    with world.producer("s") as producer:
        producer.send(b"first")
        producer.flush()
        wait_for_cache(beside, "s")
        for opened in (world, beside):
            wait_until(lambda opened=opened: not layers_of(opened).far, "the cache's memory to be mapped")  # type: ignore[misc]
            layers = layers_of(opened)
            layers.data = Faulty(layers.data, fault, draw)
        with beside.consumer("s", start="earliest", batch_bytes=20_000) as consumer:
            assert taken(consumer, 1) == [b"first"]
            for number in range(40):
                sent = [sized(draw, number), b"x"]
                producer.send_many(sent)
                producer.flush()
                assert taken(consumer, 2) == sent
        bytes_from = layers_of(beside).bytes_from
        assert bytes_from["relaxed"] > 0
        assert bytes_from["consistent" if fault == "behind" else "durable"] > 0, bytes_from


def test_a_producer_that_is_gone_leaves_the_files(world: tailrace.World, tmp_path: Path) -> None:
    """With the producer's world its memory goes. Its consumers read on, and find the next producer's."""
    world.create_stream("s")
    with world.consumer("s") as consumer:
        for turn in range(3):
            with tailrace.open(tmp_path) as producing, producing.producer("s") as producer:
                sent = [b"%d %d" % (turn, number) for number in range(20)]
                for value in sent:
                    producer.send(value)
                    producer.flush()
                assert taken(consumer, 20) == sent
    for name in (DATA_CACHE, LENGTHS_CACHE):
        assert not os.path.exists(cell_folder(str(tmp_path), name, 0))


def test_who_lags_reads_files_and_comes_back_to_the_cache(tmp_path: Path) -> None:
    """A cache of one megabyte cannot hold what is asked for first; at the head it has everything again."""
    small = WorldConfig(caches={DATA_CACHE: tailrace.CacheConfig(memory_bytes=1 << 20, ttl_s=60.0)})
    with (
        tailrace.open(tmp_path, config=small) as world,
        tailrace.open(tmp_path, config=THROUGH_THE_CACHE) as beside,
        world.producer("s") as producer,
    ):
        sent = [b"%06d" % number + bytes(10_000) for number in range(1500)]
        for at in range(0, 1500, 50):
            producer.send_many(sent[at : at + 50])
            producer.flush()
        wait_for_cache(beside, "s")
        with beside.consumer("s", start="earliest") as consumer:
            assert taken(consumer, 1500) == sent
            bytes_from = layers_of(beside).bytes_from
            assert bytes_from["durable"] > 12_000_000, bytes_from

            def nothing_from_files() -> (
                bool
            ):  # unless this machine stands still for so long that the producer seems dead
                before = bytes_from["durable"]
                for number in range(20):
                    producer.send(b"%d" % number)
                    producer.flush()
                    assert taken(consumer, 1) == [b"%d" % number]
                return bytes_from["durable"] == before

            wait_until(nothing_from_files, "the head, where nothing comes from the files")


def test_a_stream_without_a_cache_makes_none(world: tailrace.World, tmp_path: Path) -> None:
    world.create_stream("s", cached=False)
    with world.producer("s") as producer, world.consumer("s", start="earliest") as consumer:
        producer.send(b"x")
        producer.flush()
        assert taken(consumer, 1) == [b"x"]
    assert not (tmp_path / "coordination.db").exists()


def test_what_a_deleted_world_left_in_shared_memory_goes_with_the_next_one(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with tailrace.open(gone) as world, world.producer("s") as producer:
        producer.send(b"x")
        producer.flush()
        wait_for_cache(world, "s")
    left = world_folder(str(gone))
    assert os.path.exists(left)
    shutil.rmtree(gone)
    with tailrace.open(tmp_path / "next") as world, world.producer("s") as producer:
        producer.send(b"x")
        producer.flush()
        wait_for_cache(world, "s")
        assert not os.path.exists(left)
        assert os.path.exists(world_folder(str(tmp_path / "next")))


def test_a_stream_with_a_cache_of_its_own_is_not_pushed_out_by_others(tmp_path: Path) -> None:
    tiny = tailrace.CacheConfig(memory_bytes=1 << 20, ttl_s=60.0)
    with (
        tailrace.open(tmp_path, config=WorldConfig(caches={DATA_CACHE: tiny, "ticks-data": tiny})) as world,
        tailrace.open(tmp_path, config=THROUGH_THE_CACHE) as beside,
    ):
        world.create_stream("ticks", cache="ticks-data")
        with world.producer("ticks") as ticks, world.producer("loud") as loud:
            ticks.send(b"tick" * 1000)
            ticks.flush()
            wait_for_cache(beside, "ticks")
            for _ in range(40):
                loud.send_many([bytes(1000)] * 100)
                loud.flush()
            wait_for_cache(beside, "loud")
            for stream, hot in (("ticks", True), ("loud", False)):
                layers_of(beside).bytes_from.clear()
                values = [m.value for b in beside.consumer(stream, start="earliest", follow=False) for m in b]
                assert values == ([b"tick" * 1000] if hot else [bytes(1000)] * 4000)
                assert (layers_of(beside).bytes_from["durable"] == 0) is hot
        assert set(beside.caches()) == {DATA_CACHE, LENGTHS_CACHE, "ticks-data"}
    with pytest.raises(ConfigError, match=r"cache: '\.\./x' is not a cache name"):
        tailrace.StreamConfig(cache="../x")


def lent(world: tailrace.World) -> int:
    """Clients of the data cache that somebody holds at this moment."""
    data = layers_of(world).data
    assert isinstance(data, Cache)
    return len(data._ways._all) - len(data._ways._idle)


@pytest.mark.parametrize("shards", [1, 3])
def test_who_follows_holds_clients_between_batches_only_if_it_follows_one_shard(
    world: tailrace.World, beside: tailrace.World, shards: int
) -> None:
    with world.producer("s", shards=shards) as producer:
        producer.send(b"first", shard=0)
        producer.flush()
        wait_for_cache(beside, "s")
        with beside.consumer("s", start="latest") as consumer:
            for number in range(5):
                producer.send(b"%d" % number, shard=0)
                producer.flush()
                assert taken(consumer, 1) == [b"%d" % number]
                assert lent(beside) <= (shards == 1)
            assert consumer.poll() is None
            assert lent(beside) == 0  # and who waits holds none
            producer.send(b"last", shard=0)
            producer.flush()
            assert taken(consumer, 1) == [b"last"]
        assert lent(beside) == 0  # nor who is closed


def test_small_flushes_gather_only_where_nobody_can_be_elsewhere(tmp_path: Path) -> None:
    def gather(config: WorldConfig | None = None) -> bool:
        with tailrace.open(tmp_path, config=config) as world:
            if "s" not in world.streams():
                world.create_stream("s")
            shadow = world.shadow("s")
            assert shadow is not None
            shadow.close()
            return shadow._alone

    assert gather()
    assert not gather(WorldConfig(host="one-of-several"))
    with tailrace.open(tmp_path) as world:  # which becomes a cluster of a world while it is open
        write_membership(str(tmp_path), "here", str(tmp_path / "world.toml"))
        shadow = world.shadow("s")
        assert shadow is not None
        shadow.close()
        assert not shadow._alone
