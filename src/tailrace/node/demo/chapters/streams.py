"""Streams on one machine: processes start, two are killed with SIGKILL in the middle, and the books are closed at the
end."""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field

from ....config import MIB
from ....streams import Checked, Delays, verify_shard
from ...world import open_world
from ..chapter import Chapter, Told
from ..view import Picture, Row, View
from .ledger import Began, Broke, Event, Flushed, Ledger, Saw

STREAM, SHARDS = "demo", 4
_PRODUCERS = {"producer-1": "0,1", "producer-2": "2,3"}
_CONSUMERS = ["consumer-1", "consumer-2", "consumer-3"]
_RATE = 20_000  # messages a second, each producer
_DRAIN_DEADLINE_S = 30.0


@dataclass(slots=True)
class Outcome:
    """What the chapter found. `problems` is empty when all went well."""

    problems: list[str]
    seconds: float
    flushed: int
    delivered: int
    delay_p50_ms: float
    delay_p99_ms: float
    producer_back_s: float
    consumer_back_s: float
    files_checked: int
    messages_checked: int


@dataclass(slots=True)
class Actor:
    """One of the story's processes, and the one that took its place after a kill."""

    row: Row
    command: list[str]
    process: subprocess.Popen[bytes]
    rest: bytes = b""  # of the last line, until its end comes
    totals: list[tuple[float, int]] = field(default_factory=list)  # (time, messages), for the rate
    before: int = 0  # messages of incarnations that were killed
    first_word_s: float | None = None
    ended: bool = False  # it will say no more


