"""A cache on this host before one on others: what an ambassador has brought here is read here (A79).

Whatever the near one lacks, the home one is asked for. So an ambassador that is behind, or dead, costs time and nothing
else.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from typing_extensions import Buffer

from ..env import Clock
from ..errors import TailraceError
from ..files.chunks import ChunkCache
from ..files.lengths import LengthCache
from .layers import Source, Watch
from .tracks import SILENT_S


class NearChunks:
    """Consumers count what they read as the ambassador's; what came from home after all is counted as such here."""

    def __init__(self, near: ChunkCache, home: ChunkCache, bytes_from: Counter[Source]) -> None:
        self._near, self._home, self._bytes_from = near, home, bytes_from

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]:
        if not relaxed:  # somebody found the near one wanting
            return self._home.get_parts(prefix, first, count, buffer, stride, only=only)
        sizes = self._near.get_parts(prefix, first, count, buffer, stride, relaxed=True, only=only)
        missing = [number for number in (range(count) if only is None else only) if sizes[number] < 0]
        if missing:
            further = self._home.get_parts(prefix, first, count, buffer, stride, relaxed=True, only=missing)
            for number in missing:
                sizes[number] = further[number]
                brought = max(0, further[number])
                self._bytes_from["ambassador"] -= brought
                self._bytes_from["relaxed"] += brought
        return sizes

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object:
        return self._home.set_many(items)


class NearLengths:
    """Believes the near one as long as it says something new now and then, as every producer's beat makes it do."""

    def __init__(self, near: LengthCache, home: LengthCache, clock: Clock) -> None:
        self._near, self._home, self._clock = near, home, clock
        self._heard: dict[bytes, tuple[bytes, float]] = {}  # by key: what the near one says, and since when

    def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        now_s, found = self._clock.monotonic_s(), list(self._near.get_many(keys))
        silent = []
        for number, (key, raw) in enumerate(zip(keys, found, strict=True)):
            if raw is None:
                silent.append(number)
                continue
            before = self._heard.get(key)
            if before is None or before[0] != raw:
                self._heard[key] = raw, now_s
            elif now_s > before[1] + SILENT_S / 2:  # before consumers take it for the producer's silence
                silent.append(number)
        if silent:
            for number, raw in zip(silent, self._home.get_many([keys[i] for i in silent]), strict=True):
                found[number] = raw if raw is not None else found[number]
        return found

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object:
        return self._home.set_many(items)


class NearWatch:
    """The near one tells sooner; without it the home one does. One that is frozen must not keep anybody asleep."""

    def __init__(self, near: Watch, home: Watch) -> None:
        self._near, self._home = near, home

    def wait(self, timeout_s: float) -> bool:
        try:
            return self._near.wait(min(timeout_s, SILENT_S / 2))
        except TailraceError:
            return self._home.wait(timeout_s)

    @property
    def native(self) -> None:
        """There are two, and which of them tells is decided for each wait."""
        return None

    def stop(self) -> None:
        self._near.stop()
        self._home.stop()
