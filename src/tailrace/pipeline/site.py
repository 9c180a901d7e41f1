"""The steps of one runner of a site: track, create, pull, commit, give up, publish, collect.

Each step stands for itself and leaves a state that any other runner, here or elsewhere, can go on from: a runner can be
killed between any two of them, or within one. Threads, pauses and the work itself are the runner's (`runner.py`); here
there are none, so that the same steps run in a simulation.
"""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..env import Clock
from ..errors import StreamMissing, TailraceError
from . import unit as steps
from .assignment import Health, choose
from .creator import Limits, Piece, create, cut, lost, reachable
from .epochs import Partition, runs
from .failure import BadRange, Failure, aftermath
from .ledger import Changes, Ledger, NotAlive, Page, portions
from .logs import Logs
from .settings import PipelineConfig
from .sinks import Sink
from .staging import Footer, StagedMissing, Staging, runner_of
from .state import Membership, State
from .tracking import Extent, Report, Shard, advance, base_of, track
from .unit import Unit
from .usage import Spent, Usage

_HEALTH_S = 0.5  # how old the knowledge of who is there may be
_PIECES_MAX = 64  # of one shard at a time
_NOTHING: Mapping[str, Usage] = {}


@dataclass(slots=True)
class Figures:
    """What a runner has done, for status and metrics."""

    units: int = 0
    messages: int = 0
    input_bytes: int = 0
    rows: int = 0
    published: int = 0
    refused: int = 0  # commits that came too late
    failures: int = 0
    throttled: str = ""
    problems: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Standing:
    """floors: of each shard, the position below which everything is published or given up. backlog_bytes: what is not
    committed yet, of all that is known."""

    floors: Mapping[tuple[str, int], int]
    backlog_bytes: int


