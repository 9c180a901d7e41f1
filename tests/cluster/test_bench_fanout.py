"""The fan-out benchmark, for real but tiny: what it tells, what it says of missing peers, that it leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from tailrace.node.bench.fanout import crew
from tailrace.node.bench.fanout.contender import Publisher
from tailrace.node.bench.fanout.message import MESSAGE_BYTES, Scanner, message, stamp_of
from tailrace.node.bench.fanout.tally import Tally

OURS, LIMIT = "shm", "memcpy"
MEASURES = ("mb_per_s", "producer_mb_per_s", "producer_first_mb_per_s", "p50_ms", "p99_ms", "client_cpu_s_per_gb")

needs_redis = pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is to be installed (apt)")


def command(folder: Path, *arguments: str) -> list[str]:
    quick = ["--quick", "--repeats", "1", "--peers-folder", str(folder / "peers"), "--directory", str(folder)]
    return [sys.executable, "-m", "tailrace", "bench", "fanout", *quick, *arguments]


def run(folder: Path, *arguments: str, path: str | None = None) -> tuple[int, str, str]:
    environment = os.environ | ({} if path is None else {"PATH": path})
    done = subprocess.run(
        command(folder, *arguments), capture_output=True, text=True, timeout=200, check=False, env=environment
    )
    return done.returncode, done.stdout, done.stderr


def only_redis(folder: Path) -> str:
    """A PATH with the programs of one peer and no others: the test is about us, and the others take long to start."""
    programs = folder / "programs"
    programs.mkdir()
    for program in ("redis-server", "setpriv"):
        if found := shutil.which(program):
            (programs / program).symlink_to(found)
    return str(programs)


@needs_redis
def test_ours_and_a_peer_have_figures_at_every_number_of_consumers_and_nothing_is_left(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--json", path=only_redis(tmp_path))
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    summary = result["summary"]
    peers = summary["peers"]
    assert peers["redis"][0].isdigit()
    assert result["failed"] == []
    assert 0 <= summary["idle_core_pct"] < 300
    for consumers in (1, 2):
        assert summary[f"n{consumers}_{LIMIT}_mb_per_s"] > 0
        for system in (OURS, *peers):
            for measure in MEASURES:
                assert summary[f"n{consumers}_{system}_{measure}"] > 0, (consumers, system, measure)
            assert summary[f"n{consumers}_{system}_lost"] == 0
            delays = [summary[f"n{consumers}_{system}_{quantile}_ms"] for quantile in ("p50", "p99", "p999")]
            assert delays == sorted(delays)
        # Ours has a server as well: the part of the producer's process that is not producing.
        assert summary[f"n{consumers}_{OURS}_server_cpu_s_per_gb"] >= 0
    (one,) = result["runs"]
    best = max(one[f"n2_{peer}_mb_per_s"] for peer in peers)
    assert summary["shm_vs_best_peer"] == pytest.approx(one["n2_shm_mb_per_s"] / best, rel=1e-2)
    assert summary["shm_of_memcpy"] == pytest.approx(one["n2_shm_mb_per_s"] / one["n2_memcpy_mb_per_s"], rel=1e-2)
    first, last = one["n1_shm_producer_first_mb_per_s"], one["n2_shm_producer_first_mb_per_s"]
    assert summary["producer_drop_pct"] == pytest.approx(100 * (1 - last / first), abs=0.5)
    best = min(one[f"n2_{peer}_busy_p99_ms"] for peer in peers)
    assert summary["p99_vs_best_peer"] == pytest.approx(one["n2_shm_busy_p99_ms"] / best, rel=1e-2)
    assert summary["quiet_p99_vs_best_peer"] > 0
    best = max(one[f"n2_{peer}_held_mb_per_s"] for peer in peers)
    assert summary["wire_vs_best_peer"] == pytest.approx(one["n2_wire_held_mb_per_s"] / best, rel=1e-2)
    assert one["n2_wire_held_client_cpu_s_per_gb"] > 0
    assert summary["server_cpu_vs_best_peer"] >= 0
    # What could not be had is named, with what to do about it.
    missing = {line.split(":")[0]: line for line in result["missing"]}
    assert set(missing) | set(peers) == {"kafka", "nats", "rabbitmq", "redis"}
    assert "a run without --quick fetches it" in missing["kafka"]
    assert "apt install nats-server" in missing["nats"]
    assert not list(tmp_path.glob("tailrace-fanout-*"))


@needs_redis
def test_people_get_a_table_and_choose_the_numbers(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, "--consumers", "3", path=only_redis(tmp_path))
    assert code == 0, err
    assert "shm_vs_best_peer" in out
    assert "at most 0.05" in out
    assert "3 consumers: bytes/s delivered" in out


@pytest.mark.parametrize("numbers", ["", "0", "1,x", "1000000"])
def test_numbers_that_cannot_be_are_refused_before_anything_starts(tmp_path: Path, numbers: str) -> None:
    code, out, err = run(tmp_path, "--consumers", numbers, path=str(tmp_path))
    assert code == 2
    assert "--consumers" in err
    assert "starting" not in err
    assert "Traceback" not in out + err


def test_without_any_peer_it_says_what_to_install(tmp_path: Path) -> None:
    code, out, err = run(tmp_path, path=str(tmp_path))
    assert code == 2
    assert "apt install redis-server" in err
    assert "apt install rabbitmq-server" in err
    assert "Traceback" not in out + err


@needs_redis
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_whoever_ends_it_ends_its_consumers_and_servers(tmp_path: Path, how: signal.Signals) -> None:
    with tempfile.TemporaryDirectory() as sockets:  # near enough for a socket's path, which is short
        environment = os.environ | {"PATH": only_redis(tmp_path), "TMPDIR": sockets}

        def helpers() -> list[int]:
            """Forked processes have the benchmark's command line; what Redis says of itself is where its socket is."""
            lines = {pid: command_line(pid) for pid in others(bench.pid)}
            return [pid for pid, line in lines.items() if str(tmp_path).encode() in line or sockets.encode() in line]

        with subprocess.Popen(
            command(tmp_path, "--consumers", "4"), stderr=subprocess.PIPE, text=True, env=environment
        ) as bench:
            assert bench.stderr is not None
            assert any("4 consumers: shm" in line for line in bench.stderr)
            wait_until(lambda: len(helpers()) >= 8, "two servers, a producer, and a leader with four consumers")
            bench.send_signal(how)
            bench.stderr.read()
            bench.wait(60)
        wait_until(lambda: not helpers(), "everybody has ended")
        if how == signal.SIGINT:
            assert not os.listdir(sockets)
            assert not list(tmp_path.glob("tailrace-fanout-*"))


