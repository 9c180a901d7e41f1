"""One partition of a pipeline's state in a coordination store: shards, units and bad ranges (U4, U7).

Every step is one read of the partition and one compare-and-swap transaction over all that the step changes, however
many units that are. The transaction also requires that the layout is as it was when the step was decided, and, for
those that commit, that the runner still lives: so whoever was taken for dead can do nothing any more.

    pipelines/NAME/layout                                  generation and epochs, the same in every store
    pipelines/NAME/members/alive/SITE/RUNNER               leased
    pipelines/NAME/shards/E.P/STREAM/SHARD
    pipelines/NAME/units/E.P/ID
    pipelines/NAME/bad/E.P/STREAM/SHARD/BEGIN
    pipelines/NAME/usage/E.P/SITE/RUNNER                   what it has used, changed with what it did
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..coordination import Absent, AtRevision, Coordination, Delete, Entry, HasValue, Operation, Put, Requirement
from ..errors import CoordinationError, Corrupt
from .epochs import Epoch, Partition
from .failure import BadRange
from .ranges import decode, encode
from .tracking import Shard
from .unit import Unit
from .usage import Spent, Usage

_TRIES = 100
_CHANGES_MAX = 400  # in one transaction, well below what every store takes
VERSION = 1
KINDS = ("shards", "units", "bad")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the state lies. A new generation shuts out everybody who works with the old one."""

    generation: int = 1
    epochs: tuple[Epoch, ...] = (Epoch(0, 1),)

    def encode(self) -> bytes:
        epochs = [[epoch.from_us, epoch.partitions] for epoch in self.epochs]
        return _dump({"version": VERSION, "generation": self.generation, "epochs": epochs})

    @classmethod
    def decode(cls, raw: bytes) -> "Layout":
        try:
            table = json.loads(raw)
            if table["version"] != VERSION:
                raise ValueError(f"version {table['version']}, where this Tailrace knows {VERSION}")
            return cls(table["generation"], tuple(Epoch(*epoch) for epoch in table["epochs"]))
        except (ValueError, KeyError, TypeError) as wrong:
            raise Corrupt(
                f"a pipeline's layout cannot be read: {wrong}. `tailrace pipeline rebuild` makes it anew"
            ) from None


class LayoutChanged(CoordinationError):
    """The state was rebuilt or repartitioned meanwhile. Nothing was changed; read the layout again."""


class NotAlive(CoordinationError):
    """This runner's lease ran out, so others have its work. Nothing was changed; register anew."""


