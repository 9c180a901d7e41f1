"""The rolling restart's shell, with processes that are threads of the test: it is stopped, goes on, and is alone."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.coordination import Coordination, SqliteCoordination
from tailrace.copytree import change_map, report
from tailrace.env import SystemClock
from tailrace.errors import ConfigError
from tailrace.model import Cluster, WorldMap
from tailrace.node.process_registry import ProcessEntry, State, processes
from tailrace.node.rollout.run import Restarting, RollingRestart, RolloutStopped


class Supervised:
    """An entry in the registry; asked to restart, it makes room for another one, unless it hangs."""

    def __init__(self, store: Coordination, role: str, number: int, *, hangs: bool = False) -> None:
        self._store, self._role, self._number, self.hangs = store, role, number, hangs
        self.starts = 0
        self._asked = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._closed.is_set():
            self.starts += 1
            self._asked.clear()
            entry = ProcessEntry(self._store, "a", [self._role], self._number, State, self._asked.set)
            while not self._closed.is_set() and (self.hangs or not self._asked.is_set()):
                self._closed.wait(0.01)
            entry.close()

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Coordination]:
    with SqliteCoordination(tmp_path / "coordination.db") as store:
        change_map(store, lambda world, preferences: (WorldMap(clusters=(Cluster(name="a"),)), preferences))
        report(store, "a")
        yield store


@contextmanager
def running(store: Coordination, **hanging: bool) -> Iterator[dict[str, Supervised]]:
    made = {
        f"{role}-{number}": Supervised(store, role, number, hangs=hanging.get(f"{role}_{number}", False))
        for role, number in (("writer", 0), ("writer", 1), ("scheduler", 0))
    }
    try:
        wait_until(lambda: len(processes(store)) == len(made), "the entries")
        yield made
    finally:
        for one in made.values():
            one.close()


def rollout(store: Coordination, *, before_us: int | None = None, deadline_s: float = 60.0) -> RollingRestart:
    return RollingRestart(store, ["a"], {}, SystemClock(), before_us=before_us, deadline_s=deadline_s)


def ignore(step: Restarting) -> None:
    pass


def test_one_that_does_not_end_stops_it_and_the_next_goes_on(store: Coordination) -> None:
    with running(store, writer_1=True) as made:
        first = rollout(store, deadline_s=0.5)
        with pytest.raises(RolloutStopped, match=r"in vain for .*; look at .* go on with --before") as stopped:
            first.run(ignore, threading.Event())
        assert stopped.value.restarted == 1
        assert stopped.value.took_effect
        made["writer-1"].hangs = False  # what was asked of it stands for as long as the rollout lives, and no longer
        before = made["writer-0"].starts
        done = rollout(store, before_us=first.before_us).run(ignore, threading.Event())
        assert done.done
        assert made["writer-0"].starts == before  # it is new already
        assert [made[name].starts for name in ("writer-1", "scheduler-0")] == [2, 2]


def test_two_at_once_are_one_too_many(store: Coordination) -> None:
    with running(store, writer_0=True):
        stopping, told = threading.Event(), threading.Event()
        first = rollout(store)
        failed: list[BaseException] = []

        def run() -> None:
            try:
                first.run(lambda step: told.set(), stopping)
            except RolloutStopped as stopped:
                failed.append(stopped)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            wait_until(told.is_set, "the first to have begun")
            with pytest.raises(ConfigError, match="another rollout of this world is under way"):
                rollout(store).run(ignore, threading.Event())
        finally:
            stopping.set()
            thread.join()
        assert "it was told to stop" in str(failed[0])


def test_it_waits_while_the_world_is_unwell_but_not_for_what_was_so_before(store: Coordination) -> None:
    report(store, "a", late=frozenset({"old"}))
    with running(store) as made:
        one = rollout(store)
        report(store, "a", late=frozenset({"old", "new"}))
        waiting = threading.Event()

        def tell(step: Restarting) -> None:
            if "new comes late to a" in step.progress.waits_for and not waiting.is_set():
                assert all(process.starts == 1 for process in made.values())
                assert "old" not in step.progress.waits_for
                waiting.set()
                report(store, "a", late=frozenset({"old"}))

        assert one.run(tell, threading.Event()).done
        assert waiting.is_set()
        assert [process.starts for process in made.values()] == [2, 2, 2]


def test_a_world_that_does_not_run_cannot_be_rolled(store: Coordination) -> None:
    with pytest.raises(ConfigError, match="no process of a is known to run"):
        rollout(store)
