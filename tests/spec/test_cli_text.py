"""What people type and read on the command line."""

import json

import pytest
from typer.testing import CliRunner

from tailrace.errors import ConfigError, DiskFull, FlushFailed, NameRefused, StreamExists, StreamMissing
from tailrace.native import Message
from tailrace.node.cli import app, render
from tailrace.node.cli.report import describe, exit_code
from tailrace.node.cli.start import parse_start
from tailrace.node.cli.units import parse_duration, parse_rate, parse_size, show_duration, show_size

COMMANDS = [
    [],
    ["produce"],
    ["consume"],
    ["verify"],
    ["demo"],
    ["bench"],
    ["bench", "streams"],
    ["bench", "fanout"],
    ["topology"],
    *(["topology", command] for command in ("show", "plan", "explain", "apply", "keep")),
    ["streams"],
    *(["streams", command] for command in ("create", "list", "show", "set", "trim", "delete")),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_examples_on_lines_of_their_own(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0
    assert "Example" in result.output
    assert result.output.isascii() or "…" in result.output
    examples = result.output.partition("Examples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith("    ") and "tailrace" in line for line in examples)


@pytest.mark.parametrize("text", ["", "-1", "1e3", "10 XB", "MiB", "nan", "inf", "1.2.3", "99999999PiB", "٣"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"use (for example|at most)"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "30", "-1s", "1 year", "s", "nan", "infs"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use a number and a unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["", "0", "0/s", "/s", "10MiB/min"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="use for example"):
        parse_rate(text)


def test_sizes_and_durations_in_every_unit() -> None:
    assert [parse_size(f"2{unit}") for unit in ("", "b", "kB", "KiB", "mb", "MiB", "GB", "GiB", "TB", "TiB")] == [
        *(2, 2, 2000, 2048, 2 * 10**6, 2 << 20, 2 * 10**9, 2 << 30, 2 * 10**12, 2 << 40)
    ]
    assert [parse_duration(f"1.5{unit}") for unit in ("ms", "s", "m", "min", "h", "d", "w")] == [
        *(0.0015, 1.5, 90, 90, 5400, 129600, 907200)
    ]
    assert (show_size(5 << 50), show_duration(3599)) == ("5.0 PiB", "60.0 min")


@pytest.mark.parametrize("text", ["", "-5", "now", "2026-13-01", "1" * 30])
def test_what_is_no_start_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="none of earliest"):
        parse_start(text)


def message(value: bytes | None, key: bytes | None = None) -> Message:
    return Message(stream="prices", shard=3, position=42, timestamp_us=1_700_000_000_000_001, key=key, value=value)


@pytest.mark.parametrize(
    "content", [b"", b"text", "naïve ☃ \u2028".encode(), b'quote " \\ back', bytes(range(128)), b"\xff", None]
)
def test_json_lines_lose_nothing(content: bytes | None) -> None:
    line = render.jsonl([message(content, key=content)])
    assert line.count(b"\n") == 1
    table = json.loads(line)
    assert list(table) == ["stream", "shard", "position", "timestamp", "key", "value"]
    assert (table["stream"], table["shard"], table["position"]) == ("prices", 3, 42)
    assert table["timestamp"] == "2023-11-14T22:13:20.000001Z"
    assert table["key"] == table["value"]
    assert table["value"] == (
        {"base64": "/w=="} if content == b"\xff" else None if content is None else content.decode()
    )


def test_lines_for_people_hold_nothing_that_a_terminal_obeys() -> None:
    for content in (
        b"\x1b[2J",
        b"two\nlines",
        b"\x9b31m",
        b"\xff\x1b",
        "\u202eevil".encode(),
        b"\r",
        bytes(range(256)),
    ):
        line = render.human([message(content, key=content)])
        assert line.endswith(b"\n")
        assert line[:-1].decode().isprintable(), line


def test_lines_for_people_cut_what_is_binary_and_show_text_in_full() -> None:
    assert (
        render.human([message(b"x" * 5000, b"k")]) == b"2023-11-14T22:13:20.000001Z  3  42  k  " + b"x" * 5000 + b"\n"
    )
    assert render.printable(b"\xff" * 5000) == f"0x{'ff' * 32}… (5000 bytes)"
    assert render.printable(b"\n" * 5000) == f"{chr(92)}n" * 200 + "… (5000 bytes)"
    assert b"  prices/3  42  -  (no value)" in render.human([message(None)], with_stream=True)


def test_raw_is_the_values() -> None:
    assert render.raw([message(b"a"), message(b""), message(None), message(b"\xff")]) == b"a\n\n\n\xff\n"


def test_exit_codes_tell_usage_from_refusal() -> None:
    assert {exit_code(kind("x")) for kind in (ConfigError, NameRefused, StreamMissing, StreamExists)} == {2}
    assert {exit_code(kind("x")) for kind in (DiskFull, FlushFailed)} == {3}


def test_an_error_as_json_says_whether_it_took_effect() -> None:
    assert describe(FlushFailed("no")) == {"error": {"kind": "FlushFailed", "message": "no", "took_effect": None}}
    problem = DiskFull("full")
    problem.add_note("three were sent")
    assert describe(problem)["error"]["notes"] == ["three were sent"]
