"""The cache's benchmark, for real but tiny: what it tells, and what it says when peers are missing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PEERS = {"memcached": "memcached", "redis-server": "redis"}
INSTALLED = [program for program in PEERS if shutil.which(program)]
CASES = [f"get_{size}_b{batch}" for size in ("4k", "100b") for batch in (64, 16, 1)] + ["set_4k_b64", "set_100b_b64"]
OURS = ["shm", "tcp", "shm_r32", "tcp_r32"]

needs_all = pytest.mark.skipif(len(INSTALLED) < 2, reason="memcached and redis-server are to be installed (apt)")


def run(*arguments: str, path: str | None = None) -> tuple[int, str, str]:
    environment = os.environ | ({} if path is None else {"PATH": path})
    command = [sys.executable, "-m", "tailrace", "bench", "cache", "--quick", "--repeats", "2", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=230, check=False, env=environment)
    return done.returncode, done.stdout, done.stderr


def only(folder: Path, *programs: str) -> str:
    """A PATH with these programs and no others."""
    for program in programs:
        found = shutil.which(program)
        assert found
        (folder / program).symlink_to(found)
    return str(folder)


@needs_all
def test_every_case_has_figures_of_both_peers_and_ours() -> None:
    code, out, err = run("--json")
    assert code == 0, err
    result: dict[str, Any] = json.loads(out)
    summary, spread = result["summary"], result["spread"]
    for case in CASES:
        assert set(result["counted"][case]) == set(PEERS.values())
        for peer in PEERS.values():
            clients = result["counted"][case][peer]
            assert len(clients) == 2
            assert all(client.startswith(peer) and result["tried"][case][client] > 0 for client in clients)
            for measure in ("ops_per_s", "tcp_ops_per_s", "p50_us", "p99_us", "server_cpu_us_per_op", "cpu_us_per_op"):
                low, high = spread[f"{case}_{peer}_{measure}"]
                assert 0 < low <= summary[f"{case}_{peer}_{measure}"] <= high
            assert summary[f"{case}_{peer}_p50_us"] <= summary[f"{case}_{peer}_p99_us"]
        for ours in OURS:
            for measure in ("ops_per_s", "p50_us", "p99_us", "cpu_us_per_op", "vs_best_peer", "vs_ideal_client"):
                assert summary[f"{case}_{ours}_{measure}"] > 0
    for case in CASES[:6]:
        assert summary[f"{case}_memcpy_vs_best_peer"] > 0
        assert all(summary[f"{case}_{ours}_of_{limit}"] > 0 for ours in OURS for limit in ("memcpy", "loopback"))
        for run_ in result["runs"]:
            best = max(run_[f"{case}_{peer}_ops_per_s"] for peer in PEERS.values())
            ratio = run_[f"{case}_shm_ops_per_s"] / best
            assert run_[f"{case}_shm_vs_best_peer"] == pytest.approx(ratio, rel=1e-2)
    for figure in ("shm_get_vs_best_peer", "shm_get_of_memcpy", "tcp_get_vs_best_peer", "set_vs_best_peer"):
        assert summary[figure] > 0
    assert summary["shm_server_cpu_us_per_op"] >= 0
    assert result["missing"] == []
    # What is called shared memory was read there, and what is called TCP came through engines.
    assert set(result["ours"]) == set(OURS)
    for ours, counts in result["ours"].items():
        assert counts["hits"] > 0
        assert (counts["scan_reads"] > 0) == ours.startswith("tcp")


@needs_all
def test_people_get_a_table() -> None:
    code, out, err = run()
    assert code == 0, err
    assert "shm_get_vs_best_peer" in out
    assert "at most 0.05" in out
    assert all(case in out for case in CASES)


@pytest.mark.skipif(not INSTALLED, reason="memcached or redis-server is to be installed (apt)")
def test_one_missing_peer_is_named_with_its_package_and_the_other_is_measured(tmp_path: Path) -> None:
    there, missing = INSTALLED[0], next(program for program in PEERS if program != INSTALLED[0])
    code, out, err = run("--json", path=only(tmp_path, there))
    assert code == 0, err
    result = json.loads(out)
    assert len(result["missing"]) == 1
    assert f"{missing} is not on the PATH" in err
    assert f"apt install {missing}" in result["missing"][0]
    assert result["summary"]["shm_get_vs_best_peer"] > 0
    assert not any(PEERS[missing] in figure for figure in result["summary"])


def test_without_any_peer_it_says_what_to_install(tmp_path: Path) -> None:
    code, out, err = run(path=str(tmp_path))
    assert code == 2
    assert "apt install memcached redis-server" in err
    assert "Traceback" not in out + err
