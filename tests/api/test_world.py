"""A world as a user meets it: settings, streams, permissions, and what goes wrong."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from tailrace.errors import (
    Closed,
    ConfigError,
    Corrupt,
    DiskFull,
    FileMissing,
    FileProblem,
    NameRefused,
    StreamExists,
    StreamMissing,
)
from tailrace.files import PosixFiles
from tailrace.testing import Fault, FaultyDisk, SimulatedDisk


def test_settings_come_from_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tailrace.toml").write_text("[streams.prices]\nshards = 3\n[consumer]\npoll_s = 0.5\n")
    with tailrace.open(tmp_path) as world:
        world.producer("prices").close()
        assert world.stream_config("prices").shards == 3
        assert world.config.consumer.poll_s == 0.5


def test_bad_settings_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "tailrace.toml").write_text("[streams.prices]\nshards = 0\n")
    with pytest.raises(ConfigError, match=r"tailrace\.toml: streams\.prices\.shards=0"):
        tailrace.open(tmp_path)
    (tmp_path / "tailrace.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        tailrace.open(tmp_path)
    assert os.listdir(tmp_path) == ["tailrace.toml"]


def test_a_world_cannot_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(FileProblem, match="could not make the folder"):
            tailrace.open(path)


def test_the_life_of_a_stream(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        assert world.streams() == []
        config = world.create_stream("a", shards=2, file_s=10.0)
        assert world.stream_config("a") == config
        with pytest.raises(StreamExists, match="there already"):
            world.create_stream("a")
        world.consumer("a", checkpoint="c").close()
        world.set_retention("a", tailrace.Retention(age_s=5))
        assert world.stream_config("a").retention.age_s == 5
        assert [(s.shard, s.messages, s.newest_us) for s in world.stream_status("a")] == [(0, 0, None), (1, 0, None)]
        world.delete_stream("a")
        assert world.streams() == []
        for attempt in (lambda: world.delete_stream("a"), lambda: world.checkpoints("a")):
            with pytest.raises(StreamMissing, match="none yet"):
                attempt()
        world.create_stream("a", shards=5)
        assert world.stream_config("a").shards == 5
        assert world.checkpoints("a") == {}


def test_a_stream_that_is_made_again_inherits_nothing(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        with world.producer("a") as producer:
            producer.send_many([b"old"] * 5)
        consumer = world.consumer("a", start="earliest", checkpoint="c", follow=False)
        assert sum(len(batch) for batch in consumer) == 5
        world.delete_stream("a")
        with world.producer("a") as producer:
            producer.send_many([b"new"] * 12)
        consumer.commit()  # of the stream that is gone
        again = world.consumer("a", start="earliest", checkpoint="c", follow=False)
        assert [m.value for batch in again for m in batch] == [b"new"] * 12
        assert os.listdir(tmp_path / "streams") == ["a"]


def test_what_lies_beside_the_streams_is_not_taken_for_one(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        world.create_stream("a")
        (tmp_path / "streams" / "lost+found").mkdir()
        (tmp_path / "streams" / "empty").mkdir()
        (tmp_path / "streams" / "notes.txt").write_text("x")
        assert world.streams() == ["a"]
        with pytest.raises(StreamMissing, match="there are: a"):
            world.consumer("b")


def test_looking_at_a_world_writes_nothing(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        world.create_stream("a")
        world.stream_status("a")
        assert world.checkpoints("a") == {}
    assert sorted(os.listdir(tmp_path)) == ["streams"]


@pytest.mark.parametrize(
    "settings", [{"shards": 2.5}, {"shards": "2"}, {"file_s": "1h"}, {"retention": 7}, {"shrads": 2}]
)
def test_settings_from_python_are_checked_like_those_from_a_file(tmp_path: Path, settings: dict[str, object]) -> None:
    with tailrace.open(tmp_path) as world:
        with pytest.raises(ConfigError, match=next(iter(settings))):
            world.create_stream("a", **settings)
        assert world.streams() == []
    with pytest.raises(ConfigError, match="waits_for='billing': use a list"):
        tailrace.Retention(waits_for="billing")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", ".a", "a\0", "a b", "x" * 129, "\N{SNOWMAN}"])
def test_hostile_names(tmp_path: Path, name: str) -> None:
    with tailrace.open(tmp_path / "world") as world:
        for attempt in (
            lambda: world.create_stream(name),
            lambda: world.producer(name),
            lambda: world.consumer(name),
            lambda: world.delete_stream(name),
            lambda: world.stream_config(name),
        ):
            with pytest.raises(NameRefused, match="Nothing was done"):
                attempt()
    assert os.listdir(tmp_path) == ["world"]


def test_settings_of_a_stream_that_were_damaged(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        world.create_stream("a")
        path = tmp_path / "streams" / "a" / "stream.json"
        good = json.loads(path.read_text())
        for bad in (b"", b"{", b"[]", b"7", json.dumps(good | {"shards": 0}).encode(), b'{"shards": 1}'):
            path.write_bytes(bad)
            with pytest.raises(Corrupt, match="messages are not affected"):
                world.consumer("a")


def test_used_after_close(tmp_path: Path) -> None:
    world = tailrace.open(tmp_path)
    world.create_stream("a")
    world.close()
    world.close()
    for attempt in (
        lambda: world.consumer("a"),
        lambda: world.producer("a"),
        lambda: world.forget_checkpoint("a", "c"),
    ):
        with pytest.raises(Closed):
            attempt()


READER = """
import os, sys, tailrace
if os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
world = tailrace.open(sys.argv[1])
print([m.value for b in world.consumer("s", start="earliest", follow=False) for m in b])
try:
    world.producer("s")
except tailrace.TailraceError as problem:
    print(type(problem).__name__, problem.took_effect, problem)
"""


@pytest.fixture
def folder_for_all() -> Iterator[Path]:
    """A folder that other users can reach, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def test_who_may_only_read_can_consume(folder_for_all: Path) -> None:
    """As another user, if we are root; else by taking our own rights away."""
    with tailrace.open(folder_for_all / "world") as world, world.producer("s") as producer:
        producer.send(b"hello")
    paths = [folder_for_all, *folder_for_all.rglob("*"), *folder_for_all.rglob(".*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        done = subprocess.run(
            [sys.executable, "-c", READER, str(folder_for_all / "world")], capture_output=True, text=True, check=False
        )
    finally:
        for path in paths:
            path.chmod(0o755)
    lines = done.stdout.splitlines()
    assert lines[:1] == ["[b'hello']"], done.stderr
    assert lines[1].startswith("FileProblem False could not claim")
    assert "give this user the right to it" in lines[1]


@pytest.mark.parametrize(
    ("code", "kind", "says"),
    [
        (errno.ENOSPC, DiskFull, "Make room"),
        (errno.EDQUOT, DiskFull, "Make room"),
        (errno.EACCES, FileProblem, "right"),
        (errno.EROFS, FileProblem, "read-only"),
        (errno.EMFILE, FileProblem, "ulimit"),
        (errno.EIO, FileProblem, "fault"),
        (errno.ENOENT, FileMissing, "No such file"),
    ],
)
def test_what_the_disk_says_is_explained(code: int, kind: type[FileProblem], says: str) -> None:
    files = PosixFiles("/root", disk=FaultyDisk(SimulatedDisk(), Fault(at=1, errno=code, only=frozenset({"create"}))))
    with pytest.raises(kind, match=says) as refused:
        files.claim("shard")
    assert "could not claim /root/shard" in str(refused.value)
    assert refused.value.took_effect is False
