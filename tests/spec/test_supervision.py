"""Processes that end are started again: at once if they had run for a while, else later and later."""

import sys
from pathlib import Path

import pytest

from conftest import wait_until
from tailrace.errors import ConfigError
from tailrace.node.supervision import BACK_OFF_S_MAX, STEADY_S, BackOff, ProcessPlan, Supervisor


def test_who_ends_at_once_again_and_again_waits_longer_each_time() -> None:
    back_off = BackOff()
    waits = [back_off.ended(0.1) for _ in range(20)]
    assert waits[0] == 0.0
    assert waits == sorted(waits)
    assert waits[-1] == BACK_OFF_S_MAX
    assert back_off.ended(STEADY_S) == 0.0


def test_a_process_that_ends_is_started_again(tmp_path: Path) -> None:
    script = "print('ran', flush=True)"
    supervisor = Supervisor([ProcessPlan("one", (sys.executable, "-c", script))], logs=str(tmp_path))
    try:
        wait_until(lambda: supervisor.step() and supervisor.status()[0].restarts >= 2, "two restarts")
        assert supervisor.status()[0].last_exit == 0
        assert (tmp_path / "one.log").read_text().count("ran") >= 2
    finally:
        supervisor.stop()


def test_stopping_ends_those_too_that_do_not_listen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailrace.node.supervision.STOP_S", 0.2)
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(99)"
    )
    supervisor = Supervisor([ProcessPlan("deaf", (sys.executable, "-c", deaf))], logs=str(tmp_path))
    supervisor.step()
    wait_until(lambda: "deaf" in (tmp_path / "deaf.log").read_text(), "it not to listen")
    supervisor.stop()
    assert supervisor.status()[0].pid is None
    assert not supervisor.step()


def test_what_cannot_be_started_is_said() -> None:
    with pytest.raises(ConfigError, match="cannot be started"):
        Supervisor([ProcessPlan("none", ("/nowhere/at/all",))]).step()
