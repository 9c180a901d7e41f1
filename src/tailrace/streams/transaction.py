"""Transactions: messages for several shards of a stream that become visible together. docs/formats/transactions.md.

A transaction is committed by one act, the publication of its record. The record says where each message lies and which
position it has, so that anybody can carry it out, again and again, from wherever somebody else was stopped: small parts
are in the record itself and are appended; large ones are whole segments that lie ready and are moved into their shards.

Invariant: whoever claims a shard carries out what is pending there before it appends anything of its own
(`ShardLog`). So a part that is not there yet begins exactly where its shard ends.
"""

import json
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..errors import Corrupt, FileMissing
from ..files import Files
from ..model import check_name
from ..native import ENTRY_BYTES, count_to_position, crc32c
from .segments import Segment

_MAGIC = b"TRTXN001"
_HEAD = struct.Struct("<8sQ")
_SUM = struct.Struct("<I")
_ALIGN = 8  # entries are read in place
_NAME = re.compile(r"(.+)\.([0-9]{20})")
_ONCE = re.compile(r"once-([0-9]{20})-")
_READ_MAX = 1 << 30


@dataclass(frozen=True, slots=True)
class TransactionName:
    """Who, and which of its batches. The same name is committed once."""

    app: str
    batch: int

    def __post_init__(self) -> None:
        check_name(self.app, "transaction")
        if not 0 <= self.batch < 1 << 63:
            raise ValueError(f"batch {self.batch}: a number from 0 on")

    def __str__(self) -> str:
        return f"{self.app}.{self.batch:020d}"

    @classmethod
    def for_once(cls, time_us: int, nonce: str) -> "TransactionName":
        """Of an application that commits once and never comes again. It tells when that was."""
        return cls(f"once-{time_us:020d}-{nonce}", 0)

    @property
    def once_us(self) -> int | None:
        """When it was made, if it is for once."""
        match = _ONCE.match(self.app)
        return None if match is None else int(match[1])

    @classmethod
    def parse(cls, name: str) -> "TransactionName | None":
        match = _NAME.fullmatch(name)
        return None if match is None else cls(match[1], int(match[2]))


@dataclass(frozen=True, slots=True)
class Adopted:
    """A whole segment: where its two files lie, and what it will be. The index file is last to be moved."""

    data: str
    index: str
    segment: Segment
    end: int
    count: int
    last_time_us: int


