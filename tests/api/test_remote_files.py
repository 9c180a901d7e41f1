"""A stream read from afar: the same messages as at home, in few calls, whether one lags behind or waits."""

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

import tailrace
from tailrace.config import Retention
from tailrace.errors import FileMissing, FileProblem, PositionRetired, StreamMissing, Unreachable
from tailrace.files import FileLength, PosixFiles
from tailrace.files.remote import RemoteFiles
from tailrace.files.served import ServedFiles
from tailrace.streams import ShardTail
from tailrace.streams.shard_files import flushed_index
from tailrace.testing import ManualClock
from tailrace.wire import READ_BYTES_MAX, ByteRange, FileBytes, FilesService, Listing, Reach, Sight

STREAM = "s"


class Counted:
    """What crosses the wire."""

    def __init__(self, service: FilesService) -> None:
        self._service = service
        self.calls: list[str] = []
        self.read_bytes = 0
        self.problem: Exception | None = None

    def sight(self, stream: str, seen: int) -> Sight | None:
        self._count("sight")
        return self._service.sight(stream, seen)

    def list(self, folder: str) -> Listing:
        self._count("list")
        return self._service.list(folder)

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        self._count("read")
        parts = self._service.read(ranges)
        self.read_bytes += sum(len(memoryview(part.content)) for part in parts if part is not None)
        return parts

    def _count(self, call: str) -> None:
        self.calls.append(call)
        if self.problem is not None:
            raise self.problem


class Scene:
    def __init__(self, folder: Path, shards: int = 1, **settings: object) -> None:
        self.world = tailrace.open(folder)
        self.world.create_stream(STREAM, shards=shards, cached=False, **settings)
        self.clock, self.near = ManualClock(), PosixFiles(str(folder))
        self.service = Counted(ServedFiles(self.near, self.clock))
        self.far = RemoteFiles(self.service, self.clock, "far")
        self.shards = shards

    def tail(self, shard: int = 0, start: int = 0, incarnation: str | None = None) -> ShardTail:
        return ShardTail(self.far, self.clock, STREAM, shard, start, incarnation=incarnation)

    def send(self, *values: bytes, shard: int = 0) -> None:
        with self.world.producer(STREAM, only=[shard]) as producer:
            producer.send_many(list(values), shard=shard)

    def pass_time(self) -> None:
        self.clock.advance(2.0)  # more than anything is kept for


def drain(tail: ShardTail) -> list[bytes | None]:
    found: list[bytes | None] = []
    while (batch := tail.poll(1 << 20)) is not None:
        found += [message.value for message in batch]
    return found


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    made: list[Scene] = []

    def make(**settings: object) -> Scene:
        made.append(Scene(tmp_path, **settings))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.world.close()


@pytest.mark.parametrize("seed", range(5))
def test_every_message_comes_once_and_in_order_while_files_come_and_go(scene: Callable[..., Scene], seed: int) -> None:
    dice = random.Random(seed)
    here = scene(file_bytes=4096)
    sent: list[bytes] = []
    found: list[bytes | None] = []
    here.send(b"first")
    sent.append(b"first")
    tail = here.tail()
    with here.world.producer(STREAM, buffer_s=60.0) as producer:
        for number in range(60):
            values = [f"{number}-{each}".encode() * dice.randrange(1, 400) for each in range(dice.randrange(4))]
            producer.send_many(values)
            if dice.random() < 0.7:
                producer.flush()
            sent += values
            if dice.random() < 0.5:
                here.clock.advance(dice.choice([0.005, 0.05, 2.0]))
            if dice.random() < 0.7:
                found += drain(tail)
            if dice.random() < 0.1:  # another one goes on where this one was
                tail.close()
                tail = here.tail(start=tail.position)
    here.pass_time()
    found += drain(tail)
    assert found == sent
    assert len(here.near.list(f"streams/{STREAM}/00000")) > 10  # over many files


