"""A scheduler and the calls that readers keep open to it."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.copytree import Scheduler
from tailrace.copytree.scheduler import SILENT_S
from tailrace.files import PosixFiles
from tailrace.testing import VirtualClock, VirtualTime
from tailrace.wire import Orders, Report


@pytest.fixture
def scheduled(tmp_path: Path) -> Iterator[tuple[Scheduler, VirtualTime]]:
    time = VirtualTime()
    scheduler = Scheduler(PosixFiles(str(tmp_path)), VirtualClock(time), list)
    yield scheduler, time
    scheduler.close()


class Hanging:
    """A reader that has said what it runs, and then nothing: its call is there, and it is not."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._name, self.over, self._end = name, threading.Event(), threading.Event()
        self.heard = threading.Event()  # what it said was taken in
        self._calls = scheduler.work(self._reports())
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _reports(self) -> Iterator[Report]:
        yield Report(reader=self._name, running=())
        self.heard.set()
        self._end.wait()

    def _listen(self) -> None:
        for orders in self._calls:
            assert isinstance(orders, Orders)
        self.over.set()

    def close(self) -> None:
        self._end.set()
        self._thread.join(5.0)


def test_a_reader_that_hangs_is_given_up_when_its_reports_stay_away(scheduled: tuple[Scheduler, VirtualTime]) -> None:
    scheduler, time = scheduled
    reader = Hanging(scheduler, "r0")
    try:
        wait_until(reader.heard.is_set, "the reader")
        time.run(SILENT_S - 0.1)
        scheduler.nudge()
        assert not reader.over.is_set()
        time.run(SILENT_S + 0.1)
        scheduler.nudge()
        wait_until(reader.over.is_set, "its call to end")
        assert "r0" not in scheduler._lines
    finally:
        reader.close()
