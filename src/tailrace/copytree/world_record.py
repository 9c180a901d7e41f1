"""The world as the coordination store has it: the map that people change, the trees that the router makes of it, and
what clusters report of themselves. Whoever follows it needs no restart to learn of a new stream, cluster or limit.

    world/map              the map and the routing preferences; its revision is the map's version
    world/trees/STREAM     the copy tree
    world/reports/CLUSTER  what a cluster says of itself, held by its lease
    world/router           who makes the trees now, held by its lease

Always holds: a map that was stored is one that holds together, and a change that met another's is made again on top of
it, so none is lost. Values are JSON, with a version; see docs/formats/world.md.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from tailrace.coordination import (
    Compacted,
    Coordination,
    Delete,
    Entry,
    Event,
    Operation,
    Put,
    Requirement,
    Watch,
    compare_and_swap,
)
from tailrace.errors import ConfigError, Corrupt
from tailrace.model import CopyTree, WorldMap, check_name

from .routing import ClusterReported, Preferences
from .world_tables import read_map, read_preferences, read_tree, write_map, write_tree

FORMAT = 1
PREFIX = "world/"
ROUTER = "world/router"
_MAP, _TREES, _REPORTS = "world/map", "world/trees/", "world/reports/"
_ATTEMPTS_MAX = 100
_TOO_OFTEN = f"the world's map was changed by others {_ATTEMPTS_MAX} times in a row; nothing was done, try again"
_TREES_AT_ONCE = 50  # so many of 1000 clusters each fit a transaction


@dataclass(frozen=True, slots=True)
class Sending:
    """One edge of a tree, seen from upstream."""

    stream: str
    source: str
    target: str
    bytes_per_s_max: float
    epoch: int


@dataclass(frozen=True)
class WorldState:
    """All of it, as it stood at one revision of the store."""

    world: WorldMap = field(default_factory=WorldMap)
    preferences: Preferences = field(default_factory=Preferences)
    version: int = 0  # of the map; 0: there is none yet
    trees: Mapping[str, CopyTree] = field(default_factory=dict)
    epochs: Mapping[str, int] = field(default_factory=dict)  # of the trees: a higher number is a newer tree
    reports: Mapping[str, ClusterReported] = field(default_factory=dict)
    caught_up: frozenset[tuple[str, str]] = frozenset()  # (stream, cluster): who says that it is at the head
    router: Entry | None = None  # who makes the trees now

    def sends(self, cluster: str) -> list[Sending]:
        """What a cluster passes on, by all trees."""
        return [
            Sending(stream, tree.source, hop.downstream, hop.bytes_per_s_max, self.epochs[stream])
            for stream, tree in self.trees.items()
            for hop in tree.hops
            if hop.upstream == cluster
        ]


def load(store: Coordination, known: dict[str, tuple[int, Any]] | None = None) -> WorldState:
    """`known`: a dictionary of the caller's, empty at first; with it, what has not changed is not made again."""
    return _state_of({entry.key: entry for entry in store.range(PREFIX).entries}, known)


def change_map(
    store: Coordination, change: Callable[[WorldMap, Preferences], tuple[WorldMap, Preferences]]
) -> tuple[WorldState, bool]:
    """Store what `change` makes of the map, made again if another was faster. The state after it, and if it differs."""
    for _ in range(_ATTEMPTS_MAX):
        seen = store.get(_MAP)
        before = _state_of({} if seen is None else {_MAP: seen})
        world, preferences = change(before.world, before.preferences)
        if seen is not None and (world, preferences) == (before.world, before.preferences):
            return before, False
        value = _written(write_map(world, preferences))
        outcome = compare_and_swap(store, _MAP, seen, value)
        if outcome.succeeded:
            return WorldState(world, preferences, outcome.revision), True
    raise ConfigError(_TOO_OFTEN)


def set_map(store: Coordination, world: WorldMap, preferences: Preferences) -> tuple[int, bool]:
    """Store this map whatever was there, damage too: its version, and whether it differs from what was there."""
    value = _written(write_map(world, preferences))
    for _ in range(_ATTEMPTS_MAX):
        seen = store.get(_MAP)
        if seen is not None and seen.value == value:
            return seen.revision, False
        outcome = compare_and_swap(store, _MAP, seen, value)
        if outcome.succeeded:
            return outcome.revision, True
    raise ConfigError(_TOO_OFTEN)


def publish_trees(
    store: Coordination,
    trees: Mapping[str, CopyTree],
    obsolete: Iterable[str] = (),
    requires: Sequence[Requirement] = (),
) -> bool:
    """Store trees and take others away. False: a requirement was not met, and what is left was not done."""
    changes: list[Operation] = [
        Put(_TREES + check_name(stream, "stream"), _written(write_tree(tree))) for stream, tree in trees.items()
    ]
    changes += [Delete(_TREES + stream) for stream in obsolete]
    for first in range(0, len(changes), _TREES_AT_ONCE):
        if not store.transact(requires, changes[first : first + _TREES_AT_ONCE]).succeeded:
            return False
    return True


