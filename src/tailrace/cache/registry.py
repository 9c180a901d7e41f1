"""What the rest of the world knows of a cache: its settings, and which backends serve it now and where.

Clients find a changed backend by its instance and a changed cache by its configuration id, and then look here again.
Who keeps this is not the cache's business: `node` keeps it in coordination.
"""

from dataclasses import dataclass
from typing import Protocol

from ..config import CacheConfig


@dataclass(frozen=True, slots=True)
class CacheRecord:
    config: CacheConfig
    config_id: int  # never 0


@dataclass(frozen=True, slots=True)
class BackendRecord:
    """Where a backend serves. `host` is equal for processes that share memory. `door`: its engine on this host;
    `engine`: for other hosts, "" when it has none."""

    instance: int
    config_id: int
    host: str
    folder: str
    rpc: tuple[str, ...]
    door: str = ""
    engine: str = ""
    pid: int = 0


@dataclass(frozen=True, slots=True)
class Standing:
    """A cache as it stands at one revision. `backends` has those that are alive, by their number."""

    record: CacheRecord
    backends: dict[int, BackendRecord]
    revision: int


class Tenure(Protocol):
    """A backend's entry, for as long as it says that it is alive."""

    def keep_alive(self) -> None:
        """LeaseExpired: it was silent for too long and has to enter again."""
        ...

    def leave(self) -> None: ...


class Changes(Protocol):
    def wait(self, timeout_s: float) -> bool:
        """True as soon as something changed; False when the time is over, or after close()."""
        ...

    def close(self) -> None: ...


class Registry(Protocol):
    """One cache's entries. Safe to share between threads."""

    @property
    def name(self) -> str: ...

    def standing(self) -> Standing:
        """CacheMissing: there is no such cache (any more)."""
        ...

    def changes(self, after_revision: int) -> Changes: ...

    def client_id(self) -> int:
        """A number that no other client of this cache has, from 1."""
        ...

    def is_first(self, index: int) -> bool:
        """No backend of this number was ever there before, so nothing can have been lost. True once, for the first one
        that asks."""
        ...

    def enter(self, index: int, backend: BackendRecord) -> Tenure:
        """This backend serves from now on."""
        ...
