"""Processes below our own, by what they run: those that a test may kill."""

import os
from collections.abc import Iterator
from pathlib import Path


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def descendants(word: str, ancestor: int | None = None) -> Iterator[int]:
    """Those whose command line has the word, below this process or another one."""
    root = ancestor or os.getpid()
    for name in os.listdir("/proc"):
        if name.isdigit() and word in _command(int(name)):
            pid: int | None = int(name)
            while pid is not None and pid > 1 and pid != root:
                pid = _parent(pid)
            if pid == root and int(name) != root:
                yield int(name)