def report(
    store: Coordination,
    cluster: str,
    *,
    late: frozenset[str] = frozenset(),
    cut: frozenset[str] = frozenset(),
    caught_up: frozenset[str] = frozenset(),
    lease: int | None = None,
) -> None:
    """What a cluster says of itself. Under a lease, so that silence is noticed."""
    told = {"late": sorted(late), "cut": sorted(cut), "caught_up": sorted(caught_up)}
    value = _written({name: names for name, names in told.items() if names})
    store.transact((), [Put(_REPORTS + check_name(cluster, "cluster"), value, lease)])


class WorldFollower:
    """The state, and the next one after each change. One thread follows; any thread may close.

    A follower that was away for so long that the history it missed is gone reads everything anew: it never misses the
    newest state, only some on the way there.
    """

    def __init__(self, store: Coordination) -> None:
        self._store = store
        self._watch: Watch | None = None
        self._entries: dict[str, Entry] = {}
        self._known: dict[str, tuple[int, Any]] = {}
        self._state = WorldState()
        self.read()

    @property
    def state(self) -> WorldState:
        return self._state

    def poll(self, timeout_s: float) -> WorldState | None:
        """The new state, at once if something changed since the last one; None when the time is over."""
        assert self._watch is not None
        try:
            events = self._watch.poll(timeout_s)
        except Compacted:
            self.read()
            return self._state
        if not events:
            return None
        for event in events:
            self._take(event)
        self._state = _state_of(self._entries, self._known)
        return self._state

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self) -> None:
        """Everything anew, as it stands now."""
        self.close()
        snapshot = self._store.range(PREFIX)
        self._entries = {entry.key: entry for entry in snapshot.entries}
        self._watch = self._store.watch(PREFIX, snapshot.revision)
        self._state = _state_of(self._entries, self._known)

    def _take(self, event: Event) -> None:
        if event.entry is None:
            self._entries.pop(event.key, None)
        else:
            self._entries[event.key] = event.entry


def _state_of(entries: Mapping[str, Entry], known: dict[str, tuple[int, Any]] | None = None) -> WorldState:
    """`known`: what was made of the entries before. Most of them are as they were, and a large map takes its time."""
    known = {} if known is None else known
    made: dict[str, Any] = {}
    for key, entry in entries.items():
        before = known.get(key)
        if before is None or before[0] != entry.revision:
            known[key] = before = (entry.revision, _made_of(entry))
        made[key] = before[1]
    for key in known.keys() - entries.keys():
        del known[key]
    world, preferences = made.get(_MAP, (WorldMap(), Preferences()))
    trees = {key.removeprefix(_TREES): made[key] for key in made if key.startswith(_TREES)}
    reports = {key.removeprefix(_REPORTS): made[key] for key in made if key.startswith(_REPORTS)}
    return WorldState(
        world,
        preferences,
        entries[_MAP].revision if _MAP in entries else 0,
        trees,
        {stream: entries[_TREES + stream].revision for stream in trees},
        {cluster: told for cluster, (told, _) in reports.items()},
        frozenset((stream, cluster) for cluster, (_, at_head) in reports.items() for stream in at_head),
        entries.get(ROUTER),
    )


def _made_of(entry: Entry) -> Any:
    if entry.key == _MAP:
        tables = _read(entry)
        return _checked(entry, read_map, tables), _checked(entry, read_preferences, tables)
    if entry.key.startswith(_TREES):
        return _checked(entry, read_tree, _read(entry))
    if entry.key.startswith(_REPORTS):
        cluster, told = entry.key.removeprefix(_REPORTS), _read(entry)
        report = ClusterReported(cluster, _names(entry, told, "late"), _names(entry, told, "cut"))
        return report, _names(entry, told, "caught_up")
    return None


def _written(table: Mapping[str, Any]) -> bytes:
    return json.dumps({"version": FORMAT, **table}, ensure_ascii=False, allow_nan=False).encode()


def _read(entry: Entry) -> dict[str, Any]:
    try:
        table = json.loads(entry.value)
    except ValueError as wrong:
        raise Corrupt(f"{entry.key} in the coordination store is not JSON: {wrong}; write it again") from None
    if not isinstance(table, dict) or table.pop("version", None) != FORMAT:
        raise Corrupt(
            f"{entry.key} in the coordination store is not of version {FORMAT}, the one that this release knows; "
            "use the release that wrote it, or a newer one"
        )
    return table


def _checked(entry: Entry, read: Callable[[dict[str, Any]], Any], table: dict[str, Any]) -> Any:
    try:
        return read(table)
    except ConfigError as wrong:
        raise Corrupt(f"{entry.key} in the coordination store: {wrong}; write it again") from None


def _names(entry: Entry, table: Mapping[str, Any], name: str) -> frozenset[str]:
    listed = table.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(one, str) for one in listed):
        raise Corrupt(f"{entry.key} in the coordination store: {name}={listed!r} is no list of names; write it again")
    return frozenset(listed)
