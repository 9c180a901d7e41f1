"""A table brought into a keyed stream by Spark, again and again, and its updates folded."""

from pathlib import Path
from typing import Any

import pytest

import tailrace
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
