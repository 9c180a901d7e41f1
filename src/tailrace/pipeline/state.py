"""A pipeline's state as a whole: its layout, its partitions over one or more stores, and who is at work (U4, U20).

The state is the only thing that sites share. It holds one small record for each shard, one for each unit that is not
published yet, one for each bad range and one for each living runner: its size follows the work in flight, not history.

    pipelines/NAME/layout                  in every store
    pipelines/NAME/draining                in the first store: no new units
    pipelines/NAME/members/runners/SITE/RUNNER   in the first store, leased: weight and figures
    pipelines/NAME/members/out/SITE        in the first store: somebody declared the site out
    pipelines/NAME/usage/E.P/SITE/RUNNER   what was used, in the store of the partition (`usage.py`)
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..coordination import Absent, AtRevision, Coordination, Delete, Entry, HasValue, Lease, Operation, Put, put
from ..env import Clock
from ..errors import ConfigError, CoordinationError
from ..model import check_name
from .assignment import Health
from .epochs import Partition, partition_of, partitions_of, with_epoch
from .failure import BadRange, revived
from .ledger import KINDS, Changes, Layout, Ledger, Page
from .ranges import ByteRange
from .tracking import created_us_of
from .unit import Holder, Unit
from .usage import PAST, Usage, total


@dataclass(frozen=True, slots=True)
class Member:
    """A living runner: how much work its site is provisioned for by it, and what it says of itself."""

    site: str
    runner: str
    weight: float
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Members:
    runners: tuple[Member, ...]
    out: frozenset[str]

    @property
    def health(self) -> Health:
        weights: dict[str, float] = {}
        for member in self.runners:
            weights[member.site] = weights.get(member.site, 0.0) + member.weight
        return Health(weights, frozenset(member.runner for member in self.runners), self.out)


class Membership:
    """A runner's registration. When it has ended, `beat` says so, and whoever it was starts again under a new name."""

    def __init__(self, holder: Holder, leases: Sequence[Lease], state: "State", weight: float) -> None:
        self.holder = holder
        self._leases, self._state, self._weight = leases, state, weight

    @property
    def name(self) -> str:
        return f"{self.holder.site}/{self.holder.runner}"

    def beat(self, figures: Mapping[str, Any], *, stuck: bool = False) -> None:
        """LeaseExpired: it has ended. `stuck`: it lives, and does not get on: no work for it."""
        for lease in self._leases:
            lease.keep_alive()
        self._state.put_member(self.holder, 0.0 if stuck else self._weight, figures, self._leases[0].id)

    def leave(self) -> None:
        for lease in self._leases:
            lease.revoke()


