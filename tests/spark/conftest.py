"""One Spark session for all tests of this folder: it takes ten seconds to start. One process of the run has it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import tailrace
from tailrace.pipeline.spark import session


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two tasks at a time, each tried up to four times."""
    found = session("tests", master="local[2,4]", memory="1g")
    yield found
    found.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    with tailrace.open(tmp_path / "world") as opened:
        yield opened