class Story:
    def __init__(self, folder: str, seconds: float, view: View) -> None:
        self._folder, self._seconds, self._view = folder, seconds, view
        self._ledger, self._delays = Ledger(), Delays()
        self._selector = selectors.DefaultSelector()
        self._actors: dict[str, Actor] = {}
        self._picture = Picture()
        self._begin_s = time.monotonic()

    def tell(self) -> Outcome:
        with open_world(self._folder) as world:
            world.create_stream(STREAM, shards=SHARDS, file_bytes=2 * MIB)
        try:
            for name, shards in _PRODUCERS.items():
                self._start(name, ["producer", self._folder, STREAM, shards, str(_RATE)])
            for name in _CONSUMERS:
                self._start(name, ["consumer", self._folder, STREAM, name])
            self._watch_until(0.35 * self._seconds)
            producer_back_s = self._kill_and_restart("producer-1", "its unflushed messages die with it")
            self._watch_until(0.65 * self._seconds)
            consumer_back_s = self._kill_and_restart("consumer-2", "it will go on from its checkpoint")
            self._watch_until(self._seconds)
            self._note("the producers stop; the consumers read what is left")
            self._stop(list(_PRODUCERS))
            self._drain()
            self._stop(_CONSUMERS)
        finally:
            self._end_all()
        checked, damage = self._verify()
        return Outcome(
            problems=self._ledger.verdict(_CONSUMERS) + damage,
            seconds=time.monotonic() - self._begin_s,
            flushed=self._ledger.flushed_total(),
            delivered=sum(sum(seen.values()) for seen in self._ledger.seen.values()),
            delay_p50_ms=self._delays.percentile_ms(50),
            delay_p99_ms=self._delays.percentile_ms(99),
            producer_back_s=producer_back_s,
            consumer_back_s=consumer_back_s,
            files_checked=checked.files,
            messages_checked=checked.messages,
        )

    # ---- processes

    def _start(self, name: str, command: list[str]) -> Actor:
        process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.node.demo.chapters.worker", *command],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        row = Row(name, process.pid)
        actor = Actor(row, command, process)
        if name in self._actors:
            actor.before = self._actors[name].row.total
            row.total = actor.before
            self._picture.rows[[r.name for r in self._picture.rows].index(name)] = row
        else:
            self._picture.rows.append(row)
        self._actors[name] = actor
        self._selector.register(process.stdout, selectors.EVENT_READ, actor)
        return actor

    def _kill_and_restart(self, name: str, remark: str) -> float:
        """Seconds from the kill until the one that took its place does its work."""
        victim = self._actors[name]
        victim.process.kill()
        victim.process.wait()
        killed_s = time.monotonic()
        victim.row.state = "killed -9"
        self._note(f"kill -9 of {name} (pid {victim.process.pid}): {remark}")
        while not victim.ended:  # what it said before it died counts, and comes before what its successor says
            self._listen(0.05)
        successor = self._start(name, victim.command)
        while successor.first_word_s is None:
            self._check_alive()
            self._listen(0.05)
        back_s = successor.first_word_s - killed_s
        self._note(f"{name} is back as pid {successor.process.pid}, {back_s:.2f} s after the kill")
        return back_s

    def _stop(self, names: list[str]) -> None:
        """Ask them to end, and hear them out."""
        for name in names:
            self._actors[name].process.send_signal(signal.SIGTERM)
        while not all(self._actors[name].ended for name in names):
            self._listen(0.05)

    def _end_all(self) -> None:
        for actor in self._actors.values():
            if actor.process.poll() is None:
                actor.process.kill()
            actor.process.wait()

    def _check_alive(self) -> None:
        for actor in self._actors.values():
            if actor.ended and actor.process.returncode:
                raise RuntimeError(f"{actor.row.name} ended by itself with code {actor.process.returncode}")

    # ---- time and events

    def _watch_until(self, elapsed_s: float) -> None:
        while time.monotonic() - self._begin_s < elapsed_s:
            self._listen(0.05)
            self._check_alive()

    def _drain(self) -> None:
        deadline_s = time.monotonic() + _DRAIN_DEADLINE_S
        while any(self._ledger.behind(_CONSUMERS).values()) and time.monotonic() < deadline_s:
            self._listen(0.05)
            self._check_alive()

    def _listen(self, timeout_s: float) -> None:
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
        self._picture.elapsed_s = time.monotonic() - self._begin_s
        self._picture.flushed = self._ledger.flushed_total()
        self._view.show(self._picture)

    def _hear(self, actor: Actor, word: dict[str, dict[str, int]]) -> None:
        name, now_s = actor.row.name, time.monotonic()
        for event in _events(name, word):
            self._ledger.handle(event)
        if "sent" in word:
            total = actor.before + int(word["sent"])  # type: ignore[call-overload]
        elif "saw" in word:
            total = sum(word["saw"].values())
            delays = Delays({int(bucket): count for bucket, count in word["delays"].items()})
            self._delays.merge(delays)
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
        actor.row.rate = (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def _note(self, text: str) -> None:
        self._picture.notes.append(f"{time.monotonic() - self._begin_s:5.1f} s  {text}")
        self._view.show(self._picture)

    def _verify(self) -> tuple[Checked, list[str]]:
        checked = Checked()
        with open_world(self._folder) as world:
            damage = [
                f"{finding.file} bytes {finding.from_byte} to {finding.to_byte}: {finding.what}"
                for shard in range(SHARDS)
                for finding in verify_shard(world.files, STREAM, shard, checked)
                if finding.kind == "damage"
            ]
        return checked, damage


def _events(name: str, word: dict[str, dict[str, int]]) -> list[Event]:
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


def tell(folder: str, seconds: float, view: View) -> Told:
    outcome = Story(folder, seconds, view).tell()
    return Told(
        problems=outcome.problems,
        closing=[
            "",
            f"{outcome.flushed:,} messages flushed in {outcome.seconds:.0f} s, {outcome.delivered:,} delivered",
            f"delivery delay p50 {outcome.delay_p50_ms:.1f} ms, p99 {outcome.delay_p99_ms:.1f} ms",
            f"after kill -9: producer back in {outcome.producer_back_s:.2f} s, consumer in "
            f"{outcome.consumer_back_s:.2f} s",
            f"verify: {outcome.files_checked} files, {outcome.messages_checked:,} messages, checksums good",
        ],
        verdict="every flushed message reached every consumer, in order, none missing.",
        figures=asdict(outcome),
    )


CHAPTER = Chapter("streams", "producers and consumers on one machine, two of them killed with kill -9", tell)
