"""A worker that stands by has opened what it may be given: whoever takes over an operation has no time for that."""

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress

from ..errors import TailraceError

_AGAIN_S = 1.0  # what was not there is looked for again


class Standby:
    """`streams`: those that this process may be given. `prepare` opens what one needs; False: it is not there yet."""

    def __init__(self, streams: Callable[[], Iterable[str]], prepare: Callable[[str], bool]) -> None:
        self._streams, self._prepare = streams, prepare
        self._ready: set[str] = set()
        self._look = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="tailrace stands by", daemon=True)
        self._thread.start()

    def look(self) -> None:
        """There may be others now."""
        self._look.set()

    def close(self) -> None:
        self._closed = True
        self._look.set()
        self._thread.join(5.0)

    def _run(self) -> None:
        while not self._closed:
            self._look.clear()
            self._look.wait(None if self._try() else _AGAIN_S)

    def _try(self) -> bool:
        """Whether all of them are ready."""
        with suppress(TailraceError):
            wanted = set(self._streams())
            self._ready &= wanted
            for stream in wanted - self._ready:
                with suppress(TailraceError):
                    if not self._closed and self._prepare(stream):
                        self._ready.add(stream)
            return wanted == self._ready
        return False
