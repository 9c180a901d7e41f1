"""A file's pages in memory: what the disk cannot give is an error, and not the end of the process."""

import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tailrace.native import Pages

PAGE = mmap.PAGESIZE
BYTES = 64 * PAGE


def pages_of(path: Path, begin: int = 0, end: int = BYTES) -> Pages:
    path.write_bytes(bytes(number % 251 for number in range(BYTES)))
    with path.open("rb") as file:
        return Pages(file.fileno(), begin, end)


@pytest.mark.parametrize(("begin", "end"), [(0, BYTES), (1, BYTES - 1), (PAGE, 2 * PAGE), (3 * PAGE - 1, 3 * PAGE + 1)])
def test_a_part_of_a_file_is_looked_at_where_it_lies(tmp_path: Path, begin: int, end: int) -> None:
    pages, content = pages_of(tmp_path / "file", begin, end), bytes(number % 251 for number in range(BYTES))
    middle = (begin + end) // 2
    whole, first, last = pages.view(begin, end), pages.view(begin, middle), pages.view(middle, end)
    assert (pages.begin, pages.end) == (begin, end)
    del pages  # who looks at it keeps it
    os.unlink(tmp_path / "file")
    assert (whole, first, last) == (content[begin:end], content[begin:middle], content[middle:end])
    assert whole.readonly


def test_nothing_beside_it_can_be_looked_at(tmp_path: Path) -> None:
    pages = pages_of(tmp_path / "file", PAGE + 5, 3 * PAGE)
    assert len(pages.view(PAGE + 5, PAGE + 5)) == 0
    for begin, end in ((PAGE + 4, PAGE + 6), (2 * PAGE, 3 * PAGE + 1), (2 * PAGE, PAGE + 5)):
        with pytest.raises(ValueError, match=f"bytes {begin} to {end}"):
            pages.view(begin, end)
    with pytest.raises(ValueError, match="are none"):
        pages_of(tmp_path / "file", 5, 5)
    with pytest.raises(OSError, match="cannot be mapped"):
        Pages(-1, 0, 5)


def test_what_is_not_there_is_an_error_each_time(tmp_path: Path) -> None:
    pages = pages_of(tmp_path / "file")
    os.truncate(tmp_path / "file", BYTES // 2)
    for _ in range(3):  # the signal must not stay blocked behind the first
        with pytest.raises(OSError, match="Input/output error"):
            pages.view(0, BYTES)
        assert len(pages.view(0, BYTES // 2)) == BYTES // 2
        with pytest.raises(OSError, match="Input/output error"):
            pages.view(BYTES - 1, BYTES)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_threads_do_not_get_in_each_others_way(tmp_path: Path) -> None:
    """Some of them have the signal blocked, and still do afterwards."""
    good, bad = pages_of(tmp_path / "good"), pages_of(tmp_path / "bad")
    os.truncate(tmp_path / "bad", 0)
    wrong: list[bool] = []

    def look(pages: Pages, mask: set[signal.Signals]) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for _ in range(500):
            try:
                pages.view(0, BYTES)
                wrong.append(pages is bad)
            except OSError:
                wrong.append(pages is good)
        wrong.append(signal.pthread_sigmask(signal.SIG_BLOCK, []) != mask)

    kinds = [(pages, mask) for pages in (good, bad) for mask in (set[signal.Signals](), {signal.SIGBUS})]
    threads = [threading.Thread(target=look, args=kind) for kind in kinds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 2004
    assert not any(wrong)


def run(program: str) -> subprocess.CompletedProcess[str]:
    """A sanitizer, if there is one, is to leave the signal alone: it would be somebody who was there before."""
    options = ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "handle_sigbus=0"]))
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"ASAN_OPTIONS": options},
    )


FAULTS = "import faulthandler; faulthandler.enable()"


@pytest.mark.parametrize(
    ("before", "between", "error", "told"),
    [
        pytest.param("", "", "Input/output error", False, id="as it was"),
        pytest.param(FAULTS, "", "Input/output error", True, id="somebody before us"),
        pytest.param("", FAULTS, "Operation not supported", True, id="somebody after us"),
        pytest.param(FAULTS, "faulthandler.disable()", "Operation not supported", False, id="somebody who has gone"),
    ],
)
def test_a_fault_of_others_is_left_to_them(tmp_path: Path, before: str, between: str, error: str, told: bool) -> None:
    """And where the signal has become somebody else's, nothing is looked at."""
    program = f"""{before}
import mmap, os
from tailrace.native import Pages
path = {str(tmp_path / "file")!r}
with open(path, "wb") as file:
    file.write(bytes(4 * mmap.PAGESIZE))
with open(path, "rb") as file:
    pages = Pages(file.fileno(), 0, 4 * mmap.PAGESIZE)
memory = pages.view(0, 4 * mmap.PAGESIZE)
{between}
os.truncate(path, 0)
try:
    pages.view(0, 4 * mmap.PAGESIZE)
except OSError as seen:
    print(seen.args[1].rpartition(": ")[2], flush=True)
memory[0]
print("unreachable", flush=True)
"""
    done = run(program)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, f"{error}\n")
    assert ("Bus error" in done.stderr) == told


def test_a_signal_that_was_sent_ends_the_process_as_ever() -> None:
    program = """
import os, signal
from tailrace.native import Pages
with open("/proc/self/exe", "rb") as file:
    Pages(file.fileno(), 0, 100).view(0, 100)
os.kill(os.getpid(), signal.SIGBUS)
print("unreachable", flush=True)
"""
    done = run(program)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "")
