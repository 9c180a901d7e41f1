"""The cache beside a world's files, for this process: whoever produces serves it if nobody does, consumers find it."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress

from ..config import DATA_CACHE, LENGTHS_CACHE
from ..env import Clock
from ..errors import TailraceError
from ..native.hints import Hints
from ..streams import Layers
from .caches import Caches
from .hosts import make_world_folder

_RETRY_S = 1.0  # before a cache that is not there is looked for again


class WorldLayers:
    """Opens the two caches when they are first needed. Safe to share between threads."""

    def __init__(self, caches: Callable[[], Caches], root: str, clock: Clock) -> None:
        self._caches, self._root, self._clock = caches, root, clock
        self._opening = threading.Lock()
        self.found: Layers | None = None
        self._serving = False
        self._looked_s = -_RETRY_S
        self._hints: Hints | None = None

    def serve(self) -> Layers:
        """For those who produce: the caches are made if they are not there, and served if nobody does."""
        with self._opening:
            if self.found is None or not self._serving:
                self.found = self._open(serving=True)
                self._serving = True
            return self.found

    def find(self) -> Layers | None:
        """For those who consume: None while there is no cache."""
        with self._opening:
            if self.found is None and self._clock.monotonic_s() >= self._looked_s + _RETRY_S:
                self._looked_s = self._clock.monotonic_s()
                with suppress(TailraceError):
                    self.found = self._open(serving=False)
            return self.found

    def hints(self) -> Hints | None:
        """None: they cannot be had here. Then consumers look now and then."""
        with self._opening, suppress(OSError):
            if self._hints is None:
                self._hints = Hints(os.path.join(make_world_folder(self._root), "hints"), make=True)
        return self._hints

    def _open(self, *, serving: bool) -> Layers:
        caches = self._caches()
        data, lengths = (caches.open(name, serving=serving, create=serving) for name in (DATA_CACHE, LENGTHS_CACHE))
        return Layers(data, lengths)
