"""The streams of a durable layer: each has a folder with its settings and a folder for each shard."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise

from ..config import Retention, StreamConfig, decode, encode
from ..env import Clock, SystemClock
from ..errors import ConfigError, Corrupt, FileMissing, FileProblem, NameRefused, StreamExists, StreamMissing
from ..files import Files
from ..model import check_name
from .segments import segments_of
from .shard_files import SegmentView, find_end, shard_folder

_SETTINGS_VERSION = 1
_TRIES = 20
_DELETED = "newest-deleted"  # the incarnation of the newest stream that was deleted here


@dataclass(frozen=True, slots=True)
class ShardStatus:
    """What a shard holds: `messages` counts those kept, `files` segments, `size_bytes` data and index."""

    shard: int
    start: int
    end: int
    messages: int
    files: int
    size_bytes: int
    newest_us: int | None


class Catalog:
    def __init__(self, files: Files, clock: Clock | None = None) -> None:
        self._files, self._clock = files, clock or SystemClock()

    def names(self) -> list[str]:
        return [name for name in self._files.list("streams") if self._has(name)]

    def create(self, name: str, config: StreamConfig) -> StreamConfig:
        """Make a stream; StreamExists if there is one."""
        self._files.make_folder(f"streams/{check_name(name, 'stream')}")
        if not self._publish(name, config, fresh=True, incarnation=self._next_incarnation()):
            raise StreamExists(
                f"the stream {name!r} is there already; open it, or delete it first. Nothing was changed"
            )
        return config

    def open(self, name: str, config: StreamConfig | None, shards: int | None = None) -> StreamConfig:
        """The settings of a stream. It is made with `config` if that is given and it is not there yet."""
        check_name(name, "stream")
        if config is not None and not self._has(name):
            fresh = config if shards is None else replace(config, shards=shards)
            try:
                return self.create(name, fresh)
            except StreamExists:
                pass  # somebody was faster, which is as good
        found = self.config(name)
        if shards is not None and shards != found.shards:
            raise StreamExists(
                f"the stream {name!r} has {found.shards} shards, not {shards}; that number is fixed, since it decides "
                "where keys go. Leave `shards` out, or use another stream. Nothing was changed"
            )
        return found

    def config(self, name: str) -> StreamConfig:
        return self._load(name)[0]

    def incarnation(self, name: str) -> str:
        """Another one each time a stream of this name is made, and one that sorts behind those before: what belonged to
        an earlier one is not taken for its, and of two copies one can tell which is the newer."""
        return self._load(name)[1]

    def _next_incarnation(self) -> str:
        return f"{max(self._clock.time_us(), self._newest_deleted_us() + 1):016x}{secrets.token_hex(4)}"

    def _newest_deleted_us(self) -> int:
        """Behind this the next one must lie, even if the clock went back."""
        try:
            return _made_us(bytes(self._files.read(_DELETED)).decode(errors="replace"))
        except FileMissing:
            return 0

    def _load(self, name: str) -> tuple[StreamConfig, str]:
        path = _settings(check_name(name, "stream"))
        try:
            raw = self._files.read(path)
        except FileMissing:
            raise self._missing(name) from None
        try:
            table = json.loads(raw)
            if table.pop("version") != _SETTINGS_VERSION:
                raise ValueError("another version")
            incarnation = check_name(table.pop("incarnation"), "incarnation")
            return decode(StreamConfig, table), incarnation
        except (ValueError, KeyError, TypeError, AttributeError, ConfigError, NameRefused) as wrong:
            raise Corrupt(
                f"{path} is not a stream's settings: {wrong}. Restore it; the messages are not affected"
            ) from None

    def set_retention(self, name: str, retention: Retention) -> StreamConfig:
        config, incarnation = self._load(name)
        config = replace(config, retention=retention)
        self._publish(name, config, fresh=False, incarnation=incarnation)
        return config

    def delete(self, name: str) -> None:
        """With all its messages, at once: a crash leaves either all of it or nothing that anybody sees."""
        if not self._has(check_name(name, "stream")):
            raise self._missing(name)
        incarnation = self.incarnation(name)
        if _made_us(incarnation) > self._newest_deleted_us():
            self._files.publish(_DELETED, incarnation.encode(), replace=True)
        self._files.delete_folder(f"streams/{name}")

    def shard(self, name: str, shard: int) -> ShardStatus:
        for _ in range(_TRIES - 1):
            with suppress(FileMissing):  # retention was faster
                return self._shard(name, shard)
        return self._shard(name, shard)

    def _shard(self, name: str, shard: int) -> ShardStatus:
        folder = shard_folder(name, shard)
        end = find_end(self._files, name, shard)
        segments = segments_of(self._files.list(folder))
        if not segments or end.segment is None:
            return ShardStatus(shard, end.position, end.position, 0, 0, 0, None)
        with SegmentView(self._files, folder, segments[0]) as oldest:
            first_number = oldest.header().base_number
        start = segments[0].data_base
        standing = segments[: segments.index(end.segment) + 1] if end.segment in segments else segments
        return ShardStatus(
            shard=shard,
            start=start,
            end=end.position,
            messages=end.number - first_number,
            # One that was torn while it was made is no part of the stream: copies do not have it.
            files=1 + sum(later.index_base > one.index_base for one, later in pairwise(standing)),
            size_bytes=end.position - start + end.index_base - segments[0].index_base,
            newest_us=end.time_us if end.number > first_number else None,
        )

    def _missing(self, name: str) -> StreamMissing:
        return StreamMissing(f"there is no stream {name!r}; there are: {', '.join(self.names()) or 'none yet'}")

    def _has(self, name: str) -> bool:
        try:
            return "stream.json" in self._files.list(f"streams/{name}")
        except (NameRefused, FileProblem):  # something of another kind lies there
            return False

    def _publish(self, name: str, config: StreamConfig, *, fresh: bool, incarnation: str) -> bool:
        table = {"version": _SETTINGS_VERSION, "incarnation": incarnation, **encode(config)}
        content = json.dumps(table, indent=2) + "\n"
        return self._files.publish(_settings(name), content.encode(), replace=not fresh)


def _made_us(incarnation: str) -> int:
    """When it was made; 0 if its name does not say."""
    try:
        return int(incarnation[:16], 16)
    except ValueError:
        return 0


def _settings(name: str) -> str:
    return f"streams/{name}/stream.json"
