"""A world map, and a copy tree, as plain tables: what world.toml has and what the coordination store keeps.

    clusters: {NAME: {continent, region, …}}      tariffs: {SCOPE: {price_per_gb, latency_s, …}}
    links: [{from, to, …} or {between: [A, B], …}]    streams: {NAME: {source, destinations, …}}    routing: {hop, …}

Pure. Reading refuses what it does not know, with the path of the wrong setting; writing leaves out what is as usual.
`docs/formats/world.md` has every setting.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from tailrace.config import decode
from tailrace.errors import ConfigError
from tailrace.model import Cluster, CopyTree, Demand, Link, Tariff, WorldMap

from .routing import Preferences

T = TypeVar("T")
Tables = dict[str, Any]

PARTS = ("clusters", "tariffs", "links", "streams", "routing")


def read_map(tables: Mapping[str, Any]) -> WorldMap:
    return WorldMap(
        clusters=_named(Cluster, "clusters", "name", tables),
        tariffs=_named(Tariff, "tariffs", "scope", tables),
        links=_links(tables.get("links", [])),
        demands=_named(Demand, "streams", "stream", tables),
    )


def read_preferences(tables: Mapping[str, Any]) -> Preferences:
    return decode(Preferences, _table(tables.get("routing", {}), "routing"), "routing")


def write_map(world: WorldMap, preferences: Preferences | None = None) -> Tables:
    tables: Tables = {
        "clusters": {cluster.name: _unusual(cluster, "name") for cluster in world.clusters},
        "tariffs": {tariff.scope: _unusual(tariff, "scope") for tariff in world.tariffs},
        "links": _folded(world.links),
        "streams": {demand.stream: _unusual(demand, "stream") for demand in world.demands},
        "routing": _unusual(preferences or Preferences()),
    }
    return {part: tables[part] for part in PARTS if tables[part]}


def read_tree(table: Mapping[str, Any]) -> CopyTree:
    return decode(CopyTree, table)


def write_tree(tree: CopyTree) -> Tables:
    hops = [_unusual(hop) for hop in tree.hops]
    return {"stream": tree.stream, "source": tree.source, "hops": hops}


def _named(kind: type[T], part: str, key: str, tables: Mapping[str, Any]) -> tuple[T, ...]:
    """One for each table of a part, which is known by its name there."""
    found = []
    for name, table in _table(tables.get(part, {}), part).items():
        path = f"{part}.{name}"
        if key in _table(table, path):
            raise ConfigError(f"{path}.{key}: it is named by the table's own name; leave this out")
        try:
            found.append(decode(kind, {key: name, **table}))
        except ConfigError as wrong:
            raise ConfigError(f"{path}: {wrong}") from None
    return tuple(found)


def _links(listed: Any) -> tuple[Link, ...]:
    if not isinstance(listed, list):
        raise ConfigError("links: use a list, one [[links]] for each")
    found = []
    for number, table in enumerate(listed):
        path = f"links[{number}]"
        table = dict(_table(table, path))
        for upstream, downstream in _ends(table, path):
            try:
                found.append(decode(Link, {"upstream": upstream, "downstream": downstream, **table}))
            except ConfigError as wrong:
                raise ConfigError(f"{path}: {wrong}") from None
    return tuple(found)


def _ends(table: Tables, path: str) -> list[tuple[Any, Any]]:
    """Takes them out of the table."""
    match (table.pop("between", None), table.pop("from", None), table.pop("to", None)):
        case ([one, other], None, None):
            return [(one, other), (other, one)]
        case (None, one, other) if one is not None and other is not None:
            return [(one, other)]
        case _:
            raise ConfigError(f'{path}: use between = ["A", "B"] for both ways, or from = "A" and to = "B" for one')


def _folded(links: tuple[Link, ...]) -> list[Tables]:
    """Two links with the same terms in both directions as one line."""
    terms = {(link.upstream, link.downstream): _unusual(link, "upstream", "downstream") for link in links}
    listed = []
    while terms:
        (one, other), mine = next(iter(terms.items()))
        del terms[one, other]
        if terms.get((other, one)) == mine:
            del terms[other, one]
            listed.append({"between": [one, other], **mine})
        else:
            listed.append({"from": one, "to": other, **mine})
    return listed


def _unusual(item: Any, *without: str) -> Tables:
    """Its settings that differ from the default."""
    table = {}
    for field in dataclasses.fields(item):
        value = getattr(item, field.name)
        usual = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if field.name in without or value == usual:
            continue
        if dataclasses.is_dataclass(value):
            value = _unusual(value)
        table[field.name] = list(value) if isinstance(value, tuple) else value
    return table


def _table(value: Any, path: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}={value!r}: use a table")
    return value
