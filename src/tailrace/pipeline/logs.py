"""A site's own copy of the message files, as the tracker and the creator look at it (U2, U3)."""

from contextlib import suppress
from typing import Protocol

from ..env import Clock
from ..errors import Corrupt, FileMissing, PositionRetired, TailraceError
from ..files import Files
from ..model import MessageFile
from ..streams import Catalog, ShardTail, cut_positions, file_ranges, find_position
from ..streams import Start as StreamStart
from ..streams.shard_files import shard_folder
from .ranges import ByteRange
from .tracking import Report, created_us_of

_SETTINGS_S = 1.0  # how old the knowledge of a stream's settings may be


class Logs(Protocol):
    """What a site has. All of it may be behind other sites; none of it ever differs from theirs."""

    def report(self, site: str, stream: str, shard: int) -> Report: ...

    def shards(self, stream: str) -> int: ...

    def start(self, stream: str, shard: int, start: StreamStart) -> int | None:
        """Where a pipeline begins that is to begin there; None: with the oldest message."""
        ...

    def cuts(self, stream: str, shard: int, begin: int, end: int, bytes_max: int) -> list[int]: ...

    def time_us(self, one: ByteRange) -> int:
        """Of the first message in a range."""
        ...

    def middle(self, one: ByteRange) -> int | None:
        """Where a message begins, near the middle of the range; None if it has but one."""
        ...


class StreamLogs:
    def __init__(self, files: Files, clock: Clock) -> None:
        self._files, self._clock, self._catalog = files, clock, Catalog(files)
        self._times: dict[tuple[str, int, int], int] = {}
        self._settings: dict[str, tuple[float, int, str]] = {}  # when they were read, shards, incarnation

    def shards(self, stream: str) -> int:
        return self._about(stream)[1]

    def _about(self, stream: str) -> tuple[float, int, str]:
        now_s = self._clock.monotonic_s()
        found = self._settings.get(stream)
        if found is None or now_s - found[0] >= _SETTINGS_S:
            found = now_s, self._catalog.config(stream).shards, self._catalog.incarnation(stream)
            self._settings[stream] = found
        return found

    def report(self, site: str, stream: str, shard: int) -> Report:
        incarnation = self._about(stream)[2]
        try:
            found = file_ranges(self._files, stream, shard)
        except Corrupt as damage:  # of the last message: all before it can be had
            if damage.position is None:
                raise
            return Report(
                site, stream, shard, incarnation, self._files_before(stream, shard, damage.position), damage.position
            )
        end = found[-1].end if found else 0
        return Report(site, stream, shard, incarnation, tuple(one.name for one in found), end)

    def _files_before(self, stream: str, shard: int, position: int) -> tuple[str, ...]:
        named = (MessageFile.parse(name) for name in self._files.list(shard_folder(stream, shard)))
        by_base = {file.base: file.name for file in named if file and file.track == "data" and file.base < position}
        return tuple(by_base[base] for base in sorted(by_base))

    def start(self, stream: str, shard: int, start: StreamStart) -> int | None:
        if start == "earliest":
            return None
        return find_position(self._files, self._clock, stream, shard, start)

    def cuts(self, stream: str, shard: int, begin: int, end: int, bytes_max: int) -> list[int]:
        if end - begin <= bytes_max:
            return []
        # An index that is damaged may name places that cannot be: then the bytes stay together, and are divided when
        # they fail.
        with suppress(Corrupt, FileMissing):
            return [at for at in cut_positions(self._files, stream, shard, begin, end, bytes_max) if begin < at < end]
        return []

    def time_us(self, one: ByteRange) -> int:
        key = (one.stream, one.shard, one.begin)
        if key not in self._times:
            if len(self._times) > 10_000:
                self._times.clear()
            self._times[key] = self._read_time_us(one)
        return self._times[key]

    def _read_time_us(self, one: ByteRange) -> int:
        with suppress(TailraceError):
            tail = ShardTail(self._files, self._clock, one.stream, one.shard, one.begin)
            try:
                batch = tail.poll(1)
                if batch is not None and batch.count:
                    return batch.messages()[0].timestamp_us
            finally:
                tail.close()
        return created_us_of(one.file)

    def middle(self, one: ByteRange) -> int | None:
        with suppress(Corrupt, PositionRetired, FileMissing):
            cuts = cut_positions(self._files, one.stream, one.shard, one.begin, one.end, max(1, one.size // 2))
            return next((at for at in cuts if one.begin < at < one.end), None)
        return None
