"""Streams on one machine: processes start, two are killed with SIGKILL in the middle, and the books are closed at the
end."""

import time
from dataclasses import asdict, dataclass

from ....config import MIB
from ....streams import Checked, verify_shard
from ...world import open_world
from ..chapter import Chapter, Notes, Told
from ..view import Picture, View
from .cast import Cast

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


class Story:
    def __init__(self, folder: str, seconds: float, view: View) -> None:
        self._folder, self._seconds, self._view = folder, seconds, view
        self._notes, self._running_s = Notes(), 0.0
        self._cast = Cast(self._show)
        self._picture = Picture(rows=self._cast.rows, notes=self._notes.lines)

    def tell(self) -> Outcome:
        cast = self._cast
        with open_world(self._folder) as world:
            world.create_stream(STREAM, shards=SHARDS, file_bytes=2 * MIB)
        try:
            for name, shards in _PRODUCERS.items():
                cast.start(name, ["producer", self._folder, STREAM, shards, str(_RATE)])
            for name in _CONSUMERS:
                cast.start(name, ["consumer", self._folder, STREAM, name])
            while any(actor.first_word_s is None for actor in cast.actors.values()):
                cast.listen(0.05)
                cast.check_alive()
            self._running_s = self._notes.elapsed_s
            self._watch_until(0.35 * self._seconds)
            producer_back_s = self._kill_and_restart("producer-1", "its unflushed messages die with it")
            self._watch_until(0.65 * self._seconds)
            consumer_back_s = self._kill_and_restart("consumer-2", "it will go on from its checkpoint")
            self._watch_until(self._seconds)
            self._notes.add("the producers stop; the consumers read what is left")
            cast.stop(list(_PRODUCERS))
            self._drain()
            cast.stop(_CONSUMERS)
        finally:
            cast.end_all()
        checked, damage = self._verify()
        return Outcome(
            problems=cast.ledger.verdict(_CONSUMERS) + damage,
            seconds=self._notes.elapsed_s,
            flushed=cast.ledger.flushed_total(),
            delivered=sum(sum(seen.values()) for seen in cast.ledger.seen.values()),
            delay_p50_ms=cast.delays.percentile_ms(50),
            delay_p99_ms=cast.delays.percentile_ms(99),
            producer_back_s=producer_back_s,
            consumer_back_s=consumer_back_s,
            files_checked=checked.files,
            messages_checked=checked.messages,
        )

    def _kill_and_restart(self, name: str, remark: str) -> float:
        """Seconds from the kill until the one that took its place does its work."""
        self._notes.add(f"kill -9 of {name} (pid {self._cast.actors[name].process.pid}): {remark}")
        killed_s = time.monotonic()
        self._cast.kill(name)
        successor = self._cast.start(name, self._cast.actors[name].command)
        while successor.first_word_s is None:
            self._cast.check_alive()
            self._cast.listen(0.05)
        back_s = successor.first_word_s - killed_s
        self._notes.add(f"{name} is back as pid {successor.process.pid}, {back_s:.2f} s after the kill")
        return back_s

    def _watch_until(self, since_running_s: float) -> None:
        while self._notes.elapsed_s < self._running_s + since_running_s:
            self._cast.listen(0.05)
            self._cast.check_alive()

    def _drain(self) -> None:
        deadline_s = time.monotonic() + _DRAIN_DEADLINE_S
        while any(self._cast.ledger.behind(_CONSUMERS).values()) and time.monotonic() < deadline_s:
            self._cast.listen(0.05)
            self._cast.check_alive()

    def _show(self) -> None:
        self._picture.elapsed_s = self._notes.elapsed_s
        self._picture.flushed = self._cast.ledger.flushed_total()
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
