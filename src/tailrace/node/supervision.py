"""Keep processes running: start them, start them again when they end, stop them all.

A process that ends at once again and again is started less and less often, so that a wrong setting does not eat the
machine; one that ran for a while is started again at once.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Literal

from ..errors import ConfigError

BACK_OFF_S, BACK_OFF_S_MAX = 0.1, 5.0
STEADY_S = 10.0  # who ran for so long did not fail by starting
STOP_S = 10.0  # to end by itself when told to
RESTART_EXIT = 75  # the exit code of a process that ended in order to be started again

ProcessState = Literal["running", "waiting", "stopped"]


@dataclass(frozen=True, slots=True)
class ProcessPlan:
    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    name: str
    state: ProcessState
    pid: int | None
    restarts: int
    last_exit: int | None
    up_s: float


class BackOff:
    """When a process may be started again: pure."""

    def __init__(self) -> None:
        self._quick = 0  # ends in a row that came soon

    def ended(self, ran_s: float) -> float:
        """How long to wait."""
        self._quick = 0 if ran_s >= STEADY_S else self._quick + 1
        return 0.0 if self._quick <= 1 else min(BACK_OFF_S * 2 ** min(self._quick - 2, 20), BACK_OFF_S_MAX)


class _Child:
    def __init__(self, plan: ProcessPlan) -> None:
        self.plan = plan
        self.back_off = BackOff()
        self.process: subprocess.Popen[bytes] | None = None
        self.started_s = 0.0
        self.due_s = 0.0
        self.restarts = -1
        self.last_exit: int | None = None


class Supervisor:
    """`logs`: a folder for what each process writes; None: it goes where ours goes."""

    def __init__(
        self, plans: Sequence[ProcessPlan], *, logs: str | None = None, environment: Mapping[str, str] | None = None
    ) -> None:
        if len({plan.name for plan in plans}) != len(plans):
            raise ConfigError("two processes have the same name")
        self._children = [_Child(plan) for plan in plans]
        self._replaced = False
        self._logs, self._environment = logs, {**os.environ, **(environment or {})}
        if logs is not None:
            os.makedirs(logs, exist_ok=True)

    def replace(self, plans: Sequence[ProcessPlan]) -> None:
        """Keep these from now on. Who is to run with other arguments is started again; who is not among them ends."""
        known = {child.plan.name: child for child in self._children}
        wanted = {plan.name: plan for plan in plans}
        if len(wanted) != len(plans):
            raise ConfigError("two processes have the same name")
        self._replaced = True
        gone = [child for child in self._children if wanted.get(child.plan.name) != child.plan]
        self._end(gone)
        self._children = [
            known[name] if name in known and known[name].plan == plan else _Child(plan) for name, plan in wanted.items()
        ]

    def step(self) -> bool:
        """Start what is due; whether something has changed."""
        changed, self._replaced = self._replaced, False
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                ran_s = time.monotonic() - child.started_s
                child.process, child.last_exit, changed = None, code, True
                asked = code == RESTART_EXIT
                child.due_s = time.monotonic() + (0.0 if asked else child.back_off.ended(ran_s))
            if child.process is None and time.monotonic() >= child.due_s:
                self._start(child)
                changed = True
        return changed

    def status(self) -> list[ProcessStatus]:
        now_s = time.monotonic()
        return [
            ProcessStatus(
                child.plan.name,
                "running" if child.process is not None else "waiting",
                None if child.process is None else child.process.pid,
                max(child.restarts, 0),
                child.last_exit,
                now_s - child.started_s if child.process is not None else 0.0,
            )
            for child in self._children
        ]

    def stop(self) -> None:
        """Tell all of them to end, and end those that do not."""
        self._end(self._children)

    def _end(self, children: Sequence[_Child]) -> None:
        alive = [child.process for child in children if child.process is not None]
        for process in alive:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        end_s = time.monotonic() + STOP_S
        for process in alive:
            try:
                process.wait(max(0.0, end_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in children:
            child.process, child.due_s = None, float("inf")

    def _start(self, child: _Child) -> None:
        child.started_s = time.monotonic()
        child.restarts += 1
        log = self._log(child.plan.name)
        try:
            # A group of its own: Ctrl-C is for us, and we tell them.
            child.process = subprocess.Popen(
                child.plan.arguments, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        except OSError as seen:
            raise ConfigError(f"{child.plan.name} cannot be started: {seen}") from None
        finally:
            if log is not None:
                log.close()

    def _log(self, name: str) -> IO[bytes] | None:
        return None if self._logs is None else open(os.path.join(self._logs, f"{name}.log"), "ab")