class State:
    def __init__(self, pipeline: str, stores: Sequence[Coordination], clock: Clock) -> None:
        """`stores`: partitions are spread over them; the first has what there is only one of. Their number and order
        are part of the configuration, equal for all sites."""
        self.pipeline = check_name(pipeline, "pipeline")
        if not stores:
            raise ConfigError(f"pipeline {pipeline}: no store for its state was given")
        self._stores, self._clock = list(stores), clock
        self._root = f"pipelines/{pipeline}/"
        self._layout: Layout | None = None
        self._ledgers: dict[Partition, Ledger] = {}
        self._operations = 0

    # ---- layout

    @property
    def layout(self) -> Layout:
        return self._layout or self.refresh()

    def refresh(self) -> Layout:
        """Read the layout; make it where there is none."""
        first = self._stores[0].get(f"{self._root}layout")
        layout = Layout() if first is None else Layout.decode(first.value)
        for store in self._stores:
            found = store.get(f"{self._root}layout")
            if found is None:
                store.transact([Absent(f"{self._root}layout")], [Put(f"{self._root}layout", layout.encode())])
            elif Layout.decode(found.value) != layout:  # somebody changes it right now, or died over it: finish that
                other = Layout.decode(found.value)
                newest = max(layout, other, key=lambda one: (one.generation, len(one.epochs)))
                return self._spread(newest)
        if layout != self._layout:
            self._operations += sum(ledger.operations for ledger in self._ledgers.values())
            self._ledgers = {}
        self._layout = layout
        return layout

    def _spread(self, layout: Layout) -> Layout:
        for store in self._stores:
            found = store.get(f"{self._root}layout")
            if found is None or Layout.decode(found.value) != layout:
                put(store, f"{self._root}layout", layout.encode())
        return self.refresh()

    def repartition(self, partitions: int, from_us: int) -> Layout:
        """Another number of partitions for files that will be made from then on (U28)."""
        layout = self.refresh()
        newest = max(
            (
                created_us_of(shard.files[-1])
                for page in self.pages(["shards"]).values()
                for shard in page.shards.values()
                if shard.files
            ),
            default=0,
        )
        now_us = self._clock.time_us()
        epochs = with_epoch(layout.epochs, from_us, partitions, max(newest, now_us))
        changed = Layout(layout.generation, epochs)
        first = self._stores[0]
        outcome = first.transact(
            [HasValue(f"{self._root}layout", layout.encode())], [Put(f"{self._root}layout", changed.encode())]
        )
        if not outcome.succeeded:
            raise CoordinationError("the layout was changed by somebody else at the same time; look, and try again")
        return self._spread(changed)

    def ledger(self, partition: Partition) -> Ledger:
        layout = self.layout
        if partition not in self._ledgers:
            store = self._stores[partition.number % len(self._stores)]
            self._ledgers[partition] = Ledger(store, self.pipeline, partition, layout)
        return self._ledgers[partition]

    def ledgers(self) -> list[Ledger]:
        return [self.ledger(partition) for partition in partitions_of(self.layout.epochs)]

    def ledger_of(self, one: ByteRange) -> Ledger:
        return self.ledger(partition_of(self.layout.epochs, one.stream, one.shard, one.file))

    def pages(self, kinds: Sequence[str] = KINDS) -> dict[Partition, Page]:
        """All partitions, with one read of each kind from each store."""
        found = {partition: Page({}, {}, {}, {}) for partition in partitions_of(self.layout.epochs)}
        names = {partition.name: partition for partition in found}
        for store in self._stores:
            for kind in kinds:
                self._operations += 1
                for name, entries in groupby(store.range(f"{self._root}{kind}/").entries, _partition_name):
                    if name in names:
                        found[names[name]].take(entries)
        return found

    @property
    def operations(self) -> int:
        """On the stores, by this process."""
        return self._operations + sum(ledger.operations for ledger in self._ledgers.values())

    # ---- who is there

    def members(self) -> Members:
        self._operations += 1
        base = f"{self._root}members/"
        runners, out = [], set()
        for entry in self._stores[0].range(base).entries:
            kind, *words = entry.key.removeprefix(base).split("/")
            if kind == "out":
                out.add(words[0])
            elif kind == "runners":
                raw = json.loads(entry.value)
                runners.append(Member(words[0], words[1], raw["weight"], raw["figures"]))
        return Members(tuple(runners), frozenset(out))

    def living(self) -> set[str]:
        """Runners that may still commit something, in any of the stores."""
        base = f"{self._root}members/alive/"
        return {entry.key.split("/")[-1] for store in self._stores for entry in store.range(base).entries}

    def register(self, site: str, weight: float, lease_s: float) -> Membership:
        check_name(site, "site")
        if not weight > 0:
            raise ConfigError(f"weight={weight!r}: use more than 0")
        self.refresh()
        holder = Holder(site, secrets.token_hex(6))
        leases = [store.lease(lease_s) for store in self._stores]
        for store, lease in zip(self._stores, leases, strict=True):
            put(store, f"{self._root}members/alive/{site}/{holder.runner}", b"1", lease=lease.id)
        membership = Membership(holder, leases, self, weight)
        self.put_member(holder, weight, {}, leases[0].id)
        return membership

    def put_member(self, holder: Holder, weight: float, figures: Mapping[str, Any], lease: int) -> None:
        self._operations += 1
        key = f"{self._root}members/runners/{holder.site}/{holder.runner}"
        put(self._stores[0], key, json.dumps({"weight": weight, "figures": figures}).encode(), lease=lease)

    def declare(self, site: str, *, out: bool) -> None:
        """The signal of a full outage (U24), and its end."""
        key = f"{self._root}members/out/{check_name(site, 'site')}"
        operation: Operation = Put(key, b"1") if out else Delete(key)
        self._stores[0].transact([], [operation])

    # ---- what is to be done

    @property
    def draining(self) -> bool:
        return self._stores[0].get(f"{self._root}draining") is not None

    def drain(self, on: bool) -> None:
        """No new units are made while it is on."""
        key = f"{self._root}draining"
        operation: Operation = Put(key, b"1") if on else Delete(key)
        self._stores[0].transact([], [operation])

    def bad_ranges(self) -> list[BadRange]:
        found = [bad for page in self.pages(["bad"]).values() for bad in page.bad.values()]
        return sorted(found, key=lambda bad: bad.range)

    def retry_bad(self, wanted: Sequence[ByteRange] | None, site: str) -> list[Unit]:
        """Make units of bad ranges, of these or of all, since their cause was mended."""
        made: list[Unit] = []
        for ledger in self.ledgers():
            now_us = self._clock.time_us()

            def decide(page: Page, now_us: int = now_us) -> Changes:
                chosen = [
                    bad for bad in page.bad.values() if bad.range.file and (wanted is None or bad.range in wanted)
                ]
                return Changes(units=[revived(bad, site, now_us) for bad in chosen[:100]], mended=chosen[:100])

            while True:
                _, changes = ledger.update(decide, KINDS)
                if not changes:
                    break
                made += changes.units
        return made

    # ---- what was used

    def usage(self) -> dict[str, Usage]:
        """By site, since the beginning."""
        found: dict[str, list[Usage]] = {}
        for store in self._stores:
            for entry in store.range(f"{self._root}usage/").entries:
                found.setdefault(entry.key.split("/")[4], []).append(Usage.decode(entry.value))
        return {site: total(usages) for site, usages in sorted(found.items())}

    def fold_usage(self) -> None:
        """Add what runners have used that are gone to the account of their site."""
        living = self.living()
        for store in self._stores:
            self._operations += 1
            by_site = groupby(store.range(f"{self._root}usage/").entries, lambda entry: entry.key.rpartition("/")[0])
            for place, some in by_site:
                accounts = {entry.key.rpartition("/")[2]: entry for entry in some}
                gone = [entry for name, entry in accounts.items() if name not in living and name != PAST]
                if not gone:
                    continue
                past = accounts.get(PAST)
                folded = total(Usage.decode(entry.value) for entry in [*gone, *([past] if past else [])])
                # If one of them changed meanwhile, it is done the next time.
                store.transact(
                    [
                        AtRevision(past.key, past.revision) if past else Absent(f"{place}/{PAST}"),
                        *(AtRevision(entry.key, entry.revision) for entry in gone),
                    ],
                    [Put(f"{place}/{PAST}", folded.encode()), *(Delete(entry.key) for entry in gone)],
                )

    # ---- from scratch

    def clear(self) -> Layout:
        """Forget everything but who is there and what was used, in a new generation: whoever works with the old one is
        shut out."""
        before = self.refresh()
        now = self._spread(Layout(before.generation + 1, before.epochs))
        for store in self._stores:
            for kind in KINDS:
                for entry in store.range(f"{self._root}{kind}/").entries:
                    store.transact([AtRevision(entry.key, entry.revision)], [Delete(entry.key)])
        return now

    def forget(self) -> None:
        """Remove the pipeline's state for good. Outputs stay."""
        for store in self._stores:
            for entry in store.range(self._root).entries:
                store.transact([], [Delete(entry.key)])


def _partition_name(entry: Entry) -> str:
    return entry.key.split("/")[3]
