"""Ours, the peers that can be had and the machine's own limits, with more and more consumers, in one run.

What is compared: N processes, each a consumer of the same stream of 1 KB messages, on the machine of the producer and
of the servers. Within a repeat all systems take turns at each N, and ratios are made within a repeat. One round with
few consumers is run first and thrown away: programs that compile themselves while they run are slow in it.

How it is fair to the peers: their clients are the leanest there are, and count messages without looking at them where
the protocol allows it, as ours does; where a peer cannot be told to sync as often as ours, it syncs less.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any, TypeVar

from ....errors import ConfigError
from ..peers.server import PeerFailed, PeerMissing
from ..report import result
from ..score import OTHERS, OTHERS_MAX
from ..system import machine_cpu_s
from .cell import Amounts, Cell, Delays, Held, measure, measure_held, typical, typical_held
from .contender import Contender, Entry
from .idle import IdleAmounts, idle_core_pct
from .memcpy import Memcpy
from .message import MESSAGE_BYTES
from .ours import Abroad, Ours, Reading, Wire
from .peers.install import Installer
from .peers.kafka import Kafka
from .peers.nats import Nats
from .peers.rabbitmq import RabbitStreams
from .peers.redis_streams import RedisStreams
from .score import DELAY_CONSUMERS, Figures, at_full_speed, figures_of, headline_of, idle_figure
from .wake import Wake

CONSUMERS = (1, 4, 16, 64, 256)
CONSUMERS_QUICK = (1, 2)
CONSUMERS_MAX = 1000
_WARM_UP_CONSUMERS = 2
_IDLE_QUICK = IdleAmounts(consumers=3, settle_s=0.5, idle_s=0.5)
_QUICK = Amounts(rate_per_s=50, busy_rate_per_s=200, delay_s=0.4, rounds=1, warm_s=0.2, full_s=0.4, catch_up_s=3.0)
Progress = Callable[[str], None]
_Found = TypeVar("_Found")


def run(
    peers_folder: str,
    *,
    repeats: int = 1,
    consumers: Sequence[int] = CONSUMERS,
    directory: str | None = None,
    progress: Progress = lambda line: None,
    quick: bool = False,
) -> dict[str, Any]:
    """`peers_folder` keeps what was fetched. `quick` shrinks every amount and fetches nothing: good only to see that it
    runs."""
    with ExitStack() as stack:
        folder = tempfile.mkdtemp(prefix="tailrace-fanout-", dir=directory)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        installer = Installer(peers_folder, fetch=not quick, progress=progress)
        amounts, idle = (_QUICK, _IDLE_QUICK) if quick else (Amounts(), IdleAmounts())
        contest = _Contest(folder, installer, stack, progress, amounts, idle)
        if not quick:
            contest.warm_up()
        runs = []
        for repeat in range(repeats):
            progress(f"repeat {repeat + 1} of {repeats}")
            runs.append(contest.repeat(sorted(set(consumers))))
        rates = {"messages/s for delay": amounts.rate_per_s, "messages/s for delay, busy": amounts.busy_rate_per_s}
        settings = {"message bytes": MESSAGE_BYTES, **rates, "quick": quick}
        # Of a peer that failed on the way, only what all repeats have.
        kept = [figure for figure in runs[0] if all(figure in one for one in runs)]
        measured = result(kept, [{figure.name: one[figure] for figure in kept} for one in runs], settings)
        if (others := measured["summary"][OTHERS.name]) > OTHERS_MAX:
            progress(f"others took {others:.0%} of this machine meanwhile: run it again when it is quiet")
        measured["summary"]["peers"] = {peer.name: peer.version for peer in contest.peers}
        policies = {one.name: one.policy for one in [contest.ours, *contest.abroad, *contest.peers]}
        return {**measured, "missing": contest.missing, "failed": contest.failed, "policies": policies}


class _Contest:
    """Everybody who takes part, with servers that wait."""

    def __init__(
        self,
        folder: str,
        installer: Installer,
        stack: ExitStack,
        progress: Progress,
        amounts: Amounts,
        idle_amounts: IdleAmounts,
    ) -> None:
        self._progress, self.amounts, self._idle_amounts = progress, amounts, idle_amounts
        self._crews_s = 0.0
        self.missing: list[str] = []
        self.failed: list[str] = []
        self.peers: list[Contender] = []
        for entry in (
            Entry("kafka", lambda: Kafka(folder, installer)),
            Entry("nats", lambda: Nats(folder, installer)),
            Entry("rabbitmq", lambda: RabbitStreams(folder, installer)),
            Entry("redis", lambda: RedisStreams(folder, installer)),
        ):
            progress(f"starting {entry.name}")
            try:
                peer = entry.start()
            except (PeerMissing, PeerFailed) as seen:
                self.missing.append(f"{entry.name}: {seen}")
                progress(self.missing[-1])
                continue
            stack.callback(peer.close)
            self.peers.append(peer)
        if not self.peers:
            raise ConfigError(f"there is nobody to compare with. {'; '.join(self.missing)}")
        self.ours, self._memcpy = Ours(folder, version("tailrace")), Memcpy()
        self._reading, self._wake = Reading(folder, version("tailrace")), Wake(folder)
        self.abroad = []
        for ambassador in (False, True):
            self.abroad.append(Abroad(folder, version("tailrace"), ambassador=ambassador))
            stack.callback(self.abroad[-1].close)
        self._wire = Wire(self.abroad[0])

    def warm_up(self) -> None:
        self._progress("warm-up, not counted")
        for contender in [self.ours, *self.abroad, *self.peers]:
            self._cell(contender, _WARM_UP_CONSUMERS, self.amounts)

    def repeat(self, numbers: Sequence[int]) -> Figures:
        spent_s, (busy_s, all_s) = self._spent_s(), machine_cpu_s()
        cells: dict[str, dict[int, Cell]] = {}
        for consumers in numbers:
            for contender in [self._memcpy, self.ours, self._reading, *self.abroad, *self.peers]:
                self._progress(f"{consumers} consumers: {contender.name}")
                if cell := self._cell(contender, consumers, self.amounts):
                    cells.setdefault(contender.name, {})[consumers] = cell
        many = headline_of(numbers)
        for name, held in self._held(many).items():
            of_it = cells.setdefault(name, {})
            of_it[many] = replace(of_it.get(many, Cell(many, None, None, 0.0)), held=held)
        crowd = DELAY_CONSUMERS if max(numbers) > DELAY_CONSUMERS else max(numbers)
        quiet, busy = (self._crowd(crowd, rate) for rate in (self.amounts.rate_per_s, self.amounts.busy_rate_per_s))
        for name in quiet | busy:
            of_it = cells.setdefault(name, {})
            cell = of_it.get(crowd, Cell(crowd, None, None, 0.0))
            of_it[crowd] = replace(cell, delays=quiet.get(name), busy=busy.get(name))
        worked, everything = (now - before for now, before in zip(machine_cpu_s(), (busy_s, all_s), strict=True))
        others = max(0.0, worked - (self._spent_s() - spent_s)) / everything
        if not at_full_speed(cells):
            raise PeerFailed(f"nothing could be measured. {'; '.join(self.failed)}")
        syncing = [peer.name for peer in self.peers if peer.syncs]
        compared = figures_of(cells, [peer.name for peer in self.peers], syncing)
        return {**compared, **self._idle(), OTHERS: others}

    def _idle(self) -> Figures:
        amounts = self._idle_amounts
        self._progress(f"{amounts.consumers} consumers that wait: {self.ours.name}")
        try:
            return {idle_figure(amounts.consumers): idle_core_pct(self.ours, amounts)}
        except PeerFailed as seen:
            self.failed.append(f"{amounts.consumers} idle consumers: {seen}")
            return {}

    def _crowd(self, consumers: int, rate_per_s: float) -> dict[str, Delays]:
        """Delays alone, by system."""
        amounts = replace(self.amounts, rate_per_s=rate_per_s)

        def delays(contender: Contender) -> Delays | None:
            cell = self._cell(contender, consumers, amounts, full=False)
            return None if cell is None else cell.delays

        found = self._in_turns(
            [self._wake, self.ours, *self.abroad, *self.peers],
            f"{consumers} consumers, {rate_per_s:g} messages/s",
            delays,
        )
        return {name: typical(several) for name, several in found.items()}

    def _held(self, consumers: int) -> dict[str, Held]:
        """What the way to its consumers brings, by system."""

        def held(contender: Contender) -> Held | None:
            cell = self._tried(partial(measure_held, contender, consumers, self.amounts), consumers)
            return None if cell is None else cell.held

        found = self._in_turns([self._wire, *self.peers], f"{consumers} consumers, the producer waits for them", held)
        return {name: typical_held(several) for name, several in found.items()}

    def _in_turns(
        self, contenders: Sequence[Contender], what: str, measured: Callable[[Contender], _Found | None]
    ) -> dict[str, list[_Found]]:
        """By system: everybody in turn, several times. Who comes behind whom differs from round to round: a system that
        has just written a lot leaves work behind. Who fails in one round has no figure at all."""
        rounds = self.amounts.rounds
        found: dict[str, list[_Found]] = {}
        for number in range(rounds):
            for contender in contenders if number % 2 == 0 else reversed(contenders):
                self._progress(f"{what}, round {number + 1} of {rounds}: {contender.name}")
                if (one := measured(contender)) is not None:
                    found.setdefault(contender.name, []).append(one)
        return {name: several for name, several in found.items() if len(several) == rounds}

    def _cell(self, contender: Contender, consumers: int, amounts: Amounts, *, full: bool = True) -> Cell | None:
        return self._tried(
            partial(measure, contender, consumers, amounts, delays=contender.delays, full=full), consumers
        )

    def _tried(self, attempt: Callable[[], Cell], consumers: int) -> Cell | None:
        try:
            cell = attempt()
        except PeerFailed as seen:
            # One cell less, and it is said; the others are worth having.
            self.failed.append(f"{consumers} consumers: {seen}")
            self._progress(self.failed[-1])
            return None
        self._crews_s += cell.cpu_s
        return cell

    def _spent_s(self) -> float:
        """CPU time of this benchmark with its processes and all servers, so far."""
        return time.process_time() + self._crews_s + sum(one.server_cpu_s() for one in [*self.abroad, *self.peers])
