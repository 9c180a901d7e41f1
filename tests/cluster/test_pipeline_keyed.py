"""A table brought into a keyed stream by Spark, again and again, and its updates folded."""

from pathlib import Path
from typing import Any

import pytest

import tailrace
from conftest import wait_until
from tailrace.errors import ConfigError

pytest.importorskip("pyspark")


@pytest.fixture(scope="module")
def spark() -> Any:
    from tailrace.pipeline.spark import session

    made = session("test", master="local[2]", memory="512m", settings={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()


def test_a_table_becomes_snapshots_then_updates_and_is_folded(spark: Any, tmp_path: Path) -> None:
    from tailrace.pipeline.spark.keyed import compact, extract

    root = str(tmp_path / "w")
    with tailrace.open(root) as world:
        world.create_stream(
            "prices", shards=2, cached=False, file_bytes=64, retention=tailrace.Retention(keeps_snapshots=1)
        )

    def bring(rows: dict[str, str], **more: Any) -> Any:
        table = spark.createDataFrame(list(rows.items()), "sku string, price string").coalesce(1)
        return extract(spark, table, root, "prices", key="sku", **{"value": "price", **more})

    def seen() -> dict[str, str]:
        with tailrace.open(root) as world, world.view("prices") as view:
            return {key.decode(): value.decode() for key, value in view.items()}

    rows = {f"sku-{number}": f"{number}.99" for number in range(40)}
    first = bring(rows)
    assert (first.in_snapshots, first.updated, first.deleted) == (40, 0, 0)
    assert seen() == rows

    rows |= {"sku-1": "0.50", "sku-new": "7.00"}
    del rows["sku-2"]
    second = bring(rows)
    assert (second.in_snapshots, second.updated, second.deleted, second.unchanged) == (0, 2, 1, 38)
    assert seen() == rows
    again = bring(rows)
    assert (again.updated, again.deleted) == (0, 0), "bringing the same table again sends nothing"

    made = compact(spark, root, "prices")
    assert sum(one.keys for one in made) == len(rows)
    with tailrace.open(root) as world:
        assert sum(shard.messages for shard in world.stream_status("prices")) == 3
        world.trim("prices")
    assert seen() == rows

    with pytest.raises(ConfigError, match="not cost"):
        bring(rows, value="cost")
    as_json = spark.createDataFrame([("a", 1)], "id string, n int")
    extract(spark, as_json, root, "users", key="id", shards=1)
    with tailrace.open(root) as world, world.view("users") as view:
        assert view[b"a"] == b'{"id":"a","n":1}'


def test_what_is_extracted_in_one_cluster_is_served_in_another(spark: Any, tmp_path: Path) -> None:
    """The extractor runs at one cluster, the copy tree brings its messages, a batch job its snapshots."""
    from tailrace.copytree import Reader, Writer
    from tailrace.env import SystemClock
    from tailrace.node.cluster_place import ClusterPlace
    from tailrace.pipeline.spark.keyed import carry, compact, extract
    from tailrace.wire import Operation, Order, serve_copies

    east, west, socket = str(tmp_path / "east"), str(tmp_path / "west"), f"unix:{tmp_path}/s"
    tmp_path.chmod(0o700)

    def bring(rows: dict[str, str]) -> None:
        table = spark.createDataFrame(list(rows.items()), "sku string, price string").coalesce(1)
        extract(spark, table, east, "prices", key="sku", value="price")

    def served() -> dict[str, str]:
        with tailrace.open(west) as world, world.view("prices") as view:
            return {key.decode(): value.decode() for key, value in view.items()}

    with tailrace.open(east) as at_home, tailrace.open(west) as copies:
        at_home.create_stream(
            "prices", shards=2, cached=False, file_bytes=64, retention=tailrace.Retention(keeps_snapshots=1)
        )
        rows = {f"sku-{number}": f"{number}.99" for number in range(40)}
        bring(rows)
        rows |= {f"sku-{number}": "0.50" for number in range(0, 60, 5)}
        bring(rows)
        writer = Writer("west", ClusterPlace(copies))
        reader = Reader("reader-0", "east", ClusterPlace(at_home), SystemClock())
        with serve_copies([socket], writer=writer) as server:
            try:
                reader.order(
                    [
                        Order(
                            operation=Operation("prices", shard, "durable", "west"),
                            writers=(server.addresses[0],),
                            origin="east",
                        )
                        for shard in range(2)
                    ]
                )

                def arrived() -> bool:
                    try:
                        return copies.stream_status("prices") == at_home.stream_status("prices")
                    except tailrace.TailraceError:
                        return False

                wait_until(arrived, "the messages to be copied")
                assert [one.waits for one in carry(spark, east, "prices", [west])] == ["", ""]
                assert served() == rows
                assert {one.waits for one in carry(spark, east, "prices", [west])} == {"there already"}

                del rows["sku-7"]
                bring(rows)
                compact(spark, east, "prices")
                wait_until(arrived, "the updates to be copied")
                assert {one.waits for one in carry(spark, east, "prices", [west])} <= {"", "there already"}
                at_home.trim("prices")
                copies.trim("prices")
                assert served() == rows
            finally:
                reader.close()
                writer.close()
