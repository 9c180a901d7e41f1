"""The benchmark of routing runs, and says what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "routing.py"


def test_the_quick_benchmark_has_every_figure_of_its_summary() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, BENCH, "--quick"], capture_output=True, text=True, check=True, env=environment
    )
    told = json.loads(done.stdout)
    assert set(told["summary"]) == {"reroute_s", "replan_ms", "depth"}
    small = told["worlds"]["small"]
    assert (small["clusters"], small["streams"], small["shards"]) == (15, 2, 120)
    assert small["outages"]["bad_one_is_a_leaf"] == small["outages"]["tried"]
    assert all(tree["depth"] <= 4 and tree["of_a_star"] < 1 for tree in small["trees"].values())