def others(pid: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != pid]


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("stamped", [False, True])
@pytest.mark.parametrize("piece", [1, 7, 8, 15, 16, 1000, 5000])
def test_messages_are_counted_however_a_socket_cuts_them(piece: int, stamped: bool) -> None:
    messages = [message(number) for number in range(20)]
    content = b"".join(b"MSG subject 1 %d\r\n%b\r\n" % (MESSAGE_BYTES, one) for one in messages)
    scanner, count, stamps = Scanner(stamped, room_bytes=8192), 0, []
    for at in range(0, len(content), piece):
        some = content[at : at + piece]
        scanner.room()[: len(some)] = some
        count += scanner.took(len(some))
        stamps += scanner.stamps
    assert count == len(messages)
    assert stamps == ([stamp_of(one) for one in messages] if stamped else [])


class FakeTime:
    """What the sender knows of time. Nobody sleeps, but for as long as is said, and too long by `oversleeps_ns`."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000
        self.oversleeps_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(1e9 * seconds) + self.oversleeps_ns


MS = 1_000_000


def stamps(monkeypatch: pytest.MonkeyPatch, happens: dict[int, Callable[[FakeTime, Tally], None]]) -> list[int]:
    """Of messages that were sent every 2 ms, in ms since the first. What happens while the n-th is sent."""
    clock, tally, sent = FakeTime(), Tally(1, 100), list[int]()
    monkeypatch.setattr(crew, "time", clock)

    class Sender(Publisher):
        def send(self, messages: list[bytes]) -> None:
            sent.append(stamp_of(messages[0]))
            happens.get(len(sent), lambda clock, tally: None)(clock, tally)

        def confirmed_bytes(self) -> int:
            raise AssertionError

        def close(self) -> None: ...

    crew._at_pace(Sender(), tally.slot(0), 0, 0.002)
    assert [stamp for stamp, _ in tally.slot(0).samples()] == sent
    return [(stamp - sent[0]) // MS for stamp in sent]


def stop(clock: FakeTime, tally: Tally) -> None:
    tally.step = 1


def test_a_message_that_the_last_one_held_up_counts_from_when_it_was_due(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold_up(clock: FakeTime, tally: Tally) -> None:
        clock.now_ns += 7 * MS

    assert stamps(monkeypatch, {2: hold_up, 8: stop}) == [0, 2, 4, 6, 8, 10, 12, 14]


def test_what_was_due_is_sent_and_counted_even_if_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def hold_up_to_the_end(clock: FakeTime, tally: Tally) -> None:
        clock.now_ns += 7 * MS
        tally.step = 1

    assert stamps(monkeypatch, {2: hold_up_to_the_end}) == [0, 2, 4, 6, 8]


def test_what_the_sender_overslept_is_nobodys_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def sleep_badly(clock: FakeTime, tally: Tally) -> None:
        clock.oversleeps_ns = MS

    def sleep_for_long(clock: FakeTime, tally: Tally) -> None:
        clock.oversleeps_ns = 9 * MS

    def sleep_well(clock: FakeTime, tally: Tally) -> None:
        clock.oversleeps_ns = 0

    a_little = stamps(monkeypatch, {1: sleep_badly, 2: sleep_well, 4: stop})
    assert a_little == [0, 3, 4, 6], "as it is sent, and the next ones when they are due"
    for_long = stamps(monkeypatch, {1: sleep_for_long, 2: sleep_well, 4: stop})
    assert for_long == [0, 11, 13, 15], "those that were missed are not made up for"


def test_a_producer_that_is_held_waits_for_its_slowest_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = Tally(3, 0)
    slow, quick = tally.slot(1), tally.slot(2)
    quick.add(1 << 40)

    class Clock(FakeTime):
        def sleep(self, seconds: float) -> None:  # only while somebody waits for it
            slow.add(crew._HELD_BYTES // 4, aside_bytes=crew._HELD_BYTES // 4)

    class Counted(Publisher):
        confirmed = 0

        def send(self, messages: list[bytes]) -> None:
            assert self.confirmed <= slow.reached + crew._HELD_BYTES
            self.confirmed += sum(map(len, messages))
            if self.confirmed > 3 * crew._HELD_BYTES:
                tally.step = 1

        def confirmed_bytes(self) -> int:
            return self.confirmed

        def close(self) -> None: ...

    monkeypatch.setattr(crew, "time", Clock())
    publisher = Counted()
    crew._at_full_speed(publisher, tally.slot(0), 0, [slow, quick])
    assert publisher.confirmed > 3 * crew._HELD_BYTES
    assert slow.bytes == slow.reached // 2, "what came by another way lets it go on, and does not count"
