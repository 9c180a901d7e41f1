"""Two clusters on one machine: what is produced in one arrives in the other, byte by byte, at the same positions."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tailrace
from conftest import wait_until
from tailrace.copytree import Reader, Writer
from tailrace.env import SystemClock
from tailrace.errors import StreamExists
from tailrace.node.cluster_place import ClusterPlace
from tailrace.wire import Operation, Order, serve_copies

STREAM = "prices"


def order(address: str, *more: str, shard: int = 0, epoch: int = 0, compression: str = "") -> Order:
    operation = Operation(STREAM, shard, "durable", "west")
    return Order(operation=operation, writers=(address, *more), origin="east", epoch=epoch, compression=compression)


@contextmanager
def writing(folder: Path, socket: Path, cluster: str = "west") -> Iterator[tuple[str, Writer]]:
    with tailrace.open(folder) as world:
        writer = Writer(cluster, ClusterPlace(world))
        with serve_copies([f"unix:{socket}"], writer=writer) as server:
            yield server.addresses[0], writer
            writer.close()


@contextmanager
def reading(folder: Path, name: str = "reader-0") -> Iterator[Reader]:
    with tailrace.open(folder) as world:
        reader = Reader(name, "east", ClusterPlace(world), SystemClock())
        try:
            yield reader
        finally:
            reader.close()


def message_files(folder: Path) -> dict[str, bytes]:
    """Names and bytes, of each file as far as the next one's base says."""
    from tailrace.model.segment import segments_of

    found = {}
    for shard in sorted((folder / "streams" / STREAM).glob("[0-9]*")):
        segments = segments_of(path.name for path in shard.iterdir())
        for segment, later in zip(segments, [*segments[1:], None], strict=False):
            for track in ("data", "index"):
                content = (shard / segment.name(track)).read_bytes()  # type: ignore[arg-type]
                end = None if later is None else later.base(track) - segment.base(track)  # type: ignore[arg-type]
                found[f"{shard.name}/{segment.name(track)}"] = content[:end]  # type: ignore[arg-type]
    return found


def is_copied(source: Path, target: Path) -> bool:
    try:
        return bool(message_files(source)) and message_files(source) == message_files(target)
    except FileNotFoundError:  # a copy that is made anew goes away for a moment
        return False


@pytest.fixture
def sockets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("s")
    folder.chmod(0o700)
    return folder


@pytest.mark.parametrize("compression", ["", "zstd"])
def test_a_stream_arrives_with_its_names_bytes_and_positions(tmp_path: Path, sockets: Path, compression: str) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        with world.producer(STREAM, shards=2) as producer:
            for number in range(500):
                producer.send(b"%d" % number * 40, key=b"%d" % number)
            producer.flush()
            reader.order([order(address, shard=shard, compression=compression) for shard in range(2)])
            wait_until(lambda: is_copied(east, west), "the first messages to be copied")
            for number in range(500):
                producer.send(b"%d" % number * 40, key=b"%d" % number)
                if number % 100 == 0:
                    producer.flush()
        wait_until(lambda: is_copied(east, west), "the rest to be copied")
        with tailrace.open(west) as copy:
            wait_until(lambda: copy.stream_status(STREAM) == world.stream_status(STREAM), "the last flush")
            with copy.consumer(STREAM, start="earliest", follow=False) as consumer:
                assert sum(batch.count for batch in consumer) == 1000


