"""Run every benchmark and write JSON and a table to bench/results/: what the figures in the README come from."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tailrace.errors import ConfigError
from tailrace.node.bench import cache, cache_table, streams, table

RESULTS = Path(__file__).parent / "results"
BENCHES: dict[str, tuple[Callable[..., dict[str, Any]], Callable[[dict[str, Any]], list[Table]]]] = {
    "streams": (streams.run, lambda result: [table(result)]),
    "cache": (cache.run, cache_table.tables),
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
