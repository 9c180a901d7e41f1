"""What a process tells the world's store for as long as it lives, and no longer: under a lease that is kept."""

import threading
from collections.abc import Callable
from contextlib import suppress

from ..coordination import Coordination, Lease
from ..errors import LeaseExpired, TailraceError


class HeldLease:
    """One that is kept alive, and taken anew when it was lost. Belongs to one thread."""

    def __init__(self, store: Coordination, lease_s: float) -> None:
        self._store, self._lease_s = store, lease_s
        self._lease: Lease | None = None

    def hold(self) -> tuple[int, bool]:
        """Its number, and whether it is a new one, under which nothing is told yet."""
        if self._lease is not None:
            try:
                self._lease.keep_alive()
                return self._lease.id, False
            except LeaseExpired:
                pass
        self._lease = self._store.lease(self._lease_s)
        return self._lease.id, True

    def release(self) -> None:
        """What was told under it goes."""
        with suppress(TailraceError):
            if self._lease is not None:
                self._lease.revoke()


class Telling:
    """A thread that calls `tell` now and then, with the lease's number and whether it is a new one. While the store is
    away it tries again."""

    def __init__(
        self, store: Coordination, tell: Callable[[int, bool], None], *, lease_s: float, every_s: float, name: str
    ) -> None:
        self._lease, self._tell, self._every_s = HeldLease(store, lease_s), tell, every_s
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        self._lease.release()

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(TailraceError):
                self._tell(*self._lease.hold())
            self._closed.wait(self._every_s)
