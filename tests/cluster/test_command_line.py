"""The real command in processes of its own, over worlds in temporary folders."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import tailrace
from conftest import wait_until
from tailrace.node.cli import app

COMMAND = [sys.executable, "-m", "tailrace"]
DEADLINE_S = 60.0

Message = tuple[bytes | None, bytes | None]  # (key, value)


class Result(Protocol):
    stdout_bytes: bytes
    stderr_bytes: bytes


class Shell:
    """Runs the command over one world."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.world = folder / "world"
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("TAILRACE_")} | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TAILRACE_WORLD": str(self.world),
        }

    def run(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> subprocess.CompletedProcess[bytes]:
        done = subprocess.run(
            [*COMMAND, *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env=self.env,
            cwd=self.folder,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, (arguments, done.returncode, done.stdout[-500:], done.stderr.decode())
        assert b"Traceback" not in done.stderr, done.stderr.decode()
        return done

    def call(self, *arguments: object, code: int = 0) -> Result:
        """The command in this process, at a tenth of the time: for variants of what a process of its own has tried."""
        done = CliRunner().invoke(app, list(map(str, arguments)), env={"TAILRACE_WORLD": str(self.world)})
        assert done.exit_code == code, (arguments, done.exit_code, done.output, done.exception)
        return done

    def json(self, *arguments: object, stdin: bytes = b"", code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", stdin=stdin, code=code).stdout)

    @contextmanager
    def started(self, *arguments: object, **pipes: Any) -> Iterator[subprocess.Popen[bytes]]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **pipes}
        with subprocess.Popen(
            [*COMMAND, *map(str, arguments)], env=self.env, cwd=self.folder, bufsize=0, **pipes
        ) as process:
            guard = threading.Timer(DEADLINE_S, process.kill)
            guard.start()
            try:
                yield process
            finally:
                guard.cancel()
                process.kill()

    # ---- the same world from this process, where a command is not what is tested

    def send(self, stream: str, *values: bytes, shards: int = 1) -> None:
        with tailrace.open(self.world) as world, world.producer(stream, shards=shards) as producer:
            for value in values:
                producer.send(value)

    def messages(self, stream: str) -> list[Message]:
        with tailrace.open(self.world) as world, world.consumer(stream, start="earliest", follow=False) as consumer:
            return [(message.key, message.value) for batch in consumer for message in batch]

    def values(self, stream: str) -> list[bytes | None]:
        return [value for _, value in self.messages(stream)]

    def checkpoint(self, stream: str, name: str) -> dict[int, int]:
        with tailrace.open(self.world) as world:
            return world.checkpoints(stream).get(name, {})

    def has(self, stream: str, count: int) -> bool:
        with tailrace.open(self.world) as world:
            return stream in world.streams() and sum(s.messages for s in world.stream_status(stream)) >= count


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def numbers(count: int, width: int = 4) -> list[bytes]:
    return [b"%0*d" % (width, number) for number in range(count)]


# ---- produce and consume


def test_lines_pass_through_untouched(shell: Shell) -> None:
    content = b"plain\nwindows\r\n\n\xff\x00\xfe not UTF-8\n" + bytes(set(range(256)) - {10}) + b"\n\nno newline"
    summary = shell.json("produce", "lines", stdin=content)
    assert (summary["stream"], summary["messages"], summary["skipped"], summary["interrupted"]) == (
        "lines",
        7,
        0,
        False,
    )
    assert summary["size_bytes"] == len(content) - 6
    assert shell.values("lines") == content.split(b"\n")
    assert shell.run("consume", "lines", "--format", "raw").stdout == content + b"\n"


def test_a_long_pipe_from_end_to_end(shell: Shell) -> None:
    lines = [b"%d %s" % (number, b"x" * (number % 300)) for number in range(60_000)]
    with shell.started("produce", "piped", "-") as producer:
        _, told = producer.communicate(b"\n".join(lines))
        assert producer.returncode == 0
        assert told.startswith(b"60,000 messages, ")
    assert shell.run("consume", "piped", "--format", "raw").stdout == b"\n".join(lines) + b"\n"


def test_keys_decide_the_shard_and_a_line_without_one_is_told_with_its_number(shell: Shell) -> None:
    (shell.folder / "good.tsv").write_bytes(b"".join(b"key-%d\tvalue %d\n" % (n % 5, n) for n in range(50)))
    (shell.folder / "bad.tsv").write_bytes(b"a\t1\nb\t2\noops\nc\t3\n")
    options = ("--shards", 3, "--key-separator", r"\t")
    shell.run("produce", "keyed", "good.tsv", *options)
    rows = [json.loads(line) for line in shell.run("consume", "keyed", "--json").stdout.splitlines()]
    assert len(rows) == 50
    assert all(len({row["shard"] for row in rows if row["key"] == f"key-{n}"}) == 1 for n in range(5))
    for n in range(5):
        assert [row["value"] for row in rows if row["key"] == f"key-{n}"] == [f"value {m}" for m in range(n, 50, 5)]

    refused = shell.run("produce", "bad", "bad.tsv", *options, code=2)
    assert b"bad.tsv line 3: there is no key separator" in refused.stderr
    assert b"2 messages were taken before it, of which 2 are durable." in refused.stderr
    assert sorted(shell.messages("bad")) == [(b"a", b"1"), (b"b", b"2")]
    skipped = shell.json("produce", "skipped", "bad.tsv", *options, "--skip-bad")
    assert (skipped["messages"], skipped["skipped"]) == (3, 1)


def test_json_lines_bring_back_what_they_took_out(shell: Shell) -> None:
    sent: list[Message] = [(None, b"plain"), (b"k", b"\xff\x00"), (b"\xfe", "snow ☃\n".encode()), (b"gone", None)]
    with tailrace.open(shell.world) as world, world.producer("from") as producer:
        for key, value in sent:
            producer.send(value, key)
    exported = shell.run("consume", "from", "--json", "--output", "out.jsonl")
    assert exported.stdout == b""
    assert b"4 messages" in exported.stderr
    shell.run("produce", "to", "out.jsonl", "--key", "key", "--value", "value")
    assert shell.messages("to") == sent
    shell.call("produce", "whole", shell.folder / "out.jsonl")
    assert shell.values("whole") == (shell.folder / "out.jsonl").read_bytes().splitlines()


def test_csv_columns_and_rows(shell: Shell) -> None:
    (shell.folder / "prices.csv").write_bytes(b'sku,price\na,"9,99"\nb,5\n')
    shell.run("produce", "columns", "prices.csv", "--key", "sku", "--value", "price")
    assert shell.messages("columns") == [(b"a", b"9,99"), (b"b", b"5")]
    shell.run("produce", "rows", "--format", "csv", stdin=(shell.folder / "prices.csv").read_bytes())
    assert [json.loads(value or b"") for value in shell.values("rows")] == [
        {"sku": "a", "price": "9,99"},
        {"sku": "b", "price": "5"},
    ]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("bad.csv", b"a,b\n1,2\n3\n", b"bad.csv line 3: 1 cells under a header of 2"),
        ("bad.jsonl", b'{"a":1}\n{"a":\n', b"bad.jsonl line 2: not JSON"),
    ],
)
def test_a_bad_row_is_told_with_file_and_line(shell: Shell, name: str, content: bytes, told: bytes) -> None:
    (shell.folder / name).write_bytes(content)
    refused = shell.run("produce", "rows", name, "--json", code=2)
    assert told in refused.stderr
    error = json.loads(refused.stdout)["error"]
    assert error["kind"] == "BadInput"
    assert error["notes"] == ["1 messages were taken before it, of which 1 are durable."]
    assert len(shell.values("rows")) == 1
    assert b"; 1 bad rows skipped" in shell.call("produce", "rows", shell.folder / name, "--skip-bad").stderr_bytes


def test_a_message_that_is_too_large_is_told_with_its_line(shell: Shell) -> None:
    shell.run("streams", "create", "small", "--message-bytes-max", "1kB")
    refused = shell.run("produce", "small", stdin=b"a\n" + b"x" * 1001 + b"\nb\n", code=2)
    assert b"stdin line 2: a message of 1001 bytes; the stream takes at most message_bytes_max=1000" in refused.stderr
    refused = shell.run("produce", "small", stdin=b"c\n" + b"x" * 3_000_000 + b"\nd", code=2)
    assert b"stdin line 2: a line of 3000000 bytes" in refused.stderr
    assert shell.values("small") == [b"a", b"c"]


def test_parquet_out_and_in_again(shell: Shell) -> None:
    with tailrace.open(shell.world) as world, world.producer("from", shards=2) as producer:
        producer.send_many(numbers(5000), [b"key-%d" % (n % 7) for n in range(5000)])
        producer.send(None, key=b"gone")
    shell.run("consume", "from", "--format", "parquet", "--output", "out.parquet")
    table = pq.read_table(shell.folder / "out.parquet")
    assert table.column_names == ["stream", "shard", "position", "timestamp", "key", "value"]
    assert set(table["stream"].to_pylist()) == {"from"}
    assert list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == shell.messages("from")
    assert [path.name for path in shell.folder.iterdir() if path.name.startswith(".")] == []

    assert shell.json("produce", "to", "out.parquet", "--key", "key", "--value", "value")["messages"] == 5001
    assert shell.messages("to") == shell.messages("from")


def test_parquet_columns_of_other_types_and_whole_rows(shell: Shell) -> None:
    table = pa.table({"id": [1, 2], "tags": [["a"], None], "when": pa.array([0, 1], pa.timestamp("ns", "UTC"))})
    pq.write_table(table, shell.folder / "rows.parquet")
    shell.run("produce", "rows", "rows.parquet", "--key", "id")
    assert [(key, json.loads(value or b"")["tags"]) for key, value in shell.messages("rows")] == [
        (b"1", ["a"]),
        (b"2", None),
    ]
    missing = shell.call("produce", "rows", shell.folder / "rows.parquet", "--value", "nope", code=2)
    assert b"rows.parquet has the columns id, tags, when, but none named 'nope'" in missing.stderr_bytes
    (shell.folder / "not.parquet").write_bytes(b"PAR1 or not")
    broken = shell.call("produce", "rows", shell.folder / "not.parquet", code=2)
    assert b"not.parquet cannot be read as Parquet" in broken.stderr_bytes


def test_lines_for_people(shell: Shell) -> None:
    shell.send("one", b"text", b"\x1b[2J", b"\xff" * 100)
    shell.send("two", b"more")
    first, second, third, fourth = shell.run("consume", "one", "two").stdout.decode().splitlines()
    assert first.split("  ")[1:] == ["one/0", "0", "-", "text"]
    assert second.endswith(r"\x1b[2J")
    assert third.endswith("… (100 bytes)")
    assert fourth.split("  ")[1:] == ["two/0", "0", "-", "more"]


def test_where_to_begin(shell: Shell) -> None:
    shell.send("s", b"aa", b"bb", b"cc")
    begin = json.loads(shell.run("consume", "s", "--json", "--limit", 1).stdout)["timestamp"]
    raw = ("--format", "raw")
    assert shell.run("consume", "s", *raw, "--from", begin, "--rate", "1MB/s").stdout == b"aa\nbb\ncc\n"
    assert shell.call("consume", "s", *raw, "--from", 2).stdout_bytes == b"bb\ncc\n"
    assert shell.call("consume", "s", *raw, "--from", "latest").stdout_bytes == b""
    shell.send("wide", b"x", shards=2)
    assert b"name it with --shard N" in shell.call("consume", "wide", "--from", 0, code=2).stderr_bytes
    assert shell.call("consume", "wide", "--from", 0, "--shard", 0, *raw).stdout_bytes == b"x\n"


def test_a_checkpoint_and_a_limit_hand_out_everything_once(shell: Shell) -> None:
    with tailrace.open(shell.world) as world, world.producer("s", shards=3) as producer:
        for number in numbers(50):
            producer.send(number)
    arguments = ("consume", "s", "--checkpoint", "c", "--format", "raw", "--limit")
    seen = shell.run(*arguments, 7).stdout.splitlines()
    assert len(seen) == 7
    for limit in (1, 2, 30):
        lines = shell.call(*arguments, limit).stdout_bytes.splitlines()
        assert len(lines) == limit
        seen += lines
    shell.run("consume", "s", "--checkpoint", "c", "--limit", 5, "--format", "parquet", "--output", "five.parquet")
    seen += pq.read_table(shell.folder / "five.parquet")["value"].to_pylist()
    seen += shell.call(*arguments, 100).stdout_bytes.splitlines()
    assert sorted(seen) == numbers(50)
    assert shell.call(*arguments, 100).stdout_bytes == b""


def test_what_could_not_be_written_out_is_not_committed(shell: Shell) -> None:
    shell.send("s", *numbers(10))
    with open("/dev/full", "wb") as full, shell.started("consume", "s", "--checkpoint", "c", stdout=full) as process:
        assert process.wait() == 3
        assert process.stderr is not None
        assert b"stdout cannot be written" in process.stderr.read()
    assert shell.checkpoint("s", "c") == {0: 0}


def test_a_file_grows_with_its_checkpoint_and_is_never_lost_to_it(shell: Shell) -> None:
    arguments = ("consume", "s", "--checkpoint", "c", "--format", "raw", "--output", "out.txt")
    shell.send("s", b"a", b"b")
    shell.run(*arguments)
    with open(shell.folder / "out.txt", "ab") as file:
        file.write(b"half a li")  # as a run that was killed leaves it
    shell.send("s", b"c")
    shell.run(*arguments)
    assert (shell.folder / "out.txt").read_bytes() == b"a\nb\nhalf a li\nc\n"
    parquet = ("consume", "s", "--checkpoint", "c", "--format", "parquet", "--output", shell.folder / "out.txt")
    assert b"out.txt is there already" in shell.call(*parquet, code=2).stderr_bytes
    assert b"needs a file" in shell.call(*parquet[:-2], code=2).stderr_bytes


# ---- interruptions


def test_follow_until_ctrl_c(shell: Shell) -> None:
    shell.send("s", b"old")
    with shell.started("consume", "s", "--follow", "--format", "raw", "--checkpoint", "c") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"old\n"
        shell.send("s", b"new")
        assert process.stdout.readline() == b"new\n"
        wait_until(lambda: shell.checkpoint("s", "c") == {0: 6}, "the checkpoint to move on")
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""


def test_ctrl_c_while_reading_what_is_there(shell: Shell) -> None:
    shell.send("s", *numbers(1000))
    with shell.started("consume", "s", "--format", "raw", "--rate", "40/s", "--checkpoint", "c") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"0000\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        count = 1 + len(process.stdout.read().splitlines())
    assert shell.checkpoint("s", "c") == {0: 4 * count}


def test_ctrl_c_while_producing_keeps_what_was_taken(shell: Shell) -> None:
    with shell.started("produce", "s", "--json") as process:
        assert process.stdin is not None
        process.stdin.write(b"one\ntwo\nhalf a li")
        wait_until(lambda: shell.has("s", 2), "two messages, though the pipe is still open")
        process.send_signal(signal.SIGINT)
        told, said = process.communicate()
        assert process.returncode == 130
    assert said.startswith(b"interrupted: 2 messages, ")
    assert (json.loads(told)["messages"], json.loads(told)["interrupted"]) == (2, True)
    assert shell.values("s") == [b"one", b"two"]


def test_a_reader_that_has_seen_enough(shell: Shell) -> None:
    shell.send("s", *numbers(300_000))
    with shell.started("consume", "s", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["value"] == "0000"
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr.read() == b""


def test_a_reader_that_goes_while_nothing_comes(shell: Shell) -> None:
    shell.send("s", b"only")
    with shell.started("consume", "s", "--follow", "--format", "raw") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"only\n"
        process.stdout.close()
        assert process.wait() == 0


def test_a_producer_that_is_shut_out(shell: Shell) -> None:
    with shell.started("produce", "s", "--json") as process:
        assert process.stdin is not None
        process.stdin.write(b"first\n")
        wait_until(lambda: shell.has("s", 1), "the first message")
        shell.send("s", b"from a newer one")
        told, said = process.communicate(b"too late\n")
        assert process.returncode == 3
    assert json.loads(told)["error"]["kind"] == "Fenced"
    assert said.startswith(b"tailrace: ")
    assert b"It may have taken effect." in said
    assert shell.values("s") == [b"first", b"from a newer one"]


# ---- streams


def test_the_life_of_a_stream(shell: Shell) -> None:
    made = shell.json(
        *("streams", "create", "s", "--shards", 2, "--file-bytes", 10, "--file-age", "30s"),
        *("--message-bytes-max", "1MiB", "--retain-bytes", "1GB"),
    )
    assert made["settings"] == {
        "shards": 2,
        "file_bytes": 10,
        "file_s": 30.0,
        "message_bytes_max": 1 << 20,
        "cached": True,
        "cache": "tailrace-data",
        "in_place_bytes": 512 << 20,
        "retention": {"size_bytes": 10**9, "waits_for": []},
    }
    for number in numbers(6, width=20):
        shell.send("s", number, shards=2)
    with tailrace.open(shell.world) as world, world.consumer("s", start="earliest", checkpoint="c") as consumer:
        consumer.poll()
        consumer.commit()

    held = 6 * (20 + 48 + 24)  # content, and in an index file of its own a header and an entry
    listed = shell.run("streams", "list").stdout.decode().split()
    assert listed == f"STREAM SHARDS MESSAGES BYTES s 2 6 {held} B".split()
    shown = shell.json("streams", "show", "s")
    assert [shard["messages"] for shard in shown["shards"]] == [6, 0]
    assert (shown["shards"][0]["end"], shown["shards"][0]["files"]) == (120, 6)
    assert shown["checkpoints"][0]["lag_bytes"] == 100
    text = shell.run("streams", "show", "s").stdout.decode()
    assert "at most 953.7 MiB a shard" in text
    assert "100 B" in text

    settings = shell.json("streams", "set", "s", "--retain-bytes", "none", "--retain-for", "c")["settings"]
    assert settings["retention"] == {"waits_for": ["c"]}
    trimmed = shell.json("streams", "trim", "s")
    assert (trimmed["files"], trimmed["shards"][0]["start"]) == (1, 20)

    assert b"say --yes if you mean it" in shell.call("streams", "delete", "s", code=2).stderr_bytes
    shell.run("streams", "delete", "s", "--yes")
    assert shell.json("streams", "list") == {"streams": []}


# ---- verify


def test_verify_finds_the_damaged_bytes(shell: Shell) -> None:
    shell.send("good", *numbers(100))
    shell.send("bad", *numbers(100))
    assert b"2 streams, 2 files, 200 good messages" in shell.run("verify").stdout
    (data,) = (shell.world / "streams" / "bad" / "00000").glob("*.data")
    content = bytearray(data.read_bytes())
    content[41] ^= 1  # in the message at 40 to 44
    data.write_bytes(content)

    told = shell.run("verify", code=1).stdout.decode()
    place = f"streams/bad/00000/{data.name}"
    assert f"damage    {place}  bytes 40 to 44: message does not match its entry" in told
    found = shell.json("verify", "bad", code=1)
    assert (found["damaged"], found["messages"]) == (True, 99)
    assert {"kind": "damage", "file": place, "from_byte": 40, "to_byte": 44} in [
        {key: finding[key] for key in ("kind", "file", "from_byte", "to_byte")} for finding in found["findings"]
    ]
    shell.call("verify", "good")
    stopped = shell.run("consume", "bad", "--format", "raw", code=3)
    assert stopped.stdout.splitlines() == numbers(100)[:10]
    assert b"tailrace: bad/0: a message that fails its checksum" in stopped.stderr


def test_damaged_settings_do_not_hide_the_rest(shell: Shell) -> None:
    shell.send("good", b"a")
    shell.send("bad", b"b")
    (shell.world / "streams" / "bad" / "stream.json").write_bytes(b"{")
    listed = shell.json("streams", "list")["streams"]
    assert [(row["stream"], "problem" in row) for row in listed] == [("bad", True), ("good", False)]
    found = shell.json("verify", code=1)
    assert [finding["file"] for finding in found["findings"]] == ["streams/bad/stream.json"]
    assert found["messages"] == 2


# ---- errors


@pytest.mark.parametrize(
    ("arguments", "code", "kind"),
    [
        (["streams", "create", "../../etc"], 2, "NameRefused"),
        (["produce", "a/b"], 2, "NameRefused"),
        (["produce", "a\x00b"], 2, "NameRefused"),
        (["streams", "delete", "x" * 200, "--yes"], 2, "NameRefused"),
        (["consume", ".hidden"], 2, "NameRefused"),
        (["verify", "s\n"], 2, "NameRefused"),
        (["consume", "s", "--checkpoint", "../c"], 2, "NameRefused"),
        (["consume", "missing"], 2, "StreamMissing"),
        (["streams", "create", "s"], 2, "StreamExists"),
        (["produce", "s", "--shards", "5"], 2, "StreamExists"),
        (["produce", "s", "--shard", "5"], 2, "ConfigError"),
        (["produce", "fresh", "--shards", "0"], 2, "ConfigError"),
        (["produce", "s", "missing.txt"], 2, "BadInput"),
        (["consume", "s", "--format", "parquet"], 2, "ConfigError"),
        (["streams", "set", "s"], 2, "ConfigError"),
    ],
)
def test_errors_are_told_on_stderr_and_as_json(shell: Shell, arguments: list[str], code: int, kind: str) -> None:
    shell.send("s", b"a")
    done = shell.call(*arguments, "--json", code=code)
    error = json.loads(done.stdout_bytes)["error"]
    assert (error["kind"], error["took_effect"]) == (kind, False)
    assert done.stderr_bytes.decode() == f"tailrace: {error['message']}\nIt did not take effect.\n"
    assert shell.values("s") == [b"a"]


def test_a_folder_that_is_no_world(shell: Shell) -> None:
    (shell.folder / "file").touch()
    error = shell.json("streams", "list", "--world", "elsewhere", code=2)["error"]
    assert (error["kind"], error["took_effect"]) == ("ConfigError", False)
    assert not (shell.folder / "elsewhere").exists()
    refused = shell.run("streams", "create", "s", "--world", "file", "--json", code=3)
    error = json.loads(refused.stdout)["error"]
    assert error["kind"] == "FileProblem"
    assert refused.stderr.decode() == f"tailrace: {error['message']}\nIt did not take effect.\n"


def test_usage_errors(shell: Shell) -> None:
    refused = shell.run("streams", "create", "x", "--file-bytes", "12 parsecs", code=2)
    assert b"'12 parsecs' is not a size" in refused.stderr


def test_debug_shows_where_an_error_comes_from(shell: Shell) -> None:
    process = subprocess.run(
        [*COMMAND, "streams", "show", "nope"],
        env=shell.env | {"TAILRACE_DEBUG": "1", "TAILRACE_WORLD": str(shell.folder)},
        capture_output=True,
        timeout=DEADLINE_S,
    )
    assert process.returncode == 2
    assert b"Traceback" in process.stderr


def test_the_version(shell: Shell) -> None:
    assert shell.run("--version").stdout == f"tailrace {tailrace.__version__}\n".encode()
