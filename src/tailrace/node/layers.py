"""The cache beside a world's files, for this process: whoever produces serves it if nobody does, consumers find it."""

import math
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from ..config import LENGTHS_CACHE
from ..env import Clock
from ..errors import TailraceError
from ..streams import Layers, Source
from .caches import Caches

_RETRY_S = 1.0  # before a cache that is not there is looked for again


class WorldLayers:
    """Opens caches when they are first needed: the lengths' one, and the data's, of which a stream may have its own.
    Safe to share between threads."""

    def __init__(self, caches: Callable[[], Caches], clock: Clock) -> None:
        self._caches, self._clock = caches, clock
        self._opening = threading.Lock()
        self.found: dict[str, Layers] = {}  # by the name of the data cache
        self._served: set[str] = set()
        self._looked_s: dict[str, float] = {}
        self._bytes_from: Counter[Source] = Counter()

    def serve(self, cache: str) -> Layers:
        """For those who produce: the caches are made if they are not there, and served if nobody does."""
        with self._opening:
            if cache not in self._served:
                self.found[cache] = self._open(cache, serving=True)
                self._served.add(cache)
            return self.found[cache]

    def find(self, cache: str) -> Layers | None:
        """For those who consume: None while there is no cache."""
        with self._opening:
            now_s = self._clock.monotonic_s()
            if cache not in self.found and now_s >= self._looked_s.get(cache, -math.inf) + _RETRY_S:
                self._looked_s[cache] = now_s
                with suppress(TailraceError):
                    self.found[cache] = self._open(cache, serving=False)
            return self.found.get(cache)

    def _open(self, cache: str, *, serving: bool) -> Layers:
        caches = self._caches()
        lengths = caches.open(LENGTHS_CACHE, serving=serving, create=serving)
        try:
            data = caches.open(cache, serving=serving, create=serving)
        except BaseException:
            lengths.close()
            raise
        return Layers(data, lengths, self._bytes_from)
