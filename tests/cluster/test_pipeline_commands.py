"""`tailrace pipeline …` as it is typed."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pipeline_sites import APP
from typer.testing import CliRunner

import tailrace
from tailrace.node.cli import app

COMMANDS = ["run", "status", "drain", "bad-ranges", "rebuild", "outage", "partitions", "forget", "extract", "compact"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    with tailrace.open(tmp_path / "w") as opened, opened.producer("clicks", shards=2) as producer:
        producer.send_many([b"c%d %d" % (number % 3, number) for number in range(900)])
    monkeypatch.setenv("TAILRACE_WORLD", str(tmp_path / "w"))
    monkeypatch.setenv("PIPELINE_OUT", str(tmp_path / "out"))
    return tmp_path


def tell(*words: str, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["pipeline", *words])
    assert done.exit_code == code, done.output
    return json.loads(done.stdout) if "--json" in words else done.stdout


def run_to_the_end() -> dict[str, Any]:
    """In a process of its own, since it handles signals."""
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", APP, "--engine", "inline", "--until-done", "--json"]
    return dict(json.loads(subprocess.run(command, capture_output=True, check=True, env=os.environ).stdout))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_examples(command: str) -> None:
    assert "Examples:" in tell(command, "--help")


@pytest.mark.usefixtures("world")
def test_a_pipeline_from_its_first_run_to_its_end() -> None:
    assert "no pipeline has run here" in tell("status")
    assert run_to_the_end()["messages"] == 900
    told = tell("status", "counts", "--json")
    assert (told["state"], told["backlog_bytes"], told["streams"]) == ("stopped", 0, ["clicks"])
    assert told["usage"]["total"]["messages"] == 900
    text = tell("status")
    assert "local" in text
    assert "USED BY" in text
    assert "forecast: 0 B/s arrive; nobody is at work" in text

    tell("outage", "counts", "eu", "--json")
    assert [one["out"] for one in tell("status", "counts", "--json")["sites"] if one["site"] == "eu"] == [True]
    tell("outage", "counts", "eu", "--over")

    epochs = tell("partitions", "counts", "4", "--in", "1h", "--json")
    assert [epoch["partitions"] for epoch in epochs] == [1, 4]

    assert tell("drain", "counts", "--json")["draining"]
    assert not tell("drain", "counts", "--undo", "--json")["draining"]

    assert tell("bad-ranges", "counts", "--json") == []
    rebuilt = tell("rebuild", APP, "--json")
    assert (rebuilt["units"], rebuilt["outputs"] > 0) == (0, True)
    assert run_to_the_end()["messages"] == 0, "all of it was done"

    tell("forget", "counts")
    assert "no pipeline has run here" in tell("status")


@pytest.mark.usefixtures("world")
def test_mistakes_are_told_and_change_nothing(tmp_path: Path) -> None:
    tell("status", "nobody", code=3)
    tell("run", "no-such.py:pipeline", code=2)
    tell("run", f"{APP}s", code=2)
    tell("run", APP, "--engine", "magic", code=2)
    tell("status", "--world", str(tmp_path / "elsewhere"), code=2)
    (tmp_path / "app.py").write_text("pipeline = 5\n")
    tell("run", f"{tmp_path}/app.py:pipeline", code=2)
    assert "no pipeline has run here" in tell("status")
