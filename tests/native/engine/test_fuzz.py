"""The fuzz driver of engine and link finds nothing in a short run, and a case can be run alone."""

import os
import subprocess
import sys
from pathlib import Path

import tailrace

DRIVER = Path(__file__).resolve().parents[2] / "fuzz" / "fuzz_engine.py"


def fuzz(*arguments):
    command = [sys.executable, str(DRIVER), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(tailrace.__file__).parents[1])}  # the same Tailrace as here
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_a_short_run_finds_nothing():
    run = fuzz("--seconds", 5)
    assert run.returncode == 0, run.stderr
    assert "no failure" in run.stdout
    print(run.stdout)


def test_one_case_can_be_run_alone():
    for number in range(3):
        assert fuzz("--seed", 1, "--only", number).returncode == 0
