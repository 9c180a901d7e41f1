"""Run every benchmark and write JSON and a table to bench/results/: what the figures in the README come from."""

import json
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from rich.console import Console
from rich.table import Table

from tailrace.errors import ConfigError
from tailrace.node.bench import cache, cache_table, streams, table
from tailrace.node.bench.copytree import run as copytree
from tailrace.node.bench.fanout import run as fanout
from tailrace.node.bench.fanout import table as fanout_table
from tailrace.node.bench.spark import run as spark
from tailrace.node.bench.spark import table as spark_table

RESULTS = Path(__file__).parent / "results"
PEERS = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tailrace", "peers")
BENCHES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any]], list[Table]]]] = {
    "streams": (streams.run, lambda result: [table(result)]),
    "cache": (cache.run, cache_table.tables),
    "fanout": (partial(fanout.run, PEERS, repeats=3), fanout_table.tables),
    "copytree": (partial(copytree.run, repeats=3, directory=gettempdir(), wan_s=0.01), lambda result: [table(result)]),
    "spark": (partial(spark.run, PEERS), spark_table.tables),
}


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    for name, (run, tables) in BENCHES.items():
        print(f"bench {name}", file=sys.stderr)
        try:
            result = run(progress=lambda line: print(f"  {line}", file=sys.stderr))
        except ConfigError as seen:
            # A peer that is not installed takes its own benchmark away, not the others.
            print(f"  {name} is left out: {seen}", file=sys.stderr)
            continue
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        with (RESULTS / f"{name}.txt").open("w") as file:
            for one in tables(result):
                Console(file=file, width=200).print(one)
        for one in tables(result):
            Console().print(one)


if __name__ == "__main__":
    main()
