"""Flushes that fail or are interrupted, on a real disk: nothing that was flushed is taken back, nothing comes twice,
and the stream goes on."""

import concurrent.futures
import math
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tailrace
from tailrace.errors import FlushFailed
from tailrace.files import posix
from tailrace.files.posix import PosixAppender

ROOM_BYTES = 100_000


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path) as world:
        yield world


def values(world: tailrace.World) -> list[bytes | None]:
    with world.consumer("s", start="earliest", follow=False) as consumer:
        return [message.value for batch in consumer for message in batch]


@contextmanager
def little_room() -> Iterator[None]:
    """No file of this process gets longer than this: to who writes it is as if the disk were full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def data_of(producer: tailrace.Producer) -> PosixAppender:
    segment = producer._logs[0]._open
    assert segment is not None
    assert isinstance(segment._data, PosixAppender)
    return segment._data


@contextmanager
def replaced(appender: PosixAppender, path: str) -> Iterator[None]:
    """Something else lies behind its handle."""
    kept, other = os.dup(appender._handle), os.open(path, os.O_RDWR)
    os.dup2(other, appender._handle)
    try:
        yield
    finally:
        os.dup2(kept, appender._handle)
        os.close(kept)
        os.close(other)


@pytest.mark.parametrize("cached", [True, False])
def test_a_producer_that_is_closed_without_room_for_its_messages_leaves_a_good_stream(
    world: tailrace.World, cached: bool
) -> None:
    """The index had room for its entries, the data had none for the messages."""
    world.create_stream("s", cached=cached)
    producer = world.producer("s", buffer_s=math.inf)
    producer.send(b"first")
    producer.flush()
    producer.send(bytes(2 * ROOM_BYTES))
    with little_room():
        with pytest.raises(FlushFailed, match="could not append"):
            producer.flush()
        with pytest.raises(FlushFailed, match="1 messages that were not flushed are dropped"):
            producer.close()
    assert values(world) == [b"first"]
    with world.producer("s") as again:
        again.send(b"second")
    assert values(world) == [b"first", b"second"]


def test_a_flush_without_room_is_tried_again_when_there_is_some(world: tailrace.World) -> None:
    with world.producer("s", buffer_s=math.inf) as producer:
        producer.send(b"first")
        producer.flush()
        large = os.urandom(2 * ROOM_BYTES)
        producer.send(large)
        with little_room(), pytest.raises(FlushFailed):
            producer.flush()
        assert values(world) == [b"first"]
        producer.flush()
        assert values(world) == [b"first", large]


@pytest.mark.parametrize("behind", [True, False])
def test_an_interrupt_during_a_flush_takes_nothing_back(
    world: tailrace.World, monkeypatch: pytest.MonkeyPatch, behind: bool
) -> None:
    """Right behind the native call, which is where one that came during it is noticed; or before it. Without a cache,
    which would hear of it with the next flush only."""
    world.create_stream("s", cached=False)
    flush_together: Callable[..., None] = posix.flush_together

    def interrupted(*sides: Any) -> None:
        if behind:
            flush_together(*sides)
        raise KeyboardInterrupt

    with world.producer("s", buffer_s=math.inf) as producer:
        producer.send(b"first")
        producer.flush()
        producer.send(b"second")
        monkeypatch.setattr(posix, "flush_together", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        assert values(world) == ([b"first", b"second"] if behind else [b"first"])
        monkeypatch.undo()
        producer.flush()
        assert values(world) == [b"first", b"second"]
        producer.send(b"third")
        producer.flush()
    assert values(world) == [b"first", b"second", b"third"]


def test_after_a_sync_that_failed_messages_go_on_in_another_file(world: tailrace.World) -> None:
    """What the disk has of them is unknown, so the same file is not trusted again."""
    with world.producer("s", buffer_s=math.inf) as producer:
        producer.send(b"first")
        producer.flush()
        producer.send(b"second")
        with replaced(data_of(producer), "/dev/null"):  # it takes bytes, and cannot sync
            broken = data_of(producer).path
            with pytest.raises(FlushFailed, match="could not flush"):
                producer.flush()
        assert values(world) == [b"first"]
        producer.flush()
        assert data_of(producer).path != broken
        assert values(world) == [b"first", b"second"]


def test_senders_are_not_left_waiting_when_a_flush_of_several_shards_is_interrupted(
    world: tailrace.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create_stream("s", shards=2)
    room = {"buffer_bytes": 1 << 20, "pending_bytes_max": 1 << 20}
    with world.producer("s", buffer_s=math.inf, send_deadline_s=0.1, **room) as producer:
        monkeypatch.setattr(producer, "_thread", object())  # so that it is not flushed by the send that fills it
        for shard in (0, 1):
            producer.send(bytes(600_000), shard=shard)
        monkeypatch.undo()
        assert producer._blocked

        def interrupted(future: object, timeout: float | None = None) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(concurrent.futures.Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            producer.flush()
        monkeypatch.undo()
        producer.send(b"more", shard=0)
    assert sorted(map(len, filter(None, values(world)))) == [4, 600_000, 600_000]
