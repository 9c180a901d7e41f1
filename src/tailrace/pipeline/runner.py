"""One process of a site, at work until it is told to stop: the threads around the steps of `site.py`.

Four things go on side by side: telling that we live; tracking and creating; work (pull, process, commit, publish); and
looking after what others left. Whatever goes wrong in a step is told, and the step is tried again.
"""

import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from ..env import Clock
from ..errors import CoordinationError, LeaseExpired, TailraceError
from .failure import Failure
from .forecast import Arrivals, Speed, Staffing, slots_needed
from .ledger import LayoutChanged, NotAlive
from .settings import PipelineConfig
from .site import Site
from .staging import staged_name
from .state import Membership
from .unit import Unit
from .usage import Usage
from .work import Done, Failed, Result, Task
from .workers import Elastic, Worker

_RATE_S = 10.0  # over which rates are told
_TEND_S = 1.0  # how often others' leftovers are looked at
_DELAYS = 2000  # the newest delays that are kept
_JITTER = 0.2  # of pauses
_AGAIN_S = 0.1  # before a store that did not answer is asked again
_COMMIT_S = 0.05  # results that come closer together are committed together


T = TypeVar("T")


class Runner:
    def __init__(
        self,
        site: Site,
        worker: Worker,
        clock: Clock,
        *,
        on_problem: Callable[[str], None] = lambda text: None,
        on_change: Callable[[], None] = lambda: None,
        on_floor: Callable[[Mapping[tuple[str, int], int]], None] = lambda floors: None,
    ) -> None:
        """`on_floor` is told, now and then, up to where each shard is done: what lies before may be deleted."""
        self.site, self._worker, self._clock = site, worker, clock
        self._on_problem, self._on_change, self._on_floor = on_problem, on_change, on_floor
        self._floors: Mapping[tuple[str, int], int] = {}
        self._config: PipelineConfig = site.config
        self._stop = threading.Event()
        self._work_there = threading.Event()
        self._beating = threading.Lock()
        self._delays_s: deque[float] = deque(maxlen=_DELAYS)
        self._samples: deque[tuple[float, int, int]] = deque()  # time, bytes, messages
        self._attempt = 0
        self._held: dict[str, tuple[Unit, Membership]] = {}
        self._buffer: deque[Unit] = deque()
        self._debt_s = 0.0  # until then the rate limit allows nothing
        self._told: dict[str, str] = {}
        self._moved_s, self._stuck = (
            clock.monotonic_s(),
            False,
        )  # when a unit was last begun or finished
        self._arrivals, self._speed = Arrivals(), Speed()
        self._staffing: Staffing | None = None
        if self._config.delay_goal_s is not None and isinstance(worker, Elastic):
            self._staffing = Staffing(min(self._config.slots_min, worker.slots), worker.slots)

    # ---- from outside

    def run(self, *, until_done: bool = False) -> None:
        """Work until stop(), or until all that is there has been published."""
        threads = [
            threading.Thread(target=self._repeat, args=(step, pause_s), name=f"tailrace pipeline {name}", daemon=True)
            for name, step, pause_s in (
                ("beat", self._beat, self._config.lease_s / 5),
                ("track", self._track, self._config.poll_s),
                ("tend", self._tend, _TEND_S),
            )
        ]
        for thread in threads:
            thread.start()
        try:
            while not self._stop.is_set():
                self._guarded(self._work)
                if until_done and self._guarded(self.is_done):
                    break
                if not self._buffer:
                    self._clock.wait(self._work_there, self._config.poll_s)
                    self._work_there.clear()
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._worker.close()
            self._guarded(self.site.close)
            self._guarded(self.site.leave)

    def stop(self) -> None:
        """What is under way is finished first."""
        self._stop.set()
        self._work_there.set()

    def figures(self) -> dict[str, Any]:
        figures = self.site.figures
        return {
            "units": figures.units,
            "messages": figures.messages,
            "input_bytes": figures.input_bytes,
            "rows": figures.rows,
            "published": figures.published,
            "refused": figures.refused,
            "failures": figures.failures,
            "throttled": figures.throttled,
            "problems": dict(list(figures.problems.items())[:10]),
            "slots": self._worker.slots,
            "held": len(self._held),
            "stuck": self._stuck,
            "arriving_bytes_per_s": round(self._arrivals.trend.bytes_per_s, 1),
            "arriving_bytes_per_s2": round(self._arrivals.trend.slope, 1),
            "slot_bytes_per_s": self._speed.bytes_per_s,
            "delay_goal_s": self._config.delay_goal_s,
            **self._rates(),
            **delays(self._delays_s),
        }

    # ---- the four

    def _beat(self) -> None:
        with self._beating:
            stuck = self._is_stuck()
            if stuck and not self._stuck:
                self._on_problem(f"no unit was finished for {self._config.local_eta_s:g} s; others may have them now")
            try:
                self._stuck = stuck
                self.site.beat(self.figures(), stuck=stuck)
            except LeaseExpired:
                self._on_problem("this runner was not heard of for so long that others took its work; it joins again")
                self.site.rejoin()

    def _is_stuck(self) -> bool:
        """Whether it has work and does not get on with it."""
        return bool(self._held) and self._clock.monotonic_s() - self._moved_s > self._config.local_eta_s

    def _track(self) -> None:
        if self.site.track():
            self._work_there.set()
        self._arrivals.look(self._clock.monotonic_s(), self.site.ends)

    def _tend(self) -> None:
        if self.site.publish():
            self._on_change()
        self.site.collect()
        self.site.fold_usage()
        standing = self.site.standing()
        if standing.floors != self._floors:
            self._on_floor(standing.floors)
            self._floors = standing.floors
        self._staff(standing.backlog_bytes)

    def _staff(self, backlog_bytes: int) -> None:
        """As many slots as this runner's share of the work needs to hold the delay that was asked for."""
        speed, goal_s = self._speed.bytes_per_s, self._config.delay_goal_s
        if self._staffing is None or goal_s is None or not speed:
            return
        needed = slots_needed(backlog_bytes, self._arrivals.trend, speed, goal_s)
        assert isinstance(self._worker, Elastic)
        self._worker.resize(self._staffing.decide(self._clock.monotonic_s(), math.ceil(needed * self.site.share)))

    def _work(self) -> None:
        results: list[Result] = []
        committed_s = self._clock.monotonic_s()
        try:
            for result in self._worker.run(self._next_task):
                results.append(result)
                if self._clock.monotonic_s() - committed_s >= _COMMIT_S:
                    some, results = results, []
                    self._settle(some)
                    committed_s = self._clock.monotonic_s()
        finally:
            self._settle(results)
            # What somebody was at when something went wrong is nobody's now; what nobody had begun is still ours.
            self._held = {unit.id: self._held[unit.id] for unit in self._buffer}

    # ---- within work

    def _next_task(self) -> Task | None:
        if self._stop.is_set():
            return None
        if not self._buffer and self._clock.monotonic_s() >= self._debt_s:
            membership = self.site.membership
            if not self._held:
                self._moved_s = self._clock.monotonic_s()
            for unit in self.site.pull(self._worker.slots, self._held):
                self._buffer.append(unit)
                self._held[unit.id] = (unit, membership)
        if not self._buffer:
            return None
        unit = self._buffer.popleft()
        if self._config.bytes_per_s is not None:
            now_s = self._clock.monotonic_s()
            self._debt_s = max(self._debt_s, now_s) + unit.size / self._config.bytes_per_s
        self._attempt += 1
        name = staged_name(unit.id, self._held[unit.id][1].holder.runner, self._attempt)
        return Task(unit.id, unit.ranges, name, diagnose=unit.suspect or unit.failures + 1 >= self._config.attempts_max)

    def _settle(self, results: Iterable[Result]) -> None:
        by_membership: dict[str, tuple[Membership, list[tuple[Unit, Done]]]] = {}
        failed: list[tuple[Unit, Failure]] = []
        used: dict[str, Usage] = {}
        self._moved_s = self._clock.monotonic_s()
        for result in results:
            unit, membership = self._held.pop(result.unit)
            used[unit.id] = used_by(result)
            if isinstance(result, Failed):
                self._tell(unit, result.failure)
                failed.append((unit, result.failure))
            else:
                by_membership.setdefault(membership.name, (membership, []))[1].append((unit, result))
        if failed:
            self._insist(lambda: self.site.fail(failed, used))
        for membership, done in by_membership.values():
            outputs = [(unit, result.receipt) for unit, result in done]
            won = self._insist(lambda: self.site.commit(outputs, membership, used))  # noqa: B023 (called at once)
            self._count({unit.id: result for unit, result in done}, won)
            self.site.publish(won)
            now_us = self._clock.time_us()
            self._delays_s += [(now_us - unit.oldest_us) / 1e6 for unit in won]
            self._on_change()
        if self._stuck:
            self._guarded(self._beat)  # it gets on again, and is to have work at once

    def _count(self, done: Mapping[str, Done], won: Iterable[Unit]) -> None:
        figures = self.site.figures
        for unit in won:
            result = done[unit.id]
            figures.units += 1
            figures.messages += result.messages
            figures.input_bytes += result.input_bytes
            figures.rows += result.receipt["rows"]
            self._speed.done(result.input_bytes, result.cost.wall_s)
        self._samples.append((self._clock.monotonic_s(), figures.input_bytes, figures.messages))

    def _rates(self) -> dict[str, float]:
        now_s = self._clock.monotonic_s()
        samples = self._samples
        while len(samples) > 1 and now_s - samples[1][0] > _RATE_S:
            samples.popleft()
        if not samples:
            return {"bytes_per_s": 0.0, "messages_per_s": 0.0}
        first_s, first_bytes, first_messages = samples[0]
        figures, span_s = self.site.figures, max(now_s - first_s, 1.0)
        if now_s - samples[-1][0] > _RATE_S:
            return {"bytes_per_s": 0.0, "messages_per_s": 0.0}
        return {
            "bytes_per_s": (figures.input_bytes - first_bytes) / span_s,
            "messages_per_s": (figures.messages - first_messages) / span_s,
        }

    def is_done(self) -> bool:
        """Whether nothing is left of what this site can see now."""
        self.site.track()
        pages = self.site.state.pages(["shards", "units"]).values()
        if any(page.units for page in pages):
            return False
        ends = self.site.reports()
        created: dict[tuple[str, int], int] = {}
        for page in pages:
            for key, shard in page.shards.items():
                if shard.free_bytes:
                    return False
                created[key] = max(created.get(key, 0), shard.created)
        return all(not report.files or created.get(key, -1) >= report.end for key, report in ends.items())

    # ---- troubles

    def _repeat(self, step: Callable[[], None], wanted_s: float) -> None:
        while not self._stop.is_set():
            began_s = time.thread_time()
            self._guarded(step)
            # A step that costs much, as with thousands of shards, gets longer pauses, not to eat up the machine. By
            # the processor's time: one that was stopped in the middle of a step has nothing to make up for.
            # And no two alike, or the site that looks first after each of a producer's beats gets all the work.
            pause_s = max(wanted_s, 2 * (time.thread_time() - began_s))
            self._clock.wait(self._stop, pause_s * random.uniform(1 - _JITTER, 1 + _JITTER))

    def _insist(self, step: Callable[[], T]) -> T:
        """The work is done: a store that does not answer for a moment must not cost it. Up to the time when others take
        this runner for dead anyway."""
        end_s = self._clock.monotonic_s() + self._config.lease_s
        while True:
            try:
                return step()
            except LayoutChanged:
                self.site.relearn()
            except CoordinationError as problem:
                if self._clock.monotonic_s() >= end_s:
                    raise
                self._say("coordination", str(problem))
                self._clock.wait(threading.Event(), _AGAIN_S)

    def _guarded(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except LayoutChanged:
            self.site.relearn()
        except NotAlive:
            self._clock.wait(self._stop, self._config.lease_s / 10)  # the next beat joins again
        except CoordinationError as problem:
            self._say("coordination", str(problem))
            self._clock.wait(self._stop, 0.2)
        except TailraceError as problem:
            self._say(type(problem).__name__, str(problem))
            self._clock.wait(self._stop, 0.2)
        return None

    def _tell(self, unit: Unit, failure: Failure) -> None:
        places = ", ".join(map(str, failure.bad)) or ", ".join(map(str, unit.ranges[:3]))
        self._say(f"unit {failure.reason}", f"{failure.reason}: {places}")

    def _say(self, about: str, text: str) -> None:
        """Once for each new trouble, not once for each try."""
        if self._told.get(about) != text:
            if len(self._told) > 1000:
                self._told.clear()
            self._told[about] = text
            self._on_problem(text)


def used_by(result: Result) -> Usage:
    cost = result.cost
    if isinstance(result, Failed):
        return Usage(failed=1, cpu_s=cost.cpu_s, wall_s=cost.wall_s)
    rows, output_bytes = result.receipt.get("rows", 0), result.receipt.get("bytes", 0)
    return Usage(1, result.messages, result.input_bytes, rows, output_bytes, cost.cpu_s, cost.wall_s)


def delays(found: Iterable[float]) -> dict[str, float | None]:
    """How long after its oldest message was sent the output of a unit was there."""
    ordered = sorted(found)
    if not ordered:
        return {"delay_p50_s": None, "delay_p90_s": None}
    return {f"delay_p{p}_s": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 90)}
