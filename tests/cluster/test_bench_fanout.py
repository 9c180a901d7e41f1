"""The fan-out benchmark, for real but tiny: what it tells, what it says of missing peers, that it leaves nothing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from conftest import wait_until
from tailrace.node.bench.fanout.message import MESSAGE_BYTES, Scanner, message, stamp_of

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
    messages = [message() for _ in range(20)]
    content = b"".join(b"MSG subject 1 %d\r\n%b\r\n" % (MESSAGE_BYTES, one) for one in messages)
    scanner, count, stamps = Scanner(stamped, room_bytes=8192), 0, []
    for at in range(0, len(content), piece):
        some = content[at : at + piece]
        scanner.room()[: len(some)] = some
        count += scanner.took(len(some))
        stamps += scanner.stamps
    assert count == len(messages)
    assert stamps == ([stamp_of(one) for one in messages] if stamped else [])
