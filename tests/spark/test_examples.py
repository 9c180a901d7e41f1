"""The examples that need Spark, in the session that is there already."""

import runpy
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("spark_*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(
    spark: SparkSession,
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    expected = [line[4:].strip() for line in path.read_text().splitlines() if line.startswith("# >")]
    assert expected
    for line in expected:
        assert line in printed