def test_who_lags_behind_reads_a_megabyte_and_more_in_a_call(scene: Callable[..., Scene]) -> None:
    here = scene()
    values = [os.urandom(10_000) for _ in range(3000)]
    here.send(*values)
    tail = here.tail()
    here.service.calls.clear()
    assert drain(tail) == values
    reads = here.service.calls.count("read")
    assert here.service.read_bytes / reads > 1 << 20, reads
    assert here.service.read_bytes < 1.05 * 30_000_000  # and nothing twice


def test_who_waits_asks_once_for_all_shards_and_seldom(scene: Callable[..., Scene]) -> None:
    here = scene(shards=8)
    for shard in range(8):
        here.send(b"x", shard=shard)
    tails = [here.tail(shard) for shard in range(8)]
    assert [drain(tail) for tail in tails] == [[b"x"]] * 8
    here.pass_time()
    assert not any(drain(tail) for tail in tails)
    here.service.calls.clear()
    for _ in range(2000):  # ten seconds, as a consumer looks
        here.clock.advance(0.005)
        assert not any(drain(tail) for tail in tails)
    assert set(here.service.calls) == {"sight"}
    assert len(here.service.calls) <= 10 / 0.25 + 5


def test_what_came_for_all_shards_comes_in_one_call(scene: Callable[..., Scene]) -> None:
    here = scene(shards=8)
    with here.world.producer(STREAM, buffer_s=60.0) as producer:
        for shard in range(8):
            producer.send(b"first", shard=shard)
        producer.flush()
        tails = [here.tail(shard) for shard in range(8)]
        assert [drain(tail) for tail in tails] == [[b"first"]] * 8
        for number in range(5):
            for shard in range(8):
                producer.send(b"%d" % number, shard=shard)
            producer.flush()
            here.pass_time()
            here.service.calls.clear()
            assert [drain(tail) for tail in tails] == [[b"%d" % number]] * 8
            assert here.service.calls == ["sight", "read"]


def test_how_far_a_shard_goes_is_told_without_reading_it(scene: Callable[..., Scene]) -> None:
    here = scene(shards=2, file_bytes=4096)
    assert flushed_index(here.far, STREAM, 0) == 0
    for number in range(5):
        here.send(b"x" * 3000, shard=number % 2)
        here.pass_time()
        here.service.calls.clear()
        for shard in range(2):
            assert flushed_index(here.far, STREAM, shard) == flushed_index(here.near, STREAM, shard)
        assert "read" not in here.service.calls
    assert flushed_index(here.near, STREAM, 0) > flushed_index(here.near, STREAM, 1) > 0


def test_retention_that_overtakes_is_told_as_at_home(scene: Callable[..., Scene]) -> None:
    here = scene(file_bytes=4096)
    for _ in range(10):
        here.send(os.urandom(4000), os.urandom(4000))
    tail = here.tail()
    assert tail.poll(1) is not None
    here.world.set_retention(STREAM, Retention(size_bytes=8000))
    assert here.world.trim(STREAM)
    with pytest.raises(PositionRetired, match="retention overtook"):
        drain(tail)