class Site:
    def __init__(
        self,
        *,
        state: State,
        streams: Mapping[str, Any],
        sink: Sink,
        staging: Staging,
        logs: Logs,
        site: str,
        weight: float,
        config: PipelineConfig,
        clock: Clock,
        deterministic: bool = True,
        on_lost: Callable[[Unit], None] = lambda unit: None,
    ) -> None:
        """`streams`: where to begin in each."""
        self.state, self.site, self.config, self.figures = state, site, config, Figures()
        self._streams, self._sink, self._staging, self._logs = streams, sink, staging, logs
        self._weight, self._clock, self._deterministic, self._on_lost = weight, clock, deterministic, on_lost
        self._extents: dict[tuple[str, int], Extent] = {}
        self._told: dict[tuple[str, int], Report] = {}  # what the state knows of us already
        self._pending: dict[tuple[str, int], set[Partition]] = {}  # shards with free bytes, and where
        self._health: tuple[float, Health] | None = None
        self.draining = False
        self._owed = Usage()  # for work that came to nothing, to be noted with the next change
        self._folded_for: frozenset[str] | None = None
        self._left: set[str] = set()  # units that were to be published, and are not known to be
        self.membership = self._register()

    # ---- being there

    def _register(self) -> Membership:
        return self.state.register(self.site, self._weight, self.config.lease_s)

    def rejoin(self) -> None:
        """Under a new name, after this runner was taken for dead. What it had staged is garbage now."""
        self.membership = self._register()
        self._told.clear()
        self._health = None

    @property
    def health(self) -> Health:
        now_s = self._clock.monotonic_s()
        known = self._health  # as it is now: another thread may set it aside
        if known is None or now_s - known[0] >= _HEALTH_S:
            known = self._health = (now_s, self.state.members().health)
            self.draining = self.state.draining
        return known[1]

    def beat(self, figures: Mapping[str, Any], *, stuck: bool) -> None:
        self.membership.beat(figures, stuck=stuck)
        self._health = None

    def relearn(self) -> None:
        """The state was laid out anew: forget what was known of it."""
        self.state.refresh()
        self._told.clear()
        self._pending.clear()

    def reports(self) -> dict[tuple[str, int], Report]:
        """What this site has now, by stream and shard."""
        found: dict[tuple[str, int], Report] = {}
        for stream in self._streams:
            try:
                for shard in range(self._logs.shards(stream)):
                    found[stream, shard] = self._logs.report(self.site, stream, shard)
            except StreamMissing:
                continue
        return found

    def close(self) -> None:
        self._sink.close()

    def leave(self) -> None:
        """Be gone, and leave no account of its own behind."""
        self.membership.leave()
        self.state.fold_usage()

    # ---- tracking and creating (U3, U8)

    def track(self) -> int:
        """Look at the files, report what is new, and make units of what is free. How many were made."""
        health = self.health
        by_partition: dict[Partition, list[tuple[Report, int | None]]] = {}
        seen: dict[tuple[str, int], Report] = {}
        for stream, start in self._streams.items():
            try:
                count = self._logs.shards(stream)
            except StreamMissing as missing:
                self.figures.problems[stream] = f"{missing}"
                continue
            self.figures.problems.pop(stream, None)
            for shard in range(count):
                if (report := self._look(stream, shard, start, by_partition)) is not None:
                    seen[stream, shard] = report
        made = 0
        for partition, reports in by_partition.items():
            for some in portions(reports):
                made += self._apply(self.state.ledger(partition), some, health)
        self._told |= seen  # only now: a report counts when the state has it, and is repeated until then
        return made

    def _look(
        self, stream: str, shard: int, start: Any, by_partition: dict[Partition, list[tuple[Report, int | None]]]
    ) -> Report | None:
        key = (stream, shard)
        try:
            report = self._logs.report(self.site, stream, shard)
            self.figures.problems.pop(f"{stream}/{shard}", None)
        except TailraceError as problem:
            self.figures.problems[f"{stream}/{shard}"] = f"{problem}"
            return None
        self._extents[key] = Extent(report.begin, report.end)
        if not report.files or (self._told.get(key) == report and not self._pending.get(key)):
            return None
        epochs = self.state.layout.epochs
        parts = runs(epochs, stream, shard, report.files)
        for place, (partition, files) in enumerate(parts):
            end = base_of(parts[place + 1][1][0]) if place + 1 < len(parts) else report.end
            begin = None
            if place == 0 and partition.epoch == 0 and key not in self._told:
                begin = self._logs.start(stream, shard, start)
            by_partition.setdefault(partition, []).append((replace(report, files=tuple(files), end=end), begin))
        return report

    def _apply(self, ledger: Ledger, reports: Sequence[tuple[Report, int | None]], health: Health) -> int:
        throttled = ""

        def decide(page: Page) -> Changes:
            nonlocal throttled
            now_us = self._clock.time_us()
            shards: dict[tuple[str, int], Shard] = {}
            bad: list[BadRange] = []
            for report, start in reports:
                key = (report.stream, report.shard)
                known = page.shards.get(key)
                if known is not None and known.incarnation != report.incarnation:
                    self.figures.problems[f"{key[0]}/{key[1]}"] = (
                        f"{report.stream} was deleted and made anew; `tailrace pipeline forget` begins with the new one"
                    )
                    continue
                shard = track(known, report, start)
                for gone in lost(shard):
                    bad.append(BadRange(gone, "deleted by retention before it was processed", now_us, now_us))
                    shard = advance(shard, gone.end)
                shards[key] = shard
            units: tuple[Unit, ...] = ()
            # Who is out or stuck leaves the making to those who are up, since it would be the first to have to do it.
            if not self.draining and (health.is_up(self.site) or not health.up()):
                made = create(
                    shards,
                    self._pieces(shards.values(), page, self.config.limits),
                    list(page.units.values()),
                    self.config.limits,
                    health,
                    self.site,
                    now_us,
                )
                units, throttled = made.units, made.throttled
                shards |= {(shard.stream, shard.shard): shard for shard in made.shards}
            changed = [shard for key, shard in shards.items() if page.shards.get(key) != shard]
            return Changes(shards=changed, units=list(units), bad=bad)

        page, changes = ledger.update(decide, ("shards", "units"))
        after = {**page.shards, **{(shard.stream, shard.shard): shard for shard in changes.shards}}
        for report, _ in reports:
            key = (report.stream, report.shard)
            mine = after.get(key)
            more = mine is not None and reachable(mine, self.site)[1] > mine.created
            places = self._pending.setdefault(key, set())
            (places.add if more else places.discard)(ledger.partition)
        self.figures.throttled = throttled
        return len(changes.units)

    def _pieces(self, shards: Any, page: Page, limits: Limits) -> list[Piece]:
        """What is free and here, cut between messages; no more than can become units now."""
        room = limits.units_max - sum(unit.standing != "committed" for unit in page.units.values())
        if room <= 0:
            return []
        free = [(shard, *reachable(shard, self.site)) for shard in shards]
        free = [(shard, begin, end) for shard, begin, end in free if end > begin]
        if not free:
            return []
        # Small enough that several files share a unit, large enough that a backlog does not fall to dust.
        piece_bytes = max(1, limits.unit_bytes // min(4, len(free)))
        most = min(_PIECES_MAX, max(4, (room + 1) * 4))
        found = []
        for shard, begin, end in free:
            end = min(end, begin + piece_bytes * most)
            cuts = self._logs.cuts(shard.stream, shard.shard, begin, end, piece_bytes)
            if end < reachable(shard, self.site)[1]:
                if not cuts:
                    continue
                end, cuts = cuts[-1], cuts[:-1]
            found += [Piece(one, self._logs.time_us(one)) for one in cut(shard, cuts, end)]
        return found

    # ---- pulling and committing (U9, U10)

    def pull(self, units_max: int, busy: Container[str] = ()) -> list[Unit]:
        """The oldest units that this runner may have now, handed out to it. `busy`: those that it is at already, which
        are not taken from itself because it is late."""
        health, taken = self.health, list[Unit]()

        def has(unit: Unit) -> bool:
            return unit.id not in busy and self._has(unit)

        for partition, page in self.state.pages(["units"]).items():
            room = units_max - len(taken)
            if room <= 0:
                break
            if not page.units:
                continue

            def decide(page: Page, room: int = room) -> Changes:
                now_us, holder = self._clock.time_us(), self.membership.holder
                chosen = choose(page.units.values(), holder, now_us, health, self.config.etas, units_max=room, has=has)
                return Changes(units=[steps.handed_out(unit, holder, now_us) for unit in chosen])

            _, changes = self.state.ledger(partition).update(decide, alive=self.membership.name, page=page)
            taken += changes.units
        return sorted(taken, key=lambda unit: unit.oldest_us)

    def _has(self, unit: Unit) -> bool:
        return all(
            (extent := self._extents.get((one.stream, one.shard))) is not None and extent.covers(one)
            for one in unit.ranges
        )

    def commit(
        self,
        outputs: Sequence[tuple[Unit, Mapping[str, Any]]],
        membership: Membership,
        used: Mapping[str, Usage] = _NOTHING,
    ) -> list[Unit]:
        """Commit units with the outputs that were staged for them, in one transaction. Those that went through; the
        outputs of the others are removed. `membership`: as it was when the units were handed out. `used`: what each
        unit took, which is noted in the same transaction. After an error it may be called again: what went through
        although nobody said so is known by its receipt."""
        won: list[Unit] = []
        for ledger, some in self._by_ledger([unit for unit, _ in outputs]).items():
            receipts = {unit.id: receipt for unit, receipt in outputs if unit.id in some}

            before: dict[str, Unit] = {}

            def decide(
                page: Page,
                receipts: Mapping[str, Mapping[str, Any]] = receipts,
                before: dict[str, Unit] = before,
            ) -> Changes:
                now_us, going = self._clock.time_us(), list[Unit]()
                for name, receipt in receipts.items():
                    unit = page.units.get(name)
                    if unit is not None and unit.standing == "committed" and unit.receipt == receipt:
                        before[name] = unit
                    elif unit is not None and (next_ := steps.committed(unit, membership.holder, receipt, now_us)):
                        going.append(next_)
                spent = sum((used.get(unit.id, Usage()) for unit in going), start=self._owed)
                return Changes(units=going, spent=Spent(membership.name, spent))

            try:
                _, changes = ledger.update(decide, alive=membership.name)
                won += [*before.values(), *changes.units]
                if changes:
                    self._owed = Usage()
            except NotAlive:
                pass  # all of them are lost
        kept = {unit.id for unit in won}
        for unit, receipt in outputs:
            if unit.id not in kept:
                self.figures.refused += 1
                vain = used.get(unit.id, Usage())
                self._owed += Usage(refused=1, cpu_s=vain.cpu_s, wall_s=vain.wall_s)
                self._staging.discard(receipt["name"])
                self._on_lost(unit)
        return won

    def fail(self, failed: Sequence[tuple[Unit, Failure]], used: Mapping[str, Usage] = _NOTHING) -> None:
        """Try again, or divide, or give up (U37)."""
        for unit, failure in failed:
            self.figures.failures += 1
            self._owed += used.get(unit.id, Usage(failed=1))
            ledger = self.state.ledger_of(unit.ranges[0])

            def decide(page: Page, unit: Unit = unit, failure: Failure = failure) -> Changes:
                known = page.units.get(unit.id)
                if known is None or known.standing == "committed" or known.holder != unit.holder:
                    return Changes()  # somebody else has it now, and may have more luck
                after = aftermath(
                    known,
                    failure,
                    self.config.patience,
                    len(page.bad),
                    self._logs.middle,
                    self._clock.time_us(),
                )
                spent = Spent(self.membership.name, self._owed)
                return Changes(units=list(after.units), gone=[known], bad=list(after.bad), spent=spent)

            _, changes = ledger.update(decide, ("units", "bad"))
            if changes:
                self._owed = Usage()

    # ---- publishing (U12) and collecting (U13)

    def publish(self, committed: Sequence[Unit] | None = None) -> int:
        """Publish what is committed, then forget it. Given units are this runner's own, just committed; without them,
        those that nobody else seems to look after are taken. How many."""
        if committed is None:
            pages = self.state.pages(["units"]).values()
            committed = [unit for page in pages for unit in page.units.values() if self._is_mine(unit)]
        count = 0
        for ledger, names in self._by_ledger(committed).items():
            mine = sorted((unit for unit in committed if unit.id in names), key=lambda unit: unit.oldest_us)
            for some in portions(mine, 100):
                self._left.update(unit.id for unit in some)
                done = self._publish(ledger, some)
                self._left.difference_update(done)
                count += len(done)
        return count

    def _is_mine(self, unit: Unit) -> bool:
        if unit.standing != "committed" or unit.holder is None:
            return False
        if unit.id in self._left:
            return True  # something came between
        runners, waited_us = self.health.runners, self._clock.time_us() - unit.since_us
        return unit.holder.runner not in runners or abs(waited_us) >= self.config.etas.local_us

    def _publish(self, ledger: Ledger, units: Sequence[Unit]) -> set[str]:
        """Which of them need nothing more."""
        done: list[Unit] = []
        missing: list[tuple[Unit, str]] = []
        for unit in units:
            assert unit.receipt is not None, unit
            try:
                if not self._sink.has(footer := self._footer(unit)):
                    self._sink.publish(footer, self._staging.find(unit.receipt))
                done.append(unit)
                self.figures.problems.pop("sink", None)
            except StagedMissing as problem:
                missing.append((unit, str(problem)))
            except TailraceError as problem:
                self.figures.problems["sink"] = str(problem)
        ids = {unit.id for unit in done}
        ledger.update(
            lambda page: Changes(
                gone=[unit for name in ids if (unit := page.units.get(name)) and unit.standing == "committed"]
            )
        )
        for unit in done:
            assert unit.receipt is not None
            self._staging.discard(unit.receipt["name"], [unit.receipt["folder"]])
        for unit, reason in missing:
            self._miss(ledger, unit, reason)
        self.figures.published += len(done)
        return ids | {unit.id for unit, _ in missing}

    def _footer(self, unit: Unit) -> Footer:
        return Footer(self.state.pipeline, unit.id, unit.ranges, unit.born)

    def _miss(self, ledger: Ledger, unit: Unit, reason: str) -> None:
        """A committed output that cannot be found. Doing it again is right only if it would come out the same, or if
        nothing of it can have been seen."""
        if self._sink.has(self._footer(unit)) or (
            unit.holder is not None and unit.holder.runner in self.health.runners
        ):
            return  # another runner published it and tidied up, or is about to: it has what we do not see
        if not self._deterministic:
            self.figures.problems[f"unit {unit.id}"] = f"{reason}; it waits for the site {unit.site} to come back"
            return

        def decide(page: Page) -> Changes:
            known = page.units.get(unit.id)
            if known is None or known.standing != "committed" or known.receipt != unit.receipt:
                return Changes()
            return Changes(units=[steps.rolled_back(known, reason, self._clock.time_us())])

        ledger.update(decide)

    def collect(self) -> int:
        """Remove what dead runners staged and nobody committed. A runner that is not alive can commit no more, so what
        is not committed by now never will be. How many."""
        staged = self._staging.names()
        if not staged:
            return 0
        runners = self.state.living()
        kept = {
            unit.receipt["name"]
            for page in self.state.pages(["units"]).values()
            for unit in page.units.values()
            if unit.receipt is not None
        }
        garbage = [name for name in staged if runner_of(name) not in runners and name not in kept]
        for name in garbage:
            self._staging.discard(name)
        return len(garbage)

    def fold_usage(self) -> None:
        """What runners have used that are gone goes to their sites' accounts; looked at when somebody came or went."""
        if (runners := self.health.runners) != self._folded_for:
            self.state.fold_usage()
            self._folded_for = runners

    def standing(self) -> "Standing":
        pages = list(self.state.pages(["shards", "units"]).values())
        waiting = sum(unit.size for page in pages for unit in page.units.values() if unit.standing != "committed")
        free = sum(shard.free_bytes for page in pages for shard in page.shards.values())
        return Standing(floors(pages), waiting + free)

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """How far each shard goes at this site, as it was last seen."""
        return {key: extent.end for key, extent in list(self._extents.items())}

    @property
    def share(self) -> float:
        """Of the work of all sites that are up, by weight."""
        health = self.health
        return min(1.0, self._weight / max(self._weight, sum(health.weights[site] for site in health.up())))

    def _by_ledger(self, units: Sequence[Unit]) -> dict[Ledger, set[str]]:
        found: dict[Ledger, set[str]] = {}
        for unit in units:
            found.setdefault(self.state.ledger_of(unit.ranges[0]), set()).add(unit.id)
        return found


def floors(pages: Iterable[Page]) -> dict[tuple[str, int], int]:
    """In one epoch after the other: a later one counts only when nothing is left of those before."""
    done: dict[tuple[str, int], int] = {}
    left: dict[tuple[str, int], int] = {}
    for page in pages:
        for key, shard in page.shards.items():
            done[key] = max(done.get(key, 0), shard.created)
            if shard.free_bytes:
                left[key] = min(left.get(key, shard.created), shard.created)
        for unit in page.units.values():
            for one in unit.ranges:
                key = (one.stream, one.shard)
                left[key] = min(left.get(key, one.begin), one.begin)
    return {key: left.get(key, position) for key, position in done.items()}
