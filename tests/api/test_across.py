"""`verify --across`: copies are compared with their source by hashes; the first byte that differs is found."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tailrace
from conftest import wait_until
from tailrace.copytree import Comparison, FilesCheck
from tailrace.copytree.comparison import BLOCK_BYTES
from tailrace.errors import ConfigError, Unreachable
from tailrace.files import PosixFiles
from tailrace.model import MessageFile
from tailrace.node.across import verify_across
from tailrace.node.cli import app
from tailrace.node.deployed import Deployed, open_store, publish
from tailrace.node.world_file import read_world_file
from tailrace.wire import Blocks, Holding

STREAM = "prices"
WORLD = """
[tariffs.world]
price_per_gb = 0.01
[clusters.east]
[clusters.west]
[streams.prices]
source = "east"
[streams.prices.settings]
shards = 2
file_bytes = 100000
cached = false
"""


def fill(folder: Path, messages: int, size: int = 1000) -> None:
    with tailrace.open(folder) as world, world.producer(STREAM, buffer_s=10.0) as producer:
        for _ in range(5):  # a file each
            for shard in range(2):
                producer.send_many([os.urandom(size) for _ in range(messages)], shard=shard)
            producer.flush()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """East produces, west has all of it."""
    folder = tmp_path_factory.mktemp("across")
    path = folder / "world.toml"
    path.write_text(WORLD)
    with ExitStack() as stack:
        file = read_world_file(path)
        with open_store(str(path), file) as store:
            publish(str(path), file, store)
        for cluster in ("east", "west"):
            opened = stack.enter_context(tailrace.open(folder / cluster))
            stack.enter_context(Deployed(str(path), cluster).node(opened, ["reader", "writer", "scheduler"]))
        fill(folder / "east", 110)
        yield path


@pytest.fixture
def world(running: Path) -> Path:
    wait_until(lambda: settled(running), "the copy to be complete")
    return running


def settled(path: Path) -> bool:
    found = verify_across(str(path)).together
    return not found.differences and not found.behind_bytes.get("west")


def data_files(cluster: Path) -> list[Path]:
    return sorted((cluster / "streams" / STREAM / "00001").glob("*.data"))


@contextmanager
def flipped(file: Path, offset: int) -> Iterator[None]:
    """One bit of it, for a while."""
    for _ in range(2):
        with file.open("r+b") as opened:
            opened.seek(offset)
            (byte,) = opened.read(1)
            opened.seek(offset)
            opened.write(bytes([byte ^ 1]))
        if not _:
            yield


def test_copies_are_equal_by_folders_and_by_calls(world: Path) -> None:
    whole = sum(path.stat().st_size for path in (world.parent / "east" / "streams").rglob("*.[di]*") if path.stem)
    for way in ("folders", "calls"):
        verdict = verify_across(str(world), way=way)  # type: ignore[arg-type]
        found = verdict.together
        assert (found.differences, found.problems, found.behind_bytes) == ([], {}, {"west": 0})
        assert 0.9 * whole < found.compared_bytes["west"] <= whole
        assert verdict.ways == dict.fromkeys(("east", "west"), way.removesuffix("s") if way == "folders" else way)


@pytest.mark.parametrize("way", ["folders", "calls"])
def test_the_first_byte_that_differs_is_found(world: Path, way: str) -> None:
    bad = data_files(world.parent / "west")[1]
    file = MessageFile.parse(bad.name)
    assert file is not None
    for offset in (0, 4095, 77_777):
        with flipped(bad, offset), flipped(bad, offset + 10):
            (one,) = verify_across(str(world), way=way).together.differences  # type: ignore[arg-type]
        assert (one.cluster, one.stream, one.shard, one.file, one.offset) == ("west", STREAM, 1, bad.name, offset)
        assert (one.position, one.what) == (file.base + offset, "the bytes differ")


def test_a_file_that_is_short_or_missing_is_told(world: Path) -> None:
    files = data_files(world.parent / "west")
    content = files[1].read_bytes()
    os.truncate(files[1], 5000)
    (one,) = verify_across(str(world)).together.differences
    assert (one.shard, one.file, one.offset, one.what) == (1, files[1].name, 5000, "the copy ends before its length")
    files[1].unlink()
    (one,) = verify_across(str(world)).together.differences
    assert one.what == "a file is missing between others"
    assert one.file == files[1].name
    files[1].write_bytes(content)
    assert not verify_across(str(world)).together.differences


def test_while_the_stream_grows_being_behind_is_no_difference(world: Path) -> None:
    with tailrace.open(world.parent / "east") as east, east.producer(STREAM, buffer_s=0.001) as producer:
        for number in range(20):
            producer.send_many([os.urandom(3000)] * 20, shard=number % 2)
            found = verify_across(str(world)).together
            assert not found.differences, found.differences


def test_the_command_tells_a_program_and_a_person(world: Path) -> None:
    told = CliRunner().invoke(app, ["verify", "--across", str(world), "--json"])
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["equal"]
    bad = data_files(world.parent / "west")[0]
    with flipped(bad, 123):
        told = CliRunner().invoke(app, ["verify", "--across", str(world), STREAM, "--through", "calls"])
    assert told.exit_code == 1
    assert f"west: prices/1, byte 123 of {bad.name} (position 123): the bytes differ" in told.stdout
    for wrong in (["--through", "magic"], ["nowhere"], ["--key", "only.pem"]):
        assert CliRunner().invoke(app, ["verify", "--across", str(world), *wrong]).exit_code == 2


def test_what_retention_took_from_either_side_is_not_compared(world: Path) -> None:
    for cluster, count in (("west", 1), ("east", 3)):
        for old in data_files(world.parent / cluster)[:count]:
            other = [path for path in old.parent.glob("*.index") if path.name.split("-")[0] == old.name.split("-")[0]]
            for path in (old, *other):
                path.unlink()
        found = verify_across(str(world)).together
        assert not found.differences, found.differences


def test_a_cluster_that_cannot_be_asked_is_named(tmp_path: Path) -> None:
    path = tmp_path / "world.toml"
    path.write_text(WORLD)
    with tailrace.open(tmp_path / "east") as east:
        east.create_stream(STREAM, shards=2)
    fill(tmp_path / "east", 3)
    found = verify_across(str(path)).together
    assert found.problems.keys() == {"west"}
    assert isinstance(found.problems["west"], Unreachable)
    with pytest.raises(ConfigError):
        verify_across(str(path), ["no-such-stream"])


class Counted(FilesCheck):
    """What crosses the wire."""

    def __init__(self, files: PosixFiles) -> None:
        super().__init__(files)
        self.sent_bytes = 0

    def hashes(self, blocks: Blocks) -> bytes:
        found = super().hashes(blocks)
        self.sent_bytes += len(found)
        return found

    def holding(self, stream: str, shard: int) -> Holding | None:
        return super().holding(stream, shard)


def test_hashes_travel_not_bytes(tmp_path: Path) -> None:
    import shutil

    fill_size = 3 * BLOCK_BYTES
    with tailrace.open(tmp_path / "a") as a:
        a.create_stream(STREAM, shards=2, cached=False)
    fill(tmp_path / "a", 1, fill_size // 5 + 1)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    sides = [Counted(PosixFiles(str(tmp_path / name))) for name in "ab"]
    found = Comparison(STREAM, sides[0], {"b": sides[1]}).run()
    assert found.compared_bytes["b"] > 2 * fill_size
    assert sides[1].sent_bytes < 1000
    victim = data_files(tmp_path / "b")[0]
    with flipped(victim, fill_size - 5):
        found = Comparison(STREAM, sides[0], {"b": sides[1]}).run()
    assert [one.offset for one in found.differences] == [fill_size - 5]
    assert sides[1].sent_bytes < 10_000
