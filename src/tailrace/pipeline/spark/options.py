"""The options of the format `tailrace`, parsed and refused early. Spark hands all of them over as text. Pure."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from ...config import KIB, MIB
from ...errors import ConfigError
from ...model import check_name

#: A place in a stream: a word, a time, or a position by shard.
Place = Literal["earliest", "latest"] | datetime | Mapping[int, int]
Payload = Literal["json", "avro"]

COLUMNS = ("key", "value", "timestamp", "shard", "position")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)

_BOTH = ("world", "path", "stream")
_SOURCE = (
    "shards",
    "start",
    "end",
    "maxbytespertrigger",
    "partitionbytes",
    "columns",
    "payload",
    "avroschema",
    "malformed",
    "checkpoint",
)
_SINK = ("shards", "txnapp", "txnversion", "checkpointlocation", "queryname")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    world: str
    stream: str
    shards: tuple[int, ...] | None = None
    start: Place = "earliest"
    end: Place = "latest"
    bytes_per_batch: int | None = None  # of a streaming query; None: all there is
    partition_bytes: int = 128 * MIB
    columns: tuple[str, ...] = COLUMNS
    payload: Payload | None = None
    avro_schema: str | None = None
    fails_on_malformed: bool = True
    checkpoint: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool) -> "SourceOptions":
        given = _given(options, _BOTH + _SOURCE)
        world, stream = _world(given)
        columns = tuple(name.strip() for name in given.get("columns", ",".join(COLUMNS)).split(",") if name.strip())
        if not columns or set(columns) - set(COLUMNS) or len(set(columns)) < len(columns):
            raise ConfigError(f"columns={given['columns']!r}: name some of {', '.join(COLUMNS)}, each once")
        payload = given.get("payload")
        if payload not in (None, "json", "avro"):
            raise ConfigError(f"payload={payload!r}: json or avro, or leave it out to get the bytes")
        if (payload == "avro") != ("avroschema" in given):
            raise ConfigError("payload=avro and avroSchema=… belong together: an Avro message does not tell its schema")
        if "checkpoint" in given:
            check_name(given["checkpoint"], "checkpoint")
        if streaming and "end" in given:
            raise ConfigError("end: a streaming query has none; use trigger(availableNow=True), or spark.read")
        return cls(
            world=world,
            stream=stream,
            shards=parse_shards(given["shards"]) if "shards" in given else None,
            start=parse_place("start", given.get("start", "earliest")),
            end=parse_place("end", given.get("end", "latest")),
            bytes_per_batch=(
                parse_size("maxBytesPerTrigger", given["maxbytespertrigger"]) if "maxbytespertrigger" in given else None
            ),
            partition_bytes=parse_size("partitionBytes", given.get("partitionbytes", "128m"), least=4 * KIB),
            columns=columns,
            payload="json" if payload == "json" else "avro" if payload == "avro" else None,
            avro_schema=given.get("avroschema"),
            fails_on_malformed=_choice("malformed", given.get("malformed", "fail"), ("fail", "null")) == "fail",
            checkpoint=given.get("checkpoint"),
        )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    world: str
    stream: str
    shards: int | None = None  # of a stream that is made on first use
    transaction: tuple[str, int] | None = None  # of a batch write that may be tried again: who, and which

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "SinkOptions":
        given = _given(options, _BOTH + _SINK)
        world, stream = _world(given)
        if ("txnapp" in given) != ("txnversion" in given):
            raise ConfigError("txnApp and txnVersion belong together: the second tells one write from the next")
        transaction = None
        if "txnapp" in given:
            transaction = check_name(given["txnapp"], "txnApp"), _number("txnVersion", given["txnversion"])
        return cls(
            world=world,
            stream=stream,
            shards=_number("shards", given["shards"]) if "shards" in given else None,
            transaction=transaction,
        )


def parse_size(name: str, text: str, least: int = 1) -> int:
    """
    >>> parse_size("partitionBytes", "64m")
    67108864
    >>> parse_size("partitionBytes", "1000")
    1000
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or (size := int(match[1]) * _UNITS[match[2].lower()]) < least:
        raise ConfigError(f"{name}={text!r}: a number of bytes, as in 67108864 or 64m, and at least {least}")
    return size


def parse_shards(text: str) -> tuple[int, ...]:
    """
    >>> parse_shards("0-2,5")
    (0, 1, 2, 5)
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,5})(?:\s*-\s*(\d{1,5}))?\s*", part)
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ConfigError(f"shards={text!r}: numbers and ranges, as in 0-3,7")
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(sorted(found))


def parse_place(name: str, text: str) -> Place:
    """
    >>> parse_place("start", '{"0": 4096, "1": 0}')
    {0: 4096, 1: 0}
    >>> parse_place("start", "2026-11-16T07:00:00Z")
    datetime.datetime(2026, 11, 16, 7, 0, tzinfo=datetime.timezone.utc)
    """
    text = text.strip()
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    problem = ConfigError(
        f"{name}={text!r}: 'earliest', 'latest', a time as in 2026-11-16T07:00:00Z, or positions by shard as in "
        '{"0": 4096}'
    )
    if text.startswith("{"):
        try:
            positions = {int(shard): position for shard, position in json.loads(text).items()}
        except (ValueError, AttributeError):
            raise problem from None
        if not positions or not all(type(at) is int and at >= 0 for at in positions.values()):
            raise problem
        return positions
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise problem from None
    if time.tzinfo is None:
        raise ConfigError(f"{name}={text!r} has no time zone; write {text}Z for UTC")
    return time.astimezone(UTC)


def _given(options: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
    given = {name.lower(): value for name, value in options.items()}
    if unknown := sorted(given.keys() - set(known)):
        raise ConfigError(f"the format tailrace has no option {', '.join(unknown)} here. Nothing has started")
    return given


def _world(given: Mapping[str, str]) -> tuple[str, str]:
    world = given.get("world") or given.get("path")
    if not world:
        raise ConfigError("name the world's folder: option('world', 'data/')")
    if not given.get("stream"):
        raise ConfigError("name the stream: option('stream', 'clicks')")
    return world, check_name(given["stream"], "stream")


def _choice(name: str, text: str, words: Sequence[str]) -> str:
    if text not in words:
        raise ConfigError(f"{name}={text!r}: {' or '.join(words)}")
    return text


def _number(name: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise ConfigError(f"{name}={text!r}: a whole number, 0 or more")
    return int(text)
