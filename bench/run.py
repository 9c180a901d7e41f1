"""Run every benchmark and write JSON and a table to bench/results/: what the figures in the README come from."""

import json
import sys
from pathlib import Path

from rich.console import Console

from tailrace.node.bench import streams, table

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    RESULTS.mkdir(exist_ok=True)
    for name, run in {"streams": streams.run}.items():
        print(f"bench {name}", file=sys.stderr)
        result = run(progress=lambda line: print(f"  {line}", file=sys.stderr))
        (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")
        with (RESULTS / f"{name}.txt").open("w") as file:
            Console(file=file, width=160).print(table(result))
        Console().print(table(result))


if __name__ == "__main__":
    main()
