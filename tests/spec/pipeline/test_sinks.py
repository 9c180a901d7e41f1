"""Every sink makes a unit's output visible whole and once, however often and by whom it is told to; and tells of what
input it was made."""

import itertools
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import tailrace
from conftest import wait_until
from tailrace.coordination import SqliteCoordination
from tailrace.errors import ConfigError, Corrupt
from tailrace.pipeline import Pipeline, Sink, into_stream, parquet, postgres_table, sqlite_table, stream
from tailrace.pipeline.ranges import ByteRange
from tailrace.pipeline.sinks.parquet import ParquetFolder
from tailrace.pipeline.sinks.streams import _Desk
from tailrace.pipeline.staging import Footer, StagedMissing, Staging, runner_of, staged_name

FILE = "00000000000000000001-00000000000000000000.data"
ROWS = pa.table({"key": ["a", "b"], "value": ["x", "y"], "n": [1, 2]})


def footer(begin: int) -> Footer:
    return Footer("p", f"clicks-00000-{begin:020d}-ab", (ByteRange("clicks", 0, FILE, begin, begin + 10),))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A PostgreSQL server of our own, reached through a socket."""
    pytest.importorskip("psycopg2")
    places = os.pathsep.join([os.environ["PATH"], *sorted(glob("/usr/lib/postgresql/*/bin"))])  # as Debian has it
    initdb, pg_ctl = shutil.which("initdb", path=places), shutil.which("pg_ctl", path=places)
    if initdb is None or pg_ctl is None:
        pytest.skip("PostgreSQL is to be installed (apt)")
    folder = tmp_path_factory.mktemp("pg")
    who: dict[str, Any] = {}
    if os.geteuid() == 0:  # it refuses to run as root
        who = {"user": "nobody"}
        for path in (folder, *folder.parents[:3]):
            path.chmod(0o777)
    run = {"capture_output": True, "check": True, "cwd": folder, **who}
    subprocess.run([initdb, "-D", str(folder / "data"), "-A", "trust", "-U", "tailrace"], **run)
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    subprocess.run([pg_ctl, "-D", str(folder / "data"), "-w", "-o", options, "-l", str(folder / "log"), "start"], **run)
    yield f"host={folder} user=tailrace dbname=postgres"
    subprocess.run([pg_ctl, "-D", str(folder / "data"), "-m", "immediate", "stop"], **run)


Case = tuple[Sink, Callable[[], list[tuple[str, str]]]]


@pytest.fixture(params=["parquet", "sqlite", "postgres", "stream"])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Case:
    """A sink, and a way to look at what it shows."""
    if request.param == "parquet":
        out = tmp_path / "out"

        def files() -> list[tuple[str, str]]:
            return [(row["key"], row["value"]) for row in ds.dataset(out).to_table().to_pylist()]

        return parquet(out), files
    if request.param == "sqlite":
        path = str(tmp_path / "out.db")

        def rows() -> list[tuple[str, str]]:
            with sqlite3.connect(path) as db:
                return list(db.execute("SELECT key, value FROM stats"))

        return sqlite_table(path, "stats"), rows
    if request.param == "postgres":
        dsn = request.getfixturevalue("server")

        def table() -> list[tuple[str, str]]:
            import psycopg2

            with psycopg2.connect(dsn) as db, db.cursor() as cursor:
                cursor.execute("SELECT key, value FROM stats")
                return list(cursor.fetchall())

        return postgres_table(dsn, "stats"), table
    world = tmp_path / "world"

    def messages() -> list[tuple[str, str]]:
        with tailrace.open(world) as opened:
            found = [m for batch in opened.consumer("out", start="earliest", follow=False) for m in batch]
            return [(m.key.decode(), m.value.decode()) for m in found if m.key and m.value]

    return into_stream(world, "out", shards=2), messages


def test_an_output_is_published_once_and_tells_of_its_input(case: Case, tmp_path: Path) -> None:
    sink, seen = case
    sink.prepare()
    staging = Staging(sink.staging_folder(str(tmp_path / "staging")))
    staging.prepare()
    rows = ROWS.select(["key", "value"])
    for begin in (0, 10):
        receipt = staging.write(staged_name(footer(begin).unit, "r", 1), rows, footer(begin))
        assert not sink.has(footer(begin))
        for _ in range(3):
            sink.publish(footer(begin), staging.find(receipt))
        assert sink.has(footer(begin))
    nothing = staging.write(staged_name(footer(20).unit, "r", 2), pa.table({}), footer(20))
    sink.publish(footer(20), staging.find(nothing))
    assert sorted(seen()) == [("a", "x"), ("a", "x"), ("b", "y"), ("b", "y")]
    other = replace(footer(0), pipeline="q", unit="q-0")
    receipt = staging.write(staged_name(other.unit, "r", 3), rows, other)
    assert not sink.has(other), "another pipeline may take the same input"
    sink.publish(other, staging.find(receipt))
    assert len(seen()) == 6
    done: dict[str, list[tuple[int, int]]] = {}
    for output in sink.outputs():
        found = [*output.ranges, *(one for stretch in output.stretches for one in stretch.ranges([FILE]))]
        done.setdefault(output.pipeline, []).extend((one.begin, one.end) for one in found)
    assert done["q"] == [(0, 10)]
    assert sum(end - begin for begin, end in done["p"]) == 30
    if not isinstance(sink, ParquetFolder):  # whose outputs are their own notes
        assert done["p"] == [(0, 30)], "no note for each unit"
    sink.close()


def test_sites_that_publish_the_same_units_at_once_publish_each_once(tmp_path: Path) -> None:
    """Every one of them takes the stream from the others, again and again."""
    sink = into_stream(tmp_path / "world", "out", shards=2)
    sink.prepare()
    staging = Staging(str(tmp_path / "staging"))
    staging.prepare()
    units = [footer(begin) for begin in range(0, 120, 10)]
    staged = []
    for unit in units:
        rows = pa.table({"key": [unit.unit], "value": ["x"]})
        staged.append(staging.find(staging.write(staged_name(unit.unit, "r", 1), rows, unit)))
    desks, problems = [_Desk(sink, "p") for _ in range(3)], list[BaseException]()

    def publish(desk: _Desk, turn: int) -> None:
        try:
            for place in range(len(units)):
                number = (place * 5 + turn * 4) % len(units)
                desk.publish(units[number], staged[number])
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=publish, args=(desk, turn)) for turn, desk in enumerate(desks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for desk in desks:
        desk.close()
    assert not problems
    with tailrace.open(tmp_path / "world") as world:
        keys = [m.key for batch in world.consumer("out", start="earliest", follow=False) for m in batch]
    assert sorted(key.decode() for key in keys if key) == sorted(unit.unit for unit in units)
    (output,) = sink.outputs()
    assert len(output.stretches) == 1
    kept = tmp_path / "world" / "streams" / "out" / "transactions" / "kept"
    assert len(list(kept.rglob("*.0*"))) <= 16


def test_what_a_pipeline_writes_is_in_the_cache_at_once(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "world") as world:
        world.create_stream("out", shards=1)
        sink = replace(into_stream(tmp_path / "world", "out"), feed=world.shadow)
        staging = Staging(str(tmp_path / "staging"))
        staging.prepare()
        with world.consumer("out", start="earliest") as consumer:
            numbers = itertools.count()

            def from_memory() -> int:
                """Until the cache is up what comes is read from the files; then no more."""
                unit = footer(10 * next(numbers))
                receipt = staging.write(f"{unit.unit}.r.1.parquet", ROWS.select(["key", "value"]), unit)
                sink.publish(unit, staging.find(receipt))
                batch = consumer.poll(timeout_s=30)
                assert batch is not None
                layers = world._layers.find(world.stream_config("out").cache)
                return 0 if layers is None else layers.bytes_from["relaxed"]

            wait_until(from_memory, "messages from the cache")
        sink.close()


def test_an_output_so_large_that_its_file_is_moved_is_seen_by_those_who_follow_the_cache(tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "world") as world:
        world.create_stream("out", shards=1)
        sink = replace(into_stream(tmp_path / "world", "out"), feed=world.shadow)
        staging = Staging(str(tmp_path / "staging"))
        staging.prepare()
        small, large = ROWS.select(["key", "value"]), pa.table({"value": [b"%d" % n * 100_000 for n in range(60)]})
        with world.consumer("out", start="earliest") as consumer:
            for begin, rows in ((0, small), (10, large), (20, small)):
                receipt = staging.write(f"{footer(begin).unit}.r.1.parquet", rows, footer(begin))
                sink.publish(footer(begin), staging.find(receipt))
                seen = 0
                while seen < rows.num_rows:
                    batch = consumer.poll(timeout_s=30)
                    assert batch is not None
                    seen += len(batch)
        sink.close()


def test_units_without_output_are_kept_in_one_account(tmp_path: Path) -> None:
    sink, staging = parquet(tmp_path / "out"), Staging(str(tmp_path / "staged"))
    sink.prepare()
    staging.prepare()
    for begin in range(0, 500, 10):
        receipt = staging.write(f"{begin}.parquet", pa.table({}), footer(begin))
        assert not sink.has(footer(begin))
        sink.publish(footer(begin), staging.find(receipt))
        sink.publish(footer(begin), staging.find(receipt))
        assert sink.has(footer(begin))
    assert sorted(os.listdir(tmp_path / "out")) == ["_nothing", "_pipeline"], "nothing for each unit"
    assert len(os.listdir(tmp_path / "out" / "_nothing")) == 1
    (told,) = sink.outputs()
    assert told.pipeline == "p"
    assert [(one.begin, one.end) for one in told.stretches] == [(0, 500)]
    sink.publish(footer(600), staging.find(staging.write("600.parquet", ROWS, footer(600))))
    assert {one.ranges for one in sink.outputs()} == {(), footer(600).ranges}
    assert ds.dataset(tmp_path / "out").to_table().num_rows == ROWS.num_rows, "readers do not see the account"


def test_sites_that_note_empty_units_at_once_lose_none(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "staged"))
    staging.prepare()
    parquet(tmp_path / "out").prepare()
    staged = staging.find(staging.write("empty.parquet", pa.table({}), footer(0)))

    def site(first: int) -> None:
        sink = parquet(tmp_path / "out")
        for begin in range(first, 800, 40):
            sink.publish(footer(begin), staged)

    threads = [threading.Thread(target=site, args=(first,)) for first in (0, 10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (told,) = parquet(tmp_path / "out").outputs()
    assert [(one.begin, one.end) for one in told.stretches] == [(0, 800)]


def test_a_number_that_is_free_again_is_no_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who was asleep since number 1 finds 2 free, because others are at 3 already."""
    sink, other, staging = parquet(tmp_path / "out"), parquet(tmp_path / "out"), Staging(str(tmp_path / "staged"))
    sink.prepare()
    staging.prepare()
    staged = staging.find(staging.write("empty.parquet", pa.table({}), footer(0)))
    sink.publish(footer(0), staged)
    original, asleep = ParquetFolder._account, [True]

    def account(folder: ParquetFolder) -> Any:
        found = original(folder)
        if folder is sink and asleep.pop():
            asleep.append(False)
            other.publish(footer(10), staged)
            other.publish(footer(20), staged)
        elif folder is sink:
            asleep.append(False)
        return found

    monkeypatch.setattr(ParquetFolder, "_account", account)
    monkeypatch.setattr(ParquetFolder, "has", lambda folder, footer: False)
    sink.publish(footer(30), staged)
    (told,) = sink.outputs()
    assert [(one.begin, one.end) for one in told.stretches] == [(0, 40)]


