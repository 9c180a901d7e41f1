"""A host without the cache: its ambassador brings streams into its memory, and consumers find them there by themselves.

Two hosts on one machine: they have different names, so they share files and coordination, but no memory and no hints.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from conftest import wait_until
from tailrace.config import DATA_CACHE, LENGTHS_CACHE, WorldConfig
from tailrace.errors import ConfigError, StreamMissing
from tailrace.node.caches import Doors
from tailrace.streams import Source


def on_host(folder: Path, name: str) -> tailrace.World:
    return tailrace.open(folder, config=WorldConfig(host=name))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tailrace.World]:
    """Where the caches are, with doors for others."""
    with on_host(tmp_path, "home") as world:
        for name in (DATA_CACHE, LENGTHS_CACHE):
            world.create_cache(name)
        world.serve_caches(world.caches(), None, Doors(rpc=("127.0.0.1:0",), engine="127.0.0.1:0"))
        yield world


@contextmanager
def ambassador(folder: Path, *streams: str, memory_bytes: int | None = None) -> Iterator[tailrace.World]:
    """One that works in a thread, in a world of its own."""
    stop = threading.Event()
    with on_host(folder, "abroad") as world, world.ambassador(*streams, memory_bytes=memory_bytes) as at_work:
        thread = threading.Thread(target=at_work.run, args=(stop, 0.002), daemon=True)
        thread.start()
        try:
            yield world
        finally:
            stop.set()
            thread.join()


def counted(world: tailrace.World, source: Source) -> int:
    layers = world._find_layers()
    return 0 if layers is None else layers.bytes_from[source]


def take(consumer: tailrace.Consumer, wanted: list[bytes]) -> None:
    values: list[bytes | None] = []
    while len(values) < len(wanted):
        batch = consumer.poll(20.0)
        assert batch is not None, f"{len(values)} of {len(wanted)} came"
        values += [message.value for message in batch]
    assert values == wanted


def send(producer: tailrace.Producer, count: int, size: int = 700) -> list[bytes]:
    send.number = getattr(send, "number", 0)  # type: ignore[attr-defined]
    values = []
    for _ in range(count):
        send.number += 1  # type: ignore[attr-defined]
        values.append(b"%d " % send.number + b"." * size)  # type: ignore[attr-defined]
        producer.send(values[-1])
        producer.flush()
    return values


def until_from(world: tailrace.World, source: Source, producer: tailrace.Producer, consumer: tailrace.Consumer) -> None:
    """Send and take until bytes come from there."""
    before = counted(world, source)

    def came() -> bool:
        take(consumer, send(producer, 1))
        return counted(world, source) > before

    wait_until(came, f"bytes from {source}")


def test_a_consumer_abroad_is_woken_by_the_cache_itself(home: tailrace.World, tmp_path: Path) -> None:
    """It would look by itself only after its patience is over."""
    with (
        home.producer("s", buffer_s=0.0) as producer,
        on_host(tmp_path, "abroad") as abroad,
        abroad.consumer("s", start="earliest", poll_s=1000.0) as consumer,
    ):
        take(consumer, send(producer, 3))
        board = consumer._board
        assert board is not None
        wait_until(lambda: board.wait(0.0) is not None, "the cache to be watched")
        for _ in range(20):
            take(consumer, send(producer, 1))
        ended = threading.Event()

        def wait_for_ever() -> None:
            for _ in consumer:
                pass
            ended.set()

        thread = threading.Thread(target=wait_for_ever)
        thread.start()
        consumer.close()
        thread.join()
        assert ended.is_set()


def test_consumers_abroad_find_the_ambassador_without_being_told(home: tailrace.World, tmp_path: Path) -> None:
    with (
        home.producer("s", buffer_s=0.0) as producer,
        on_host(tmp_path, "abroad") as abroad,
        abroad.consumer("s", start="earliest") as consumer,
    ):
        take(consumer, send(producer, 20))
        assert counted(abroad, "ambassador") == 0
        with ambassador(tmp_path):
            until_from(abroad, "ambassador", producer, consumer)

            def nothing_from_home() -> bool:  # unless the ambassador had no turn for so long that it seems dead
                far = counted(abroad, "relaxed")
                take(consumer, send(producer, 30))
                return counted(abroad, "relaxed") == far

            wait_until(nothing_from_home, "all bytes to come from the ambassador")
            assert consumer._board is not None
            wait_until(lambda: consumer._board.sleep_s_max() > 0, "hints that are raised here")  # type: ignore[union-attr]


def test_without_its_ambassador_a_host_reads_at_home_again(home: tailrace.World, tmp_path: Path) -> None:
    with (
        home.producer("s", buffer_s=0.0) as producer,
        on_host(tmp_path, "abroad") as abroad,
        abroad.consumer("s", start="earliest") as consumer,
    ):
        with ambassador(tmp_path):
            take(consumer, send(producer, 5))
            until_from(abroad, "ambassador", producer, consumer)
        take(consumer, send(producer, 50))
        with ambassador(tmp_path, "s", memory_bytes=32 << 20):  # another one, with other settings
            until_from(abroad, "ambassador", producer, consumer)
            take(consumer, send(producer, 50))


def test_an_ambassador_takes_up_streams_and_files_as_they_come(home: tailrace.World, tmp_path: Path) -> None:
    with ambassador(tmp_path), on_host(tmp_path, "abroad") as abroad:
        home.create_stream("later", file_bytes=20_000)
        with home.producer("later", buffer_s=0.0) as producer, abroad.consumer("later", start="earliest") as consumer:
            until_from(abroad, "ambassador", producer, consumer)
            take(consumer, send(producer, 200))
            assert len(home.stream_status("later")) == 1
            until_from(abroad, "ambassador", producer, consumer)


def test_an_ambassador_that_begins_in_the_middle_brings_the_head_only(home: tailrace.World, tmp_path: Path) -> None:
    with home.producer("s", buffer_s=0.0) as producer:
        values = send(producer, 60, size=200_000)
        with (
            ambassador(tmp_path),
            on_host(tmp_path, "abroad") as abroad,
            abroad.consumer("s") as head,
            abroad.consumer("s", start="earliest") as late,
        ):
            until_from(abroad, "ambassador", producer, head)
            seen = 0
            for batch in late:
                for message in batch:
                    assert message.value is not None
                    assert seen >= len(values) or message.value == values[seen]
                    seen += 1
                if seen > len(values):
                    break


def test_an_ambassador_is_told_what_it_cannot_bring(home: tailrace.World) -> None:
    home.create_stream("plain", cached=False)
    with pytest.raises(ConfigError, match="has no cache"):
        home.ambassador("plain")
    with pytest.raises(StreamMissing):
        home.ambassador("nothing")