def test_a_stream_that_was_made_anew_is_another_one(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.send(b"old")
    tail = here.tail(incarnation=here.world._incarnation(STREAM)[1])
    assert drain(tail) == [b"old"]
    here.world.delete_stream(STREAM)
    here.pass_time()
    with pytest.raises(FileMissing):  # there may be other clusters that have it
        drain(tail)
    here.world.create_stream(STREAM, shards=1, cached=False)
    here.send(b"new")
    here.pass_time()
    with pytest.raises(StreamMissing, match="made anew"):
        drain(tail)


class Torn:
    """A file of which only the first bytes are flushed; the others change with every look."""

    def __init__(self) -> None:
        self.look = 0

    def sight(self, stream: str, seen: int) -> Sight | None:
        return None

    def list(self, folder: str) -> Listing:
        return Listing(1, ())

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        self.look += 1
        content = b"good" + bytes([self.look]) * 4
        reach = Reach(4, 8, appending=False)
        return [FileBytes(reach, content[one.offset : one.offset + one.size]) for one in ranges]


def test_what_is_not_flushed_is_not_kept() -> None:
    with RemoteFiles(Torn(), ManualClock(), "far").view("streams/s/x") as view:
        assert view.length() == FileLength(4, 8, appending=False)
        seen = []
        for _ in range(3):
            buffer = bytearray(8)
            assert view.read_into(0, memoryview(buffer)) == 8
            assert buffer[:4] == b"good"
            seen.append(bytes(buffer[4:]))
        assert len(set(seen)) == 3


class Endless:
    """A file of any length, over a way that takes its time for each byte."""

    def __init__(self, clock: ManualClock, bytes_per_s: float) -> None:
        self._clock, self._bytes_per_s, self.sizes = clock, bytes_per_s, list[int]()

    def sight(self, stream: str, seen: int) -> Sight | None:
        return None

    def list(self, folder: str) -> Listing:
        return Listing(1, ())

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        self.sizes += [one.size for one in ranges if one.size]
        self._clock.advance(sum(one.size for one in ranges) / self._bytes_per_s)
        return [FileBytes(Reach(1 << 40, 1 << 40, appending=False), bytes(one.size)) for one in ranges]


@pytest.mark.parametrize(("bytes_per_s", "largest"), [(1e9, READ_BYTES_MAX), (1e6, 512 << 10), (1e3, 64 << 10)])
def test_how_far_is_read_ahead_goes_by_what_the_way_carries(bytes_per_s: float, largest: int) -> None:
    clock = ManualClock()
    service = Endless(clock, bytes_per_s)
    with RemoteFiles(service, clock, "far").view("streams/s/x") as view:
        for offset in range(0, 32 << 20, 16 << 10):
            assert view.read_into(offset, memoryview(bytearray(16 << 10))) == 16 << 10
    assert service.sizes[0] == 64 << 10
    assert max(service.sizes) == largest
    assert sum(service.sizes) < (32 << 20) + READ_BYTES_MAX


def test_what_is_read_ahead_has_a_limit_over_all_files(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.far._views = 1
    assert here.far._ahead_max() == READ_BYTES_MAX
    here.far._views = 1000
    assert here.far._ahead_max() * 1000 <= 64 << 20


def test_nothing_is_changed_from_afar(scene: Callable[..., Scene]) -> None:
    files = scene().far
    attempts: list[Callable[[], object]] = [
        lambda: files.claim("streams/s/00000"),
        lambda: files.append("streams/s/x"),
        lambda: files.settle("streams/s/x"),
        lambda: files.publish("streams/s/x", b""),
        lambda: files.move("streams/s/x", "streams/s/y"),
        lambda: files.forget_drafts("streams/s", lambda name: True),
        lambda: files.delete("streams/s/x"),
        lambda: files.make_folder("streams/t"),
        lambda: files.delete_folder("streams/s"),
    ]
    for attempt in attempts:
        with pytest.raises(FileProblem, match=r"only read from here\. Nothing was done; write in far"):
            attempt()


def test_a_cluster_that_does_not_answer_is_a_problem_of_its_files(scene: Callable[..., Scene]) -> None:
    here = scene()
    here.send(b"x")
    tail = here.tail()
    here.service.problem = Unreachable("nobody answers there")
    here.pass_time()
    with pytest.raises(FileProblem, match="in far: nobody answers there"):
        tail.poll(1 << 20)
    here.service.calls.clear()
    with pytest.raises(FileProblem, match="nobody answers there"):
        here.far.list("streams/s/00000")
    assert not here.service.calls  # who asks at the same time hears the same, and does not wait for it
    here.service.problem = None
    here.pass_time()
    assert drain(tail) == [b"x"]
    with pytest.raises(FileMissing):
        here.far.read("streams/s/nothing")