@dataclass(frozen=True, slots=True)
class Run:
    """Messages one behind the other, with their entries, ready to be appended."""

    start: int
    end: int
    count: int
    last_time_us: int
    data: memoryview
    entries: memoryview

    def behind(self, position: int) -> "Run":
        """Those from a position on, where one of them begins: a crash of the machine may have kept the others."""
        if position == self.start:
            return self
        there = count_to_position(self.entries, position)
        return Run(
            position,
            self.end,
            self.count - there,
            self.last_time_us,
            self.data[position - self.start :],
            self.entries[there * ENTRY_BYTES :],
        )


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What one shard gets: first the segments, then the run."""

    shard: int
    adopted: tuple[Adopted, ...]
    run: Run | None

    @property
    def start(self) -> int:
        return self.adopted[0].segment.data_base if self.adopted else self.run.start if self.run else 0

    @property
    def end(self) -> int:
        return self.run.end if self.run else self.adopted[-1].end if self.adopted else 0


@dataclass(frozen=True, slots=True)
class Transaction:
    """once: nobody will ever ask for it again, so that its record need not be kept."""

    name: TransactionName
    time_us: int
    once: bool
    parts: tuple[ShardPart, ...]
    note: str = ""  # the application's own, committed with it

    @property
    def payload_bytes(self) -> int:
        return sum(len(part.run.data) + len(part.run.entries) for part in self.parts if part.run is not None)

    def encode(self) -> bytes:
        payload, parts = bytearray(), []

        def put(content: memoryview) -> list[int]:
            at = len(payload)
            payload.extend(content)
            payload.extend(bytes(-len(payload) % _ALIGN))
            return [at, len(content)]

        for part in self.parts:
            run = part.run and {
                "start": part.run.start,
                "end": part.run.end,
                "count": part.run.count,
                "last_time_us": part.run.last_time_us,
                "data": put(part.run.data),
                "entries": put(part.run.entries),
            }
            adopted = [
                {
                    "data": one.data,
                    "index": one.index,
                    "created_us": one.segment.created_us,
                    "data_base": one.segment.data_base,
                    "index_base": one.segment.index_base,
                    "end": one.end,
                    "count": one.count,
                    "last_time_us": one.last_time_us,
                }
                for one in part.adopted
            ]
            parts.append({"shard": part.shard, "segments": adopted, "run": run})
        table = {
            "app": self.name.app,
            "batch": self.name.batch,
            "time_us": self.time_us,
            "once": self.once,
            "shards": parts,
        }
        if self.note:
            table["note"] = self.note
        text = json.dumps(table).encode()
        text += b" " * (-len(text) % _ALIGN)
        body = b"".join((_HEAD.pack(_MAGIC, len(text)), text, payload))
        return body + _SUM.pack(crc32c(body))

    @classmethod
    def decode(cls, raw: bytes) -> "Transaction":
        """ValueError says what is wrong with it."""
        if len(raw) < _HEAD.size + _SUM.size or raw[:8] != _MAGIC:
            raise ValueError("is no record of a transaction that this Tailrace knows")
        body = memoryview(raw)[: -_SUM.size]
        if crc32c(body) != _SUM.unpack_from(raw, len(body))[0]:
            raise ValueError("fails its checksum")
        try:
            behind = _HEAD.size + _HEAD.unpack_from(raw)[1]
            table = json.loads(bytes(body[_HEAD.size : behind]))
            parts = tuple(_part(part, body[behind:]) for part in table["shards"])
            return cls(
                TransactionName(table["app"], table["batch"]),
                table["time_us"],
                table["once"],
                parts,
                table.get("note", ""),
            )
        except (KeyError, TypeError, IndexError) as wrong:
            raise ValueError(f"does not say all it should: {wrong!r}") from None


def _part(part: dict[str, Any], payload: memoryview) -> ShardPart:
    def get(place: list[int]) -> memoryview:
        return payload[place[0] : place[0] + place[1]]

    adopted = tuple(
        Adopted(
            one["data"],
            one["index"],
            Segment(one["created_us"], one["data_base"], one["index_base"]),
            one["end"],
            one["count"],
            one["last_time_us"],
        )
        for one in part["segments"]
    )
    run = part["run"] and Run(
        part["run"]["start"],
        part["run"]["end"],
        part["run"]["count"],
        part["run"]["last_time_us"],
        get(part["run"]["data"]),
        get(part["run"]["entries"]),
    )
    return ShardPart(part["shard"], adopted, run)


def pending_folder(stream: str) -> str:
    return f"streams/{stream}/transactions/pending"


def pending_names(files: Files, stream: str) -> list[TransactionName]:
    return [name for text in files.list(pending_folder(stream)) if (name := TransactionName.parse(text))]


def load_record(files: Files, path: str) -> Transaction:
    with files.view(path) as view:
        raw = bytearray(min(view.length().readable_bytes, _READ_MAX))
        view.read_into(0, memoryview(raw))
    return Transaction.decode(bytes(raw))


def load_pending(files: Files, stream: str, name: TransactionName) -> Transaction | None:
    """None when it was carried out meanwhile, and its record is gone."""
    path = f"{pending_folder(stream)}/{name}"
    try:
        return load_record(files, path)
    except FileMissing:
        return None
    except ValueError as wrong:
        raise Corrupt(
            f"{path} {wrong}. It was committed and cannot be carried out: restore it from a copy. Deleting it gives up "
            "what is not in the shards yet"
        ) from None


def pending_parts(files: Files, stream: str, shard: int) -> list[ShardPart]:
    """What is committed for a shard and perhaps not in it yet, in order."""
    return sorted(_parts_of(files, stream, shard), key=lambda part: part.start)


def _parts_of(files: Files, stream: str, shard: int) -> Iterator[ShardPart]:
    with suppress(FileMissing):
        for name in pending_names(files, stream):
            if transaction := load_pending(files, stream, name):
                yield from (part for part in transaction.parts if part.shard == shard)
