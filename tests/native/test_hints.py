"""Words that wake: between threads and processes, and never lost between looking and sleeping."""

import os
import platform
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.native.hints import SLOTS, WAIT_MAX, Hints, Waiter, take_short_turns

LONG_S = 30.0  # nobody waits for that long unless a hint is lost
FUTEX_CALLS = {"x86_64": ("202", "449"), "aarch64": ("98", "449")}  # futex and futex_waitv


def asleep(thread: threading.Thread) -> bool:
    """In a futex, as the kernel says."""
    call = Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().split()[0]
    return call in FUTEX_CALLS[platform.machine()]


def test_what_was_raised_since_the_look_ends_the_wait_at_once(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    waiter = Waiter(hints, [3, 5])
    for slot in (3, 5):
        waiter.look()
        hints.raise_(slot)
        waiter.wait(LONG_S)
        waiter.wait(LONG_S)  # it has not looked since


def test_a_sleeper_is_woken_by_another_thread(tmp_path: Path) -> None:
    waiter, other = Waiter(Hints(tmp_path / "hints", make=True), range(WAIT_MAX)), Hints(tmp_path / "hints")
    woken = threading.Event()

    def sleep() -> None:
        waiter.wait(LONG_S)
        woken.set()

    sleeping = threading.Thread(target=sleep)
    sleeping.start()
    assert not woken.is_set()
    while not woken.wait(0.01):
        other.raise_(WAIT_MAX - 1)
    sleeping.join()


def test_other_slots_wake_nobody(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    waiter = Waiter(hints, [7])
    hints.raise_(8)
    before = os.times().elapsed
    waiter.wait(0.05)
    assert os.times().elapsed - before >= 0.03


def test_stop_ends_this_wait_and_every_other(tmp_path: Path) -> None:
    waiter = Waiter(Hints(tmp_path / "hints", make=True), [1])
    sleeping = threading.Thread(target=lambda: waiter.wait(LONG_S))
    sleeping.start()
    waiter.stop()
    sleeping.join(LONG_S / 2)
    assert not sleeping.is_alive()
    waiter.look()
    again = threading.Thread(target=lambda: waiter.wait(LONG_S))
    again.start()
    again.join(LONG_S / 2)
    assert not again.is_alive()


def test_whoever_is_stopped_just_before_it_sleeps_does_not(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    for _ in range(500):
        waiter = Waiter(hints, [1])
        sleeping = threading.Thread(target=lambda waiter=waiter: waiter.wait(LONG_S))
        sleeping.start()
        waiter.stop()
        sleeping.join(LONG_S / 2)
        assert not sleeping.is_alive()


@pytest.mark.parametrize("slots", [[1], [1, 2, 3]])
def test_whoever_is_stopped_while_it_sleeps_wakes_and_others_sleep_on(tmp_path: Path, slots: list[int]) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    stopped, other = Waiter(hints, slots), Waiter(hints, [1])
    wakes = []
    threads = [threading.Thread(target=lambda: stopped.wait(LONG_S))]
    threads.append(threading.Thread(target=lambda: wakes.append(other.wait_near(LONG_S))))
    for thread in threads:
        thread.start()
    # In this order: whoever counts as a waiter has let go of the interpreter, so it sleeps on nothing but the hint.
    wait_until(lambda: hints.waiters(1) == 2 and all(map(asleep, threads)), "both sleep")
    stopped.stop()
    threads[0].join(LONG_S / 2)
    assert not threads[0].is_alive()
    assert (asleep(threads[1]), hints.waiters(1), wakes) == (True, 1, [])
    hints.raise_(1)
    threads[1].join(LONG_S / 2)
    assert wakes == [True]


def test_whoever_is_stopped_awake_wakes_nobody(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    awake, other = Waiter(hints, [1]), Waiter(hints, [1])
    awake.stop()
    assert not other.wait_near(0.0)


def test_a_further_slot_that_was_raised_meanwhile_ends_the_next_wait_for_it(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    waiter = Waiter(hints, [1], further=[2])
    hints.raise_(2)
    assert not waiter.wait_for(0.0, further=False)
    assert waiter.wait_for(LONG_S)
    assert not waiter.wait_for(0.0)


ECHO = """
import sys
from tailrace.native.hints import Hints, Waiter
hints = Hints(sys.argv[1])
waiter = Waiter(hints, [1])
hints.raise_(2)
for _ in range(int(sys.argv[2])):
    waiter.wait(30)
    waiter.look()
    hints.raise_(2)
"""


def test_none_is_lost_between_two_processes(tmp_path: Path) -> None:
    """Each waits for the other, a thousand times: one lost hint, and both would sleep."""
    hints = Hints(tmp_path / "hints", make=True)
    waiter = Waiter(hints, [2])
    echo = subprocess.Popen([sys.executable, "-c", ECHO, str(tmp_path / "hints"), "1000"])
    try:
        waiter.wait(LONG_S)
        before = os.times().elapsed
        for _ in range(1000):
            waiter.look()
            hints.raise_(1)
            waiter.wait(LONG_S)
        assert echo.wait(LONG_S) == 0
        assert os.times().elapsed - before < LONG_S
    finally:
        echo.kill()
        echo.wait()


def test_a_sleeper_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    hints = Hints(tmp_path / "hints", make=True)
    code = "import sys; from tailrace.native.hints import *; w = Waiter(Hints(sys.argv[1]), [1]); "
    code += "print(flush=True); w.wait(60)"
    killed = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "hints")], stdout=subprocess.PIPE)
    assert killed.stdout is not None
    killed.stdout.readline()
    killed.kill()
    killed.communicate()
    waiter = Waiter(hints, [1])
    hints.raise_(1)
    waiter.wait(LONG_S)


def test_what_is_no_file_of_hints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Hints(tmp_path / "hints")
    (tmp_path / "short").write_bytes(b"x" * 100)
    with pytest.raises(OSError, match="Invalid"):
        Hints(tmp_path / "short", make=True)
    with pytest.raises(IsADirectoryError):
        Hints(tmp_path, make=True)
    hints = Hints(tmp_path / "hints", make=True)
    for slots in ([], [-1], [SLOTS], range(WAIT_MAX + 1)):
        with pytest.raises(ValueError, match="slots"):
            Waiter(hints, slots)
    with pytest.raises(ValueError, match="slot 1024"):
        hints.raise_(SLOTS)
    assert (tmp_path / "hints").stat().st_size == 64 * SLOTS


def test_short_turns_are_one_threads_own_and_change_nothing_else() -> None:
    seen: list[tuple[int, int, str]] = []

    def look() -> None:
        slice_ns = None
        if os.path.exists("/proc/self/sched"):
            with open(f"/proc/self/task/{threading.get_native_id()}/sched", encoding="ascii") as file:
                slice_ns = re.search(r"^se\.slice\s*:\s*(\d+)$", file.read(), re.MULTILINE)
        nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        seen.append((os.sched_getscheduler(0), nice, slice_ns[1] if slice_ns else "unknown"))

    def run() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 3)
        assert take_short_turns()
        look()
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        assert take_short_turns()  # which is not for such as this
        look()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    look()
    (short, batch, other), version = seen, tuple(map(int, platform.release().split(".")[:2]))
    assert short[:2] == (os.SCHED_OTHER, 3)
    assert batch[:2] == (os.SCHED_BATCH, 3)
    assert other[0] == os.SCHED_OTHER
    if version >= (6, 12) and short[2] != "unknown":
        assert (short[2] == "100000", other[2] == "100000") == (True, False)