def test_a_folder_serves_one_pipeline(tmp_path: Path) -> None:
    sink, staging = parquet(tmp_path / "out"), Staging(str(tmp_path / "staged"))
    sink.prepare()
    staging.prepare()
    sink.publish(footer(0), staging.find(staging.write("0.parquet", ROWS, footer(0))))
    with pytest.raises(ConfigError, match="holds the output of the pipeline p; give q a folder of its own"):
        sink.claim("q")  # nobody has claimed it, but there is an output
    sink.claim("p")
    other = Pipeline("q", source=stream("clicks"), transform=len, sink=sink)
    with SqliteCoordination(str(tmp_path / "state.db")) as store, pytest.raises(ConfigError, match="of its own"):
        other.runner(str(tmp_path), [store], worker=other.worker(str(tmp_path), "inline"))


def test_a_table_with_a_key_adds_up(tmp_path: Path) -> None:
    sink = sqlite_table(str(tmp_path / "out.db"), "totals", key=["key"])
    sink.prepare()
    staging = Staging(str(tmp_path))
    for begin in (0, 10, 10):
        receipt = staging.write(staged_name("u", "r", begin), ROWS.select(["key", "n"]), footer(begin))
        sink.publish(footer(begin), staging.find(receipt))
    with sqlite3.connect(sink.path) as db:
        assert sorted(db.execute("SELECT key, n FROM totals")) == [("a", 2), ("b", 4)]


def test_a_copy_stands_in_for_an_output_whose_site_is_gone(tmp_path: Path) -> None:
    staging = Staging(str(tmp_path / "here"), (str(tmp_path / "there"),))
    staging.prepare()
    receipt = staging.write("u.r.1.parquet", ROWS, footer(0))
    shutil.rmtree(tmp_path / "here")
    sink = parquet(tmp_path / "out")
    sink.prepare()
    Staging(sink.staging_folder("")).prepare()
    assert staging.find(receipt) == str(tmp_path / "there" / "u.r.1.parquet")
    sink.publish(footer(0), staging.find(receipt))
    assert ds.dataset(tmp_path / "out").count_rows() == 2
    shutil.rmtree(tmp_path / "there")
    with pytest.raises(StagedMissing):
        staging.find(receipt)


def test_staged_names_tell_who_made_them() -> None:
    assert runner_of(staged_name("a.b-00000-1-ff", "f00", 3)) == "f00"
    assert runner_of("part.parquet") == ""


def test_a_file_that_is_no_output_is_refused(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "part-x.parquet")
    with pytest.raises(Corrupt, match="no output"):
        list(parquet(tmp_path).outputs())
