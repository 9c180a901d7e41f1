"""The benchmark of the copy tree runs, and says what it should. How fast is not a matter of tests."""

import json
import subprocess
import sys
from pathlib import Path

from tailrace.node.bench.copytree.run import FIGURES


def test_the_benchmark_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tailrace", "bench", "copytree", "--quick", "--json", "--directory", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)["summary"]
    assert summary.keys() == {figure.name for figure in FIGURES}
    assert all(value > 0 for value in summary.values())
    assert not list(tmp_path.iterdir())
