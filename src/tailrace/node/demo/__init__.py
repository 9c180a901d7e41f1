"""The demo: the whole story on one machine, chapter by chapter, with a verdict at the end."""

import json as json_format
import os
import sys
import tempfile
from collections.abc import Callable, Sequence

from ...errors import ConfigError
from .chapter import Chapter, Told
from .view import View


def run(seconds: float = 10.0, view: bool = True, json: bool = False, only: Sequence[str] = ()) -> int:
    """Tell the chapters, each for about so many seconds; 0 if everything was as promised, else 1."""
    chosen = choose(only)
    live = view and not json and sys.stdout.isatty()

    def write(line: str) -> None:
        print(line, file=sys.stderr if json else sys.stdout, flush=True)

    told: dict[str, Told] = {}
    left_out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="tailrace-demo-") as folder:
        for number, chapter in enumerate(chosen, start=1):
            write(f"{'' if number == 1 else chr(10)}Chapter {number} of {len(chosen)}: {chapter.title}")
            if why := chapter.absent():
                left_out[chapter.name] = why
                write(f"  left out: {why}")
                continue
            try:
                told[chapter.name] = _tell(chapter, os.path.join(folder, chapter.name), seconds, live, write)
            except KeyboardInterrupt:
                return 130
    problems = [problem for one in told.values() for problem in one.problems]
    if json:
        figures = {name: {"problems": one.problems, **one.figures} for name, one in told.items()}
        print(json_format.dumps({"problems": problems, "chapters": figures, "left_out": left_out}))
    return 1 if problems else 0


def choose(only: Sequence[str]) -> list[Chapter]:
    """The chapters of these names, in their own order; all, if none is named."""
    from .chapters import CHAPTERS

    known = [chapter.name for chapter in CHAPTERS]
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(f"--chapter {unknown[0]}: there are {', '.join(known)}")
    return [chapter for chapter in CHAPTERS if not only or chapter.name in only]


def _tell(chapter: Chapter, folder: str, seconds: float, live: bool, write: Callable[[str], None]) -> Told:
    os.makedirs(folder)
    shown = View(live, write)
    try:
        told = chapter.tell(folder, seconds, shown)
    finally:
        shown.close()
    for line in closing(told):
        write(line)
    return told


def closing(told: Told) -> list[str]:
    """How a chapter ends."""
    if told.problems:
        return [*told.closing, "VERDICT: NOT as promised:", *(f"  {problem}" for problem in told.problems)]
    return [*told.closing, f"VERDICT: {told.verdict}"]
