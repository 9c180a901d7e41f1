"""world.toml: the clusters of a world, what lies between them, its streams, and where its coordination is.

Read once and checked whole; a wrong setting is named by its path. `write_world` gives the text back, in one form, so
that reading what was written changes nothing. docs/formats/world.md has every setting.
"""

import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..config import CoordinationConfig, StreamConfig, TlsConfig, decode, encode
from ..copytree.routing import Preferences
from ..copytree.world_tables import PARTS, read_map, read_preferences, write_map
from ..errors import ConfigError, NameRefused
from ..model import WorldMap, check_name

_NAME, _COORDINATION, _SETTINGS, _TLS = "name", "coordination", "settings", "tls"
_CLUSTER = "{cluster}"  # in the paths of certificates: each cluster has its own


@dataclass(frozen=True, kw_only=True)
class WorldFile:
    name: str = "world"
    world: WorldMap = field(default_factory=WorldMap)
    preferences: Preferences = field(default_factory=Preferences)
    coordination: CoordinationConfig = field(default_factory=CoordinationConfig)
    settings: Mapping[str, StreamConfig] = field(default_factory=dict)  # of the streams themselves: shards, …
    tls: TlsConfig | None = None  # between processes; paths may have {cluster} in them, and begin beside the file

    def tls_of(self, cluster: str, folder: str) -> TlsConfig | None:
        """The certificates of one cluster, for a world's file in this folder.

        >>> file = WorldFile(tls=TlsConfig(certificate="{cluster}.pem", key="{cluster}.key", roots="/ca.pem"))
        >>> file.tls_of("us", "/etc/world")
        TlsConfig(certificate='/etc/world/us.pem', key='/etc/world/us.key', roots='/ca.pem')
        """
        if self.tls is None:
            return None
        paths = {
            name: os.path.join(folder, getattr(self.tls, name).replace(_CLUSTER, cluster))
            for name in ("certificate", "key", "roots")
        }
        return TlsConfig(**paths)


def read_world_file(path: str | os.PathLike[str]) -> WorldFile:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as seen:
        said = seen.strerror if isinstance(seen, OSError) else seen
        raise ConfigError(f"{os.fspath(path)} cannot be read: {said}; name a world.toml") from None
    return parse_world_file(text, os.fspath(path))


def parse_world_file(text: str, source: str = "world.toml") -> WorldFile:
    """
    >>> parse_world_file("[clusters.us]\\n[streams.prices]\\nsource = 'us'").world.demands[0].source
    'us'
    >>> parse_world_file("[clusters.us]\\nfan_out_max = 0")
    Traceback (most recent call last):
    tailrace.errors.ConfigError: world.toml: clusters.us: fan_out_max=0: use 1 to 100000
    """
    try:
        return _parsed(tomllib.loads(text))
    except tomllib.TOMLDecodeError as wrong:
        raise ConfigError(f"{source}: not TOML: {wrong}") from None
    except ConfigError as wrong:
        raise ConfigError(f"{source}: {wrong}") from None


def write_world_file(file: WorldFile) -> str:
    tables = write_map(file.world, file.preferences)
    for name, settings in file.settings.items():
        if changed := _changed(encode(settings), encode(StreamConfig())):
            tables["streams"][name][_SETTINGS] = changed
    head: dict[str, Any] = {_NAME: file.name}
    if coordination := _changed(encode(file.coordination), encode(CoordinationConfig())):
        head[_COORDINATION] = coordination
    if file.tls is not None:
        head[_TLS] = encode(file.tls)
    return "\n".join(_lines({**head, **tables})).strip() + "\n"


def _parsed(tables: dict[str, Any]) -> WorldFile:
    known = (_NAME, _COORDINATION, _TLS, *PARTS)
    for part in tables:
        if part not in known:
            raise ConfigError(f"{part}: no such table; there are {', '.join(known)}")
    name = tables.get(_NAME, "world")
    try:
        check_name(name, "world")
    except NameRefused as refused:
        raise ConfigError(f"name: {refused}") from None
    settings = {}
    for stream, table in _streams(tables).items():
        if isinstance(table, dict) and _SETTINGS in table:
            path = f"streams.{stream}.{_SETTINGS}"
            if not isinstance(table[_SETTINGS], dict):
                raise ConfigError(f"{path}={table[_SETTINGS]!r}: use a table")
            settings[stream] = decode(StreamConfig, table.pop(_SETTINGS), path)
    coordination, tls = tables.get(_COORDINATION, {}), tables.get(_TLS)
    if not isinstance(coordination, dict):
        raise ConfigError(f"{_COORDINATION}={coordination!r}: use a table")
    if tls is not None and not isinstance(tls, dict):
        raise ConfigError(f"{_TLS}={tls!r}: use a table")
    return WorldFile(
        name=name,
        world=read_map(tables),
        preferences=read_preferences(tables),
        coordination=decode(CoordinationConfig, coordination, _COORDINATION),
        settings=settings,
        tls=None if tls is None else decode(TlsConfig, tls, _TLS),
    )


def _streams(tables: Mapping[str, Any]) -> Mapping[str, Any]:
    streams = tables.get("streams", {})
    return streams if isinstance(streams, dict) else {}  # what else it is, read_map says


def _changed(table: dict[str, Any], usual: dict[str, Any]) -> dict[str, Any]:
    changed = {}
    for name, value in table.items():
        if isinstance(value, dict):
            value = _changed(value, usual.get(name, {}))
            if not value:
                continue
        elif usual.get(name) == value:
            continue
        changed[name] = value
    return changed


def _lines(table: Mapping[str, Any], path: str = "") -> list[str]:
    """TOML for what our tables hold: plain values first, then a head for each table, lists of tables as [[…]]."""
    plain = {name: value for name, value in table.items() if not _is_table(value)}
    lines = [f"{_key(name)} = {_value(value)}" for name, value in plain.items()]
    for name, value in table.items():
        inner = f"{path}.{_key(name)}" if path else _key(name)
        if isinstance(value, dict):
            body = _lines(value, inner)
            only_tables = value and all(_is_table(one) for one in value.values())
            lines += body if only_tables else ["", f"[{inner}]", *body]
        elif _is_table(value):
            for one in value:
                lines += ["", f"[[{inner}]]", *_lines(one, inner)]
    return lines


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float() if math.isinf(value):
            return "inf" if value > 0 else "-inf"
        case int() | float():
            return repr(value)
        case list():
            return "[" + ", ".join(map(_value, value)) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)
