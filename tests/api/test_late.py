"""Far behind, and on another host than the cache: what lies in files of this machine is read there, and the head where
it is told of. Two hosts on one machine: they have different names, so they share files, but no memory and no hints."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import tailrace
from conftest import wait_until
from tailrace.cache import Cache
from tailrace.config import DATA_CACHE, LENGTHS_CACHE, ConsumerConfig, WorldConfig
from tailrace.env import SystemDisk
from tailrace.files.lengths import ShardLengths, lengths_key
from tailrace.native import Pages
from tailrace.node.caches import Doors
from tailrace.streams import Layers

MESSAGES, STEP = 24_000, 1_000


def message(number: int) -> bytes:
    return b"%010d" % number * 100


def layers_of(world: tailrace.World) -> Layers:
    found = world._find_layers()
    assert found is not None
    return found


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[tailrace.Producer]:
    """Where the caches are, which have all that it has sent."""
    with tailrace.open(tmp_path, config=WorldConfig(host="home")) as world:
        for name in (DATA_CACHE, LENGTHS_CACHE):
            world.create_cache(name)
        world.serve_caches(world.caches(), None, Doors(rpc=("127.0.0.1:0",), engine="127.0.0.1:0"))
        with world.producer("s") as producer:
            for begin in range(0, MESSAGES, STEP):
                producer.send_many([message(number) for number in range(begin, begin + STEP)])
                producer.flush()
            end = producer.positions[0]
            key = lengths_key(world._incarnation("s")[1], 0)

            def is_told() -> bool:
                (raw,) = layers_of(world).lengths.get_many([key])
                told = None if raw is None else ShardLengths.decode(raw)
                return told is not None and told.newest.segment.data_base + told.newest.data_cached == end

            wait_until(is_told, "the cache to have everything")
            yield producer


def abroad(folder: Path, *, in_place: bool) -> tailrace.World:
    return tailrace.open(folder, config=WorldConfig(host="abroad", consumer=ConsumerConfig(in_place=in_place)))


def read_all(consumer: tailrace.Consumer) -> int:
    """How many bytes lay where the kernel has them."""
    in_place, number = 0, 0
    while number < MESSAGES:
        batch = consumer.poll(20.0)
        assert batch is not None, f"{number} of {MESSAGES} came"
        for found in batch:
            assert found.value == message(number)
            number += 1
        in_place += len(batch.data) if isinstance(batch.data.obj, Pages) else 0
    return in_place


def is_mappable(folder: Path) -> bool:
    handle = os.open(folder / "probe", os.O_CREAT | os.O_RDONLY)
    try:
        return SystemDisk().is_mappable(handle)
    finally:
        os.close(handle)


def test_who_is_far_behind_reads_files_of_this_machine_and_the_head_in_the_cache(
    producer: tailrace.Producer, tmp_path: Path
) -> None:
    if not is_mappable(tmp_path):
        pytest.skip("the folder for temporary files is on no file system of this machine's own")
    with abroad(tmp_path, in_place=True) as world, world.consumer("s", start="earliest") as consumer:
        wait_until(lambda: layers_of(world).far, "a connection to the cache")
        in_place = read_all(consumer)
        came_from = layers_of(world).bytes_from
        assert in_place >= 1 << 16
        assert came_from["durable"] >= in_place
        assert came_from["relaxed"] > 1 << 20  # it has tried both, and the last megabytes are near the head
        before = came_from["durable"]
        producer.send(b"new")
        producer.flush()
        batch = consumer.poll(20.0)
        assert batch is not None
        assert [found.value for found in batch] == [b"new"]
        assert came_from["durable"] == before


def test_who_wants_copies_reads_the_cache(producer: tailrace.Producer, tmp_path: Path) -> None:
    with abroad(tmp_path, in_place=False) as world, world.consumer("s", start="earliest") as consumer:
        wait_until(lambda: layers_of(world).far, "a connection to the cache")
        assert read_all(consumer) == 0
        came_from = layers_of(world).bytes_from
        assert came_from["durable"] < 1 << 16 < came_from["relaxed"]


def test_whoever_is_woken_asks_once_and_not_how_much_there_is(producer: tailrace.Producer, tmp_path: Path) -> None:
    def hits(cache: object) -> int:
        assert isinstance(cache, Cache)
        return cache.stats()["hits"]

    with abroad(tmp_path, in_place=True) as world, world.consumer("s", start="latest") as consumer:
        wait_until(lambda: layers_of(world).far, "a connection to the cache")
        layers = layers_of(world)
        quick = 0
        for number in range(50):
            before = hits(layers.lengths), hits(layers.data)
            producer.send(b"%d" % number)
            producer.flush()
            batch = consumer.poll(20.0)
            assert batch is not None
            assert [found.value for found in batch] == [b"%d" % number]
            asked = hits(layers.lengths) - before[0], hits(layers.data) - before[1]
            quick += asked == (0, 2)  # nothing but entries and messages; a look that comes too early asks for more
        assert quick > 0, "it went the long way every time"


def test_who_is_paused_while_it_waits_gets_nothing_until_it_is_resumed(
    producer: tailrace.Producer, tmp_path: Path
) -> None:
    with abroad(tmp_path, in_place=True) as world, world.consumer("s", start="latest") as consumer:
        wait_until(lambda: layers_of(world).far, "a connection to the cache")

        def waits_by_the_shortest_way() -> bool:
            producer.send(b"one more")
            producer.flush()
            assert consumer.poll(20.0) is not None
            return consumer._vigil is not None

        wait_until(waits_by_the_shortest_way, "a vigil")
        position = consumer.position()
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(consumer.poll, 1.0)
            consumer.pause()
            producer.send(b"while it was paused")
            producer.flush()
            assert waiting.result() is None
        assert consumer.position() == position
        consumer.resume()
        batch = consumer.poll(20.0)
        assert batch is not None
        assert [found.value for found in batch] == [b"while it was paused"]
