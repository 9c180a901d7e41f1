"""`tailrace view` and `tailrace streams snapshot`, as a person types them."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tailrace
from conftest import wait_until
from tailrace.node.cli import app

DEADLINE_S = 60.0


class Shell:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = tailrace.open(folder)

    def call(self, *arguments: object, code: int = 0) -> Any:
        done = CliRunner().invoke(app, list(map(str, arguments)), env={"TAILRACE_WORLD": str(self.folder)})
        assert done.exit_code == code, (arguments, done.exit_code, done.output, done.exception)
        return done

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.call(*arguments, "--json", code=code).stdout)

    def fill(self, **pairs: bytes | None) -> None:
        with self.world.producer("prices") as producer:
            for key, value in pairs.items():
                producer.send(value, key=key.encode())


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.world.close()


def test_the_whole_view_and_single_keys(shell: Shell) -> None:
    shell.fill(a=b"1", b=b"\xff\x00", c=b"3")
    shell.fill(a=b"new", c=None)
    assert sorted(shell.call("view", "prices").stdout.splitlines()) == ["a\tnew", "b\t0xff00 (2 bytes)"]
    assert shell.call("view", "prices", "b").stdout_bytes == b"\xff\x00"
    rows = [json.loads(line) for line in shell.call("view", "prices", "--json").stdout.splitlines()]
    assert sorted(rows, key=lambda row: str(row["key"])) == [
        {"key": "a", "value": "new"},
        {"key": "b", "value": {"base64": "/wA="}},
    ]
    missing = shell.call("view", "prices", "c", code=1)
    assert (missing.stdout, missing.stderr) == ("", "c is not in prices\n")
    several = shell.call("view", "prices", "a", "c", "--json", code=1).stdout.splitlines()
    assert [json.loads(line) for line in several] == [{"key": "a", "value": "new"}, {"key": "c", "value": None}]
    assert shell.json("view", "nope", code=2)["error"]["kind"] == "StreamMissing"
    assert shell.json("view", "prices", "--shard", 7, code=2)["error"]["kind"] == "ConfigError"


def test_snapshots_are_taken_shown_and_collected(shell: Shell) -> None:
    assert "made" in shell.call("streams", "create", "prices", "--file-bytes", 1, "--retain-snapshots", 1).stdout
    shell.fill(a=b"1", b=b"2")
    (first,) = shell.json("streams", "snapshot", "prices")["snapshots"]
    assert (first["shard"], first["keys"], first["fresh"]) == (0, 2, True)
    assert "nothing new" in shell.call("streams", "snapshot", "prices", "--shard", 0).stdout
    shell.fill(c=b"3")
    shell.call("streams", "snapshot", "prices")
    shown = shell.json("streams", "show", "prices")
    assert [snapshot["behind_bytes"] for snapshot in shown["snapshots"]] == [0, 2]
    text = shell.call("streams", "show", "prices").stdout
    assert "what the newest snapshot needs" in text
    assert "SNAPSHOT OF" in text
    trimmed = shell.json("streams", "trim", "prices")
    assert (trimmed["shards"][0]["start"], trimmed["snapshots"]) == (4, 1)
    settings = shell.json("streams", "set", "prices", "--retain-snapshots", "none")["settings"]
    assert settings["retention"] == {"waits_for": []}
    assert "not a whole number" in shell.call("streams", "set", "prices", "--retain-snapshots", "x", code=2).stderr
    assert sorted(shell.call("view", "prices").stdout.splitlines()) == ["a\t1", "b\t2", "c\t3"]


def test_what_cannot_be_loaded_says_what_to_do(shell: Shell) -> None:
    shell.call("streams", "create", "prices", "--file-bytes", 1, "--retain-bytes", 1)
    shell.fill(a=b"1")
    shell.fill(b=b"2")
    shell.call("streams", "trim", "prices")
    refused = shell.call("view", "prices", code=3)
    assert "write_snapshot('prices', 0" in refused.stderr


@pytest.mark.parametrize("command", [("view",), ("streams", "snapshot")])
def test_help_shows_examples(shell: Shell, command: tuple[str, ...]) -> None:
    text = shell.call(*command, "--help").stdout
    assert "Examples:" in text
    assert f"tailrace {' '.join(command)} prices" in text


def test_following_shows_changes_until_it_is_interrupted(shell: Shell) -> None:
    shell.fill(a=b"1")
    env = os.environ | {"TAILRACE_WORLD": str(shell.folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tailrace", "view", "prices", "--follow"]
    lines: list[bytes] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as process:
        guard = threading.Timer(DEADLINE_S, process.kill)
        guard.start()
        assert process.stdout is not None
        stdout = process.stdout
        collecting = threading.Thread(target=lambda: lines.extend(iter(stdout.readline, b"")))
        collecting.start()
        try:
            wait_until(lambda: lines == [b"a\t1\n"], "what is there")
            shell.fill(a=b"2", b=b"3")
            shell.fill(a=None)
            wait_until(lambda: lines[1:] == [b"a\t2\n", b"b\t3\n", b"a\t(no value)\n"], "the changes")
            process.send_signal(signal.SIGINT)
            assert process.wait(DEADLINE_S) == 0
        finally:
            guard.cancel()
            process.kill()
            collecting.join()
