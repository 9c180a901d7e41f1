"""The processes of a chapter: they tell what happened to them as lines of JSON, and the books are kept by what they
tell."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ....streams import Delays
from ..view import Row
from .ledger import Began, Broke, Event, Flushed, Ledger, Saw

_RATE_S = 0.2  # words that come at once, after a pause, say nothing of the rate
_WORKER = "tailrace.node.demo.chapters.worker"


@dataclass(slots=True)
class Actor:
    """One of the processes, and the one that took its place after a kill."""

    row: Row
    command: list[str]
    process: subprocess.Popen[bytes]
    rest: bytes = b""  # of the last line, until its end comes
    totals: list[tuple[float, int]] = field(default_factory=list)  # (time, messages), for the rate
    before: int = 0  # messages of incarnations that were killed
    delays: Delays = field(default_factory=Delays)  # of all its messages
    first_word_s: float | None = None
    ended: bool = False  # it will say no more


class Cast:
    """`changed` is called whenever there may be something new to see."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.ledger, self.delays = Ledger(), Delays()
        self.actors: dict[str, Actor] = {}
        self.rows: list[Row] = []
        self._selector = selectors.DefaultSelector()

    def start(self, name: str, command: list[str]) -> Actor:
        process = subprocess.Popen(
            [sys.executable, "-m", _WORKER, *command], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        row = Row(name, process.pid)
        actor = Actor(row, command, process)
        if name in self.actors:
            actor.before = self.actors[name].row.total
            row.total = actor.before
            self.rows[[r.name for r in self.rows].index(name)] = row
        else:
            self.rows.append(row)
        self.actors[name] = actor
        self._selector.register(process.stdout, selectors.EVENT_READ, actor)
        return actor

    def kill(self, name: str) -> None:
        """With SIGKILL. What it said before it died counts, and comes before what its successor says."""
        victim = self.actors[name]
        victim.process.kill()
        victim.process.wait()
        victim.row.state = "killed -9"
        while not victim.ended:
            self.listen(0.05)

    def stop(self, names: Sequence[str]) -> None:
        """Ask them to end, and hear them out."""
        for name in names:
            self.actors[name].process.send_signal(signal.SIGTERM)
        while not all(self.actors[name].ended for name in names):
            self.listen(0.05)

    def end_all(self) -> None:
        for actor in self.actors.values():
            if actor.process.poll() is None:
                actor.process.kill()
            actor.process.wait()
            assert actor.process.stdout is not None
            actor.process.stdout.close()
        self._selector.close()

    def check_alive(self) -> None:
        for actor in self.actors.values():
            if actor.ended and actor.process.returncode and actor.row.state != "killed -9":
                raise RuntimeError(f"{actor.row.name} ended by itself with code {actor.process.returncode}")

    def listen(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            actor: Actor = key.data
            assert actor.process.stdout is not None
            heard = actor.process.stdout.read()
            if heard == b"":  # it ended
                self._selector.unregister(actor.process.stdout)
                actor.process.wait()
                actor.ended = True
                if actor.row.state != "killed -9":
                    actor.row.state = "done"
                continue
            *lines, actor.rest = (actor.rest + (heard or b"")).split(b"\n")
            for line in lines:
                self._hear(actor, json.loads(line))
        self._changed()

    def _hear(self, actor: Actor, word: dict[str, Any]) -> None:
        name, now_s = actor.row.name, time.monotonic()
        for event in _events(name, word):
            self.ledger.handle(event)
        if "sent" in word:
            total = actor.before + int(word["sent"])
        elif "saw" in word:
            total = sum(word["saw"].values())
            actor.row.cluster = word.get("cluster") or ""
            delays = Delays({int(bucket): count for bucket, count in word["delays"].items()})
            self.delays.merge(delays)
            actor.delays.merge(delays)
            if delays.counts:
                actor.row.p50_ms, actor.row.p99_ms = delays.percentile_ms(50), delays.percentile_ms(99)
        else:
            return
        if actor.first_word_s is None and total > 0:
            actor.first_word_s = now_s
        if actor.row.state == "starting":
            actor.row.state = "running"
        actor.row.total = total
        actor.totals = [(s, n) for s, n in actor.totals if now_s - s < 1.0] + [(now_s, total)]
        (first_s, first), (last_s, last) = actor.totals[0], actor.totals[-1]
        if last_s - first_s >= _RATE_S:
            actor.row.rate = (last - first) / (last_s - first_s)


def _events(name: str, word: dict[str, Any]) -> list[Event]:
    events: list[Event] = []
    if "flushed" in word:
        events.append(Flushed(name, _numbers(word["flushed"])))
    if "began" in word:
        events.append(Began(name, _numbers(word["began"])))
    if "saw" in word:
        events.append(Saw(name, _numbers(word["saw"])))
    if "broke" in word:
        events.append(Broke(name, **word["broke"]))
    return events


def _numbers(table: dict[str, int]) -> dict[int, int]:
    return {int(shard): number for shard, number in table.items()}
