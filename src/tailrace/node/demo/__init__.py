"""The demo: the whole story on one machine, with a verdict at the end."""

import json as json_format
import sys
import tempfile
from dataclasses import asdict

from .story import Outcome, Story
from .view import View


def run(seconds: float = 20.0, view: bool = True, json: bool = False) -> int:
    """Tell the story for about so many seconds; 0 if every flushed message arrived in order, else 1."""
    live = view and not json and sys.stdout.isatty()

    def write(line: str) -> None:
        print(line, file=sys.stderr if json else sys.stdout, flush=True)

    with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder:
        shown = View(live, write)
        try:
            outcome = Story(folder, seconds, shown).tell()
        except KeyboardInterrupt:
            return 130
        finally:
            shown.close()
    if json:
        print(json_format.dumps(asdict(outcome)))
    else:
        for line in _closing(outcome):
            write(line)
    return 1 if outcome.problems else 0


def _closing(outcome: Outcome) -> list[str]:
    lines = [
        "",
        f"{outcome.flushed:,} messages flushed in {outcome.seconds:.0f} s, {outcome.delivered:,} delivered",
        f"delivery delay p50 {outcome.delay_p50_ms:.1f} ms, p99 {outcome.delay_p99_ms:.1f} ms",
        f"after kill -9: producer back in {outcome.producer_back_s:.2f} s, consumer in {outcome.consumer_back_s:.2f} s",
        f"verify: {outcome.files_checked} files, {outcome.messages_checked:,} messages, checksums good",
    ]
    if outcome.problems:
        return [*lines, "VERDICT: NOT as promised:", *(f"  {problem}" for problem in outcome.problems)]
    return [*lines, "VERDICT: every flushed message reached every consumer, in order, none missing."]
