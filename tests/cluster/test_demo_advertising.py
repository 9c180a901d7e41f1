"""The demo's chapter on advertising, with processes in the place of Spark, which only takes longer to start."""

from pathlib import Path

import pytest

from tailrace.node.demo.chapters.advertising import Advertising
from tailrace.node.demo.view import View


def test_budgets_are_exact_though_the_pipeline_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILRACE_DEMO_FOLDER", "")  # so that it is as before, afterwards
    lines: list[str] = []
    told = Advertising(str(tmp_path), 1.5, View(False, lines.append), "processes").tell()
    assert told.problems == []
    assert told.figures["queries"] == 6000
    assert told.figures["units"] > 1
    assert sum("kill -9 of" in line for line in lines) == 2
    assert "exactly once" in told.verdict
