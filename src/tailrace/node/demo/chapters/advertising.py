"""Advertising, end to end: queries and clicks in two streams; Spark cleans, joins and adds them up, exactly once;
budgets and click-through rates go into a stream that serving follows as keys and values. Spark's driver is killed in
the middle, and so is the process that publishes the budgets. The answer is compared with one made by hand."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ....errors import ConfigError
from ....pipeline import parquet
from ....pipeline.ranges import overlap
from ...world import open_world
from ..chapter import Chapter, Told
from ..view import View
from . import advertising_app as app

if TYPE_CHECKING:
    from rich.console import Group

_CAMPAIGNS = 10
_QUERIES_PER_S = 4000
_HELD_BACK = 0.4  # of all messages: they come after the kill
_DEADLINE_S = 600.0
_PATIENCE_S = 10.0  # with those who are asked to end


@dataclass(slots=True)
class Counts:
    """What is to be seen."""

    elapsed_s: float = 0.0
    notes: list[str] = field(default_factory=list)
    sent: int = 0
    units: int = 0
    clicks: int = 0
    left_cents: int = app.BUDGET_CENTS

    def line(self) -> str:
        return (
            f"{self.elapsed_s:5.1f} s  sent {self.sent:,}  units committed {self.units}  clicks counted {self.clicks:,}"
            f"  serving: campaign-3 has {self.left_cents:,} cents left"
        )

    def render(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        return Group(Text(self.line()), *(Text(note) for note in self.notes))


class Advertising:
    def __init__(self, folder: str, seconds: float, view: View, engine: str = "spark") -> None:
        self._seconds, self._view, self._engine = seconds, view, engine
        os.environ["TAILRACE_DEMO_FOLDER"] = folder
        self._picture, self._begin_s = Counts(), time.monotonic()
        self._by_hand: dict[str, list[int]] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._heard, self._seen = b"", dict[str, Any]()
        self._asked = self._clicked = self._spoilt = 0
        self._units_before: int | None = None  # when it was killed

    def tell(self) -> Told:
        with open_world(app.world_folder()) as world:
            for name, shards in (("queries", 2), ("clicks", 2), ("budgets", 1)):
                world.create_stream(name, shards=shards)
            try:
                self._start("serving", "-m", f"{__package__}.advertising_app", "serve")
                self._start("publisher", "-m", f"{__package__}.advertising_app", "publish")
                self._start_spark()
                self._note("queries and clicks begin; Spark starts")
                with (
                    world.producer("queries", buffer_s=0.05) as queries,
                    world.producer("clicks", buffer_s=0.05) as clicks,
                ):
                    began_s, total = time.monotonic(), int(self._seconds * _QUERIES_PER_S)
                    while self._units_before is None or self._asked < total:
                        now = int((time.monotonic() - began_s) * _QUERIES_PER_S)
                        self._send(queries, clicks, min(now, total if self._units_before else self._first(total)))
                        self._look()
                        if self._units_before is None and self._units():
                            self._kill()
                self._note("no more come; Spark does what is left")
                while self._seen != self._expected():
                    self._look()
            finally:
                self._end()
        return self._verdict()

    def _first(self, total: int) -> int:
        return int(total * (1 - _HELD_BACK))

    def _units(self) -> int:
        with suppress(FileNotFoundError):
            return sum(name.startswith("part-") for name in os.listdir(app.columns_folder()))
        return 0

    # ---- processes

    def _start(self, name: str, *words: str) -> None:
        self._processes[name] = subprocess.Popen(
            [sys.executable, *words],
            stdout=subprocess.PIPE if name == "serving" else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # so that a JVM can be ended with its driver
        )
        if name == "serving":
            pipe = self._processes[name].stdout
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)

    def _start_spark(self) -> None:
        words = ("pipeline", "run", f"{__package__}.advertising_app:pipeline", "--engine", self._engine)
        self._start("spark", "-m", "tailrace", *words, "--world", app.world_folder(), "--site", "here")

    def _kill(self) -> None:
        self._units_before = self._units()
        for name in ("spark", "publisher"):
            pid = self._processes[name].pid
            self._processes[name].kill()
            self._processes[name].wait()
            self._note(f"kill -9 of {name} (pid {pid}), when {self._units_before} units were committed")
        self._start("publisher", "-m", f"{__package__}.advertising_app", "publish")
        self._start_spark()
        self._note("both are started again, and more queries and clicks come")

    def _end(self) -> None:
        for process in self._processes.values():
            process.terminate()  # in order, so that caches in memory go with them
        for process in self._processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE_S)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    # ---- what is sent and seen

    def _send(self, queries: Any, clicks: Any, upto: int) -> None:
        for number in range(self._asked, upto):
            campaign = f"campaign-{number % _CAMPAIGNS}"
            sums = self._by_hand.setdefault(campaign, [0, 0, 0])
            queries.send(campaign.encode(), key=b"q%d" % number)
            sums[0] += 1
            if number * 7919 % 13 < 3:
                cents = number % 17
                clicks.send(json.dumps({"query": f"q{number}", "cents": cents}).encode())
                sums[1], sums[2] = sums[1] + 1, sums[2] + cents
                self._clicked += 1
            if number % 1000 == 0:
                clicks.send(b"{ this is no click")
                self._spoilt += 1
        self._asked = max(self._asked, upto)

    def _look(self) -> None:
        time.sleep(0.02)
        pipe = self._processes["serving"].stdout
        assert pipe is not None
        *lines, self._heard = (self._heard + (pipe.read() or b"")).split(b"\n")
        if lines:
            self._seen = json.loads(lines[-1])
        self._picture.elapsed_s = time.monotonic() - self._begin_s
        self._picture.sent = self._asked + self._clicked + self._spoilt
        self._picture.units = self._units()
        self._picture.clicks = sum(one["clicks"] for one in self._seen.values())
        self._picture.left_cents = self._seen.get("campaign-3", {}).get("left_cents", app.BUDGET_CENTS)
        self._view.show(self._picture)
        self._check()

    def _expected(self) -> dict[str, Any]:
        return {campaign: app.update(*sums) for campaign, sums in self._by_hand.items()}

    def _check(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended by itself with code {process.returncode}")
        if time.monotonic() - self._begin_s > _DEADLINE_S:
            raise RuntimeError(f"after {_DEADLINE_S:g} s serving still has {self._seen}, not {self._expected()}")

    def _note(self, text: str) -> None:
        self._picture.notes.append(f"{time.monotonic() - self._begin_s:5.1f} s  {text}")
        self._view.show(self._picture)

    # ---- the end

    def _verdict(self) -> Told:
        problems = []
        if app.totals({}, app.columns_folder()) != self._by_hand:
            problems.append("the columns do not add up to what was sent")
        outputs = list(parquet(app.columns_folder()).outputs())
        if twice := overlap([one for footer in outputs for one in footer.ranges]):
            problems.append(f"some bytes were counted twice: {twice}")
        cents = sum(sums[2] for sums in self._by_hand.values())
        seconds = time.monotonic() - self._begin_s
        one = self._seen["campaign-3"]
        return Told(
            problems,
            [
                f"{self._asked:,} queries, {self._clicked:,} clicks, {self._spoilt} spoilt lines, in {seconds:.0f} s",
                f"{len(outputs)} work units committed, each once, to Parquet files",
                f"serving sees campaign-3 with {one['left_cents']:,} cents left and a CTR of {one['ctr']:.3f}",
            ],
            f"all {self._clicked:,} clicks and {cents:,} cents were counted exactly once, through a kill -9 of Spark.",
            {
                "queries": self._asked,
                "clicks": self._clicked,
                "cents": cents,
                "units": len(outputs),
                "seconds": seconds,
            },
        )


def _absent() -> str:
    if find_spec("pyspark") is None:
        return "Spark is not installed: pip install 'tailrace[spark]'"
    from ....pipeline.spark.java import find_java

    try:
        find_java(os.environ)
    except ConfigError as missing:
        return str(missing)
    return ""


CHAPTER = Chapter(
    "advertising",
    "advertising on Spark, exactly once, though it is killed",
    lambda folder, seconds, view: Advertising(folder, seconds, view).tell(),
    _absent,
)