@dataclass(frozen=True, slots=True)
class Page:
    """What was read of a partition, each record as it stood at its revision."""

    shards: dict[tuple[str, int], Shard]
    units: dict[str, Unit]
    bad: dict[tuple[str, int, int], BadRange]
    revisions: dict[str, int]  # by key

    def take(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            kind, _, *words = entry.key.split("/")[2:]
            raw = _load(entry)
            self.revisions[entry.key] = entry.revision
            if kind == "units":
                unit = Unit.decode(raw)
                self.units[unit.id] = unit
            elif kind == "shards":
                self.shards[words[0], int(words[1])] = Shard.decode(words[0], int(words[1]), raw)
            elif kind == "bad":
                (one,) = decode([raw["range"]])
                bad = BadRange(one, raw["reason"], raw["found_us"], raw["oldest_us"])
                self.bad[one.stream, one.shard, one.begin] = bad


@dataclass(slots=True)
class Changes:
    """What a step wants. Each key of it must still be as it was on the page."""

    shards: list[Shard] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
    gone: list[Unit] = field(default_factory=list)
    bad: list[BadRange] = field(default_factory=list)
    mended: list[BadRange] = field(default_factory=list)
    spent: Spent | None = None  # noted with the rest; by itself it changes nothing

    def __bool__(self) -> bool:
        return bool(self.shards or self.units or self.gone or self.bad or self.mended)


class Ledger:
    def __init__(self, store: Coordination, pipeline: str, partition: Partition, layout: Layout) -> None:
        self._store, self._layout = store, layout
        self.partition = partition
        self._root = f"pipelines/{pipeline}/"
        self.operations = 0  # on the store, for those who count them
        self._accounts: dict[str, bytes | None] = {}  # by key, as far as we know; only the runner itself writes its own

    def read(self, kinds: Sequence[str] = KINDS) -> Page:
        """Of some kinds only, where that is enough: handing out and committing need the units alone."""
        page = Page({}, {}, {}, {})
        for kind in kinds:
            self.operations += 1
            page.take(self._store.range(f"{self._root}{kind}/{self.partition.name}/").entries)
        return page

    def update(
        self,
        decide: Callable[[Page], Changes],
        kinds: Sequence[str] = ("units",),
        *,
        alive: str | None = None,
        page: Page | None = None,
    ) -> tuple[Page, Changes]:
        """Read, decide, and change; again from the start if somebody else was faster. The page and the changes that
        went through. `alive`: the site and runner without whose lease nothing may change, as SITE/RUNNER. `page`: as it
        was read a moment ago, to save the first read."""
        conflicts: Mapping[str, Entry | None] = {}
        for _ in range(_TRIES):
            page = page or self.read(kinds)
            changes = decide(page)
            if not changes:
                return page, changes
            requires, then = self._transaction(page, changes, alive)
            if len(then) > _CHANGES_MAX:
                raise AssertionError(f"{len(then)} changes at once")
            self.operations += 1
            outcome = self._store.transact(requires, then)
            account = self._account(changes.spent) if changes.spent is not None else None
            if outcome.succeeded:
                if account is not None:
                    self._accounts[account[0]] = account[2]
                return page, changes
            conflicts, page = outcome.conflicts, None
            if account is not None and account[0] in conflicts:
                found = conflicts[account[0]]
                self._accounts[account[0]] = None if found is None else found.value
            if self._layout_key in conflicts:
                raise LayoutChanged("the pipeline's state was rebuilt or repartitioned; read it anew")
            if alive is not None and f"{self._root}members/alive/{alive}" in conflicts:
                raise NotAlive(f"the lease of {alive} ran out: others may have its work; nothing was changed")
        raise CoordinationError(
            f"the state of partition {self.partition.name} changed {_TRIES} times while it was to be changed, last "
            f"{sorted(conflicts)[:1]}; nothing was changed, try again"
        )

    @property
    def _layout_key(self) -> str:
        return f"{self._root}layout"

    def _transaction(
        self, page: Page, changes: Changes, alive: str | None
    ) -> tuple[list[Requirement], list[Operation]]:
        requires: list[Requirement] = [HasValue(self._layout_key, self._layout.encode())]
        if alive is not None:
            requires.append(HasValue(f"{self._root}members/alive/{alive}", b"1"))
        puts: dict[str, bytes] = {}
        for shard in changes.shards:
            puts[f"{self._root}shards/{self.partition.name}/{shard.stream}/{shard.shard:05d}"] = _dump(shard.encode())
        for unit in changes.units:
            puts[self._unit_key(unit)] = _dump(unit.encode())
        for bad in changes.bad:
            puts[self._bad_key(bad)] = _dump(
                {
                    "range": encode([bad.range])[0],
                    "reason": bad.reason[:2000],
                    "found_us": bad.found_us,
                    "oldest_us": bad.oldest_us,
                }
            )
        gone = [self._unit_key(unit) for unit in changes.gone] + [self._bad_key(bad) for bad in changes.mended]
        gone = [key for key in gone if key not in puts]  # a unit whose successor has the same bytes
        for key in [*puts, *gone]:
            revision = page.revisions.get(key)
            if revision is not None:
                requires.append(AtRevision(key, revision))
            else:
                requires.append(Absent(key))
        then: list[Operation] = [*(Put(key, value) for key, value in puts.items()), *(Delete(key) for key in gone)]
        if changes.spent is not None:
            key, before, after = self._account(changes.spent)
            requires.append(Absent(key) if before is None else HasValue(key, before))
            then.append(Put(key, after))
        return requires, then

    def _account(self, spent: Spent) -> tuple[str, bytes | None, bytes]:
        """Its key, what it is before as far as we know, and what it will be."""
        key = f"{self._root}usage/{self.partition.name}/{spent.by}"
        before = self._accounts.get(key)
        return key, before, (Usage.decode(before) + spent.usage).encode()

    def _unit_key(self, unit: Unit) -> str:
        return f"{self._root}units/{self.partition.name}/{unit.id}"

    def _bad_key(self, bad: BadRange) -> str:
        one = bad.range
        return f"{self._root}bad/{self.partition.name}/{one.stream}/{one.shard:05d}/{one.begin:020d}"


def portions(items: Sequence[Any], size: int = _CHANGES_MAX // 2) -> Iterable[Sequence[Any]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _dump(table: Mapping[str, Any]) -> bytes:
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()


def _load(entry: Entry) -> Any:
    try:
        return json.loads(entry.value)
    except ValueError as wrong:
        raise Corrupt(
            f"{entry.key} in the coordination store is no record of a pipeline: {wrong}. `tailrace pipeline rebuild` "
            "makes the state anew from the outputs"
        ) from None
