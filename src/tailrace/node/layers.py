"""The cache beside a world's files, for this process: whoever produces serves it if nobody does, consumers find it.

Where it lies on other hosts, consumers read what an ambassador has brought to this one, if there is an ambassador.
"""

import hashlib
import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from ..cache import Cache
from ..config import LENGTHS_CACHE
from ..env import Clock
from ..errors import TailraceError
from ..files.lengths import BEAT_AT
from ..streams import Layers, NearChunks, NearLengths, NearWatch, Source, Watch
from .caches import Caches
from .hosts import host_id

_RETRY_S = 1.0  # before a cache that is not there is looked for again


def near_cache(host: str | None) -> str:
    """What an ambassador's cache on this host is called."""
    return f"near-{hashlib.sha256(host_id(host).encode()).hexdigest()[:16]}"


class WorldLayers:
    """Opens caches when they are first needed: the lengths' one, and the data's, of which a stream may have its own.
    Safe to share between threads."""

    def __init__(self, caches: Callable[[], Caches], clock: Clock, host: str | None) -> None:
        self._caches, self._clock, self._near_name = caches, clock, near_cache(host)
        self._opening = threading.Lock()
        self._home: dict[str, Layers] = {}  # by the name of the data cache
        self._near: dict[str, Layers] = {}  # the same behind what an ambassador has here
        self._far: set[str] = set()  # those at home on other hosts, of which there may be an ambassador one day
        self._served: set[str] = set()
        self._looked_s: dict[tuple[str, str], float] = {}
        self._bytes_from: Counter[Source] = Counter()

    def serve(self, cache: str) -> Layers:
        """For those who produce: the caches are made if they are not there, and served if nobody does."""
        with self._opening:
            if cache not in self._served:
                self._home[cache] = self._open(cache, serving=True)
                self._served.add(cache)
            return self._home[cache]

    def join(self, cache: str) -> Layers | None:
        """As `serve`, if all backends are served already: for those who stand by, and shall take none."""
        with suppress(TailraceError):
            standing = [self._caches().standing(name) for name in (LENGTHS_CACHE, cache)]
            if all(len(one.backends) == one.record.config.backends for one in standing):
                return self.serve(cache)
        return None

    def find(self, cache: str) -> Layers | None:
        """For those who consume: None while there is no cache."""
        found = self._near.get(cache) or self._home.get(cache)
        if found is not None and cache not in self._far:
            return found
        home = self.home(cache)
        if home is None or cache not in self._far or not self._is_time(cache, "near"):
            return found or home
        self._settle(cache, home)
        if cache not in self._far:
            return home  # it was just not there yet
        with self._opening, suppress(TailraceError):
            near = self._caches().open(self._near_name, serving=False, create=False, transport="memory")
            self._near[cache] = replace(
                home,
                data=NearChunks(near, home.data, self._bytes_from),
                lengths=NearLengths(near, home.lengths, self._clock),
                nearest="ambassador",
                grip=partial(near.grip, near),
                watch=partial(_near_watch, near, home),
                far=False,
            )
            self._far.discard(cache)
        return self._near.get(cache, home)

    def home(self, cache: str) -> Layers | None:
        """Without what an ambassador has."""
        with self._opening:
            if cache not in self._home and self._is_time(cache, "home"):
                with suppress(TailraceError):
                    self._home[cache] = self._open(cache, serving=False)
            return self._home.get(cache)

    def _is_time(self, cache: str, place: str) -> bool:
        now_s = self._clock.monotonic_s()
        if now_s < self._looked_s.get((cache, place), -math.inf) + _RETRY_S:
            return False
        self._looked_s[cache, place] = now_s
        return True

    def _open(self, cache: str, *, serving: bool) -> Layers:
        caches = self._caches()
        lengths = caches.open(LENGTHS_CACHE, serving=serving, create=serving)
        try:
            data = caches.open(cache, serving=serving, create=serving)
        except BaseException:
            lengths.close()
            raise
        watch = partial(lengths.watch, skip=BEAT_AT)
        found = Layers(data, lengths, self._bytes_from, grip=partial(lengths.grip, data), watch=watch)
        self._settle(cache, found)
        return found

    def _settle(self, cache: str, home: Layers) -> None:
        """Whether it is on this host."""
        data, lengths = home.data, home.lengths
        assert isinstance(data, Cache)
        assert isinstance(lengths, Cache)
        home.far = not (data.in_memory and lengths.in_memory)
        if home.far:
            self._far.add(cache)
        else:
            self._far.discard(cache)


def _near_watch(near: Cache, home: Layers, keys: Sequence[bytes]) -> Watch:
    assert home.watch is not None
    return NearWatch(near.watch(keys, skip=BEAT_AT), home.watch(keys))