def test_files_follow_each_other_and_a_new_producer_begins_a_new_one(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        world.create_stream(STREAM, file_bytes=2000)
        reader.order([order(address)])
        for _ in range(3):
            with world.producer(STREAM) as producer:
                for number in range(60):
                    producer.send(b"%d" % number * 50)
                    producer.flush()
        wait_until(lambda: is_copied(east, west), "all files to be copied")
        assert len(message_files(west)) > 6
        assert not list((west / "streams" / STREAM / "00000").glob(".0*.fence"))[4:]  # all but the newest are sealed


def test_a_file_that_was_torn_while_it_was_made_is_not_missed_in_the_copy(tmp_path: Path, sockets: Path) -> None:
    """A producer that is killed in that moment leaves one without a message; its successor begins at the same place."""
    from tailrace.model.message_file import TRACKS
    from tailrace.model.segment import Segment, segments_of

    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        with world.producer(STREAM) as producer:
            producer.send(b"before")
        folder = east / "streams" / STREAM / "00000"
        (first,) = segments_of(path.name for path in folder.iterdir())
        torn = Segment(first.created_us + 1, first.data_base + len(b"before"), first.index_base_after(1))
        for track in TRACKS:
            (folder / torn.name(track)).touch()
        assert world.stream_status(STREAM)[0].files == 1
        with world.producer(STREAM) as producer:
            producer.send(b"after")
        reader.order([order(address)])
        with tailrace.open(west) as copy:
            wait_until(lambda: (west / "streams" / STREAM / "stream.json").exists(), "the copy")
            wait_until(lambda: copy.stream_status(STREAM) == world.stream_status(STREAM), "the copy to be alike")
        assert world.stream_status(STREAM)[0].files == 2


def test_consumers_of_the_copy_are_woken(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        reader.order([order(address)])
        with world.producer(STREAM, buffer_s=0.001) as producer:
            producer.send(b"first")
            producer.flush()
            wait_until(lambda: is_copied(east, west), "the first message to be copied")
            with tailrace.open(west) as copy, copy.consumer(STREAM, start="earliest") as consumer:
                batches = iter(consumer)
                assert [message.value for message in next(batches)] == [b"first"]
                producer.send(b"second")
                assert [message.value for message in next(batches)] == [b"second"]


def test_nobody_produces_into_a_copy(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        with world.producer(STREAM) as producer:
            producer.send(b"here")
        reader.order([order(address)])
        wait_until(lambda: is_copied(east, west), "the message to be copied")
        with tailrace.open(west) as copy, pytest.raises(StreamExists, match="copy of the one in east"):
            copy.producer(STREAM)


def test_a_stream_of_its_own_is_not_overwritten(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(west) as other, other.producer(STREAM) as producer:
        producer.send(b"mine")
    before = message_files(west)
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        with world.producer(STREAM) as producer:
            producer.send(b"theirs")
        reader.order([order(address)])
        wait_until(lambda: "produced in this cluster" in reader.running[0].problem, "the refusal")
        assert message_files(west) == before


def test_a_stream_that_was_made_anew_replaces_its_copy(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, writing(west, sockets / "w") as (address, _), reading(east) as reader:
        with world.producer(STREAM) as producer:
            producer.send(b"old")
        reader.order([order(address)])
        wait_until(lambda: is_copied(east, west), "the old stream to be copied")
        world.delete_stream(STREAM)
        with world.producer(STREAM) as producer:
            producer.send(b"new")
        wait_until(lambda: is_copied(east, west), "the new stream to be copied")


def test_another_writer_goes_on_when_one_is_gone(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world, reading(east) as reader, writing(west, sockets / "b") as (second, _):
        with world.producer(STREAM) as producer:
            with writing(west, sockets / "a") as (first, _):
                reader.order([order(first, second)])
                producer.send(b"by the first")
                producer.flush()
                wait_until(lambda: is_copied(east, west), "the first writer to have copied")
                assert reader.running[0].writer == first
            producer.send(b"by the second")
        wait_until(lambda: is_copied(east, west), "the second writer to have copied")
        assert reader.running[0].writer == second


@pytest.mark.parametrize("same_writer", [True, False], ids=["one writer", "two writers"])
def test_of_two_operations_the_newer_wins_and_the_older_stops(tmp_path: Path, sockets: Path, same_writer: bool) -> None:
    """In one writer, or in two: what is copied is right, and the older one stops without a byte being sent. It hears
    why: a call that breaks is begun again at once, and the two would displace each other for ever."""
    east, west = tmp_path / "east", tmp_path / "west"
    with (
        tailrace.open(east) as world,
        world.producer(STREAM) as producer,
        writing(west, sockets / "a") as (first, _),
        writing(west, sockets / "b") as (second, _),
        reading(east, "older") as older,
        reading(east, "newer") as newer,
    ):
        producer.send(b"one")
        producer.flush()
        older.order([order(first)])
        wait_until(lambda: is_copied(east, west), "the older to have copied")
        newer.order([order(first if same_writer else second)])
        wait_until(lambda: older.running[0].state == "superseded", "the older one to stop")
        producer.send(b"two")
        producer.flush()
        wait_until(lambda: is_copied(east, west), "the newer one to copy")
        assert newer.running[0].state == "running"


def test_an_operation_stays_where_it_is_while_the_writer_it_prefers_is_away(
    tmp_path: Path, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is known for as long as its lease, and tried now and then; when it is back, the operation moves to it."""
    from tailrace.copytree import reader as module
    from tailrace.wire import CopyPeer

    monkeypatch.setattr(module, "SHED_S", 0.0)
    tried: list[str] = []

    def connect(address: str) -> CopyPeer:
        tried.append(address)
        return CopyPeer(address)

    east, west = tmp_path / "east", tmp_path / "west"
    preferred = f"unix:{sockets / 'a'}"
    with (
        tailrace.open(east) as world,
        world.producer(STREAM) as producer,
        writing(west, sockets / "b") as (second, writer),
    ):
        producer.send(b"one")
        producer.flush()
        reader = Reader("reader-0", "east", ClusterPlace(world), SystemClock(), connect=connect)
        monkeypatch.setattr(reader, "_connect", connect)
        try:
            reader.order([order(preferred, second)])
            wait_until(lambda: is_copied(east, west), "it to be copied")
            (opening,) = writer.running
            before = len(tried)
            wait_until(lambda: tried[before:].count(preferred) >= 3, "the other to be tried")
            assert writer.running[0] is opening
            assert tried[before:].count(second) == 0
            with writing(west, sockets / "a"):
                wait_until(lambda: reader.running[0].writer == preferred, "it to move")
                producer.send(b"two")
                producer.flush()
                wait_until(lambda: is_copied(east, west), "the rest to be copied")
        finally:
            reader.close()


def test_an_operation_of_an_older_tree_does_not_displace(tmp_path: Path, sockets: Path) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    with (
        tailrace.open(east) as world,
        world.producer(STREAM) as producer,
        writing(west, sockets / "w") as (address, _),
        reading(east, "first") as first,
        reading(east, "late") as late,
    ):
        producer.send(b"one")
        producer.flush()
        first.order([order(address, epoch=7)])
        wait_until(lambda: is_copied(east, west), "it to be copied")
        late.order([order(address, epoch=6)])
        wait_until(lambda: late.running[0].state == "superseded", "the late one to be refused")
        assert first.running[0].state == "running"


def test_what_the_source_has_retired_is_retired_in_the_copy(tmp_path: Path, sockets: Path) -> None:
    """A copy that was cut off for too long goes on where the source begins now, without a hole."""
    from tailrace.config import Retention

    east, west = tmp_path / "east", tmp_path / "west"
    with tailrace.open(east) as world:
        world.create_stream(STREAM, file_bytes=100)
        with world.producer(STREAM) as producer:
            producer.send(b"first" * 10)
            producer.flush()
            with writing(west, sockets / "w") as (address, _), reading(east) as reader:
                reader.order([order(address)])
                wait_until(lambda: is_copied(east, west), "it to be copied")
            for number in range(20):
                producer.send(b"%d" % number * 100)
                producer.flush()
            world.set_retention(STREAM, Retention(size_bytes=300))
            world.trim(STREAM)
        with writing(west, sockets / "w") as (address, _), reading(east) as reader:
            reader.order([order(address)])
            wait_until(lambda: is_copied(east, west), "it to catch up")
            with tailrace.open(west) as copy:
                ends = [one.stream_status(STREAM)[0] for one in (copy, world)]
                wait_until(lambda: copy.stream_status(STREAM) == world.stream_status(STREAM), f"equal ends: {ends}")
