"""What coordination keeps of a cache: its settings, and which backends serve it now and where.

caches/NAME/config          settings and the configuration id; a change of either raises the id
caches/NAME/clients         how many client ids were given out
caches/NAME/backends/00002  where backend 2 serves; held by its lease, so it goes when the backend does
"""

import json
import threading
import time
from dataclasses import asdict, replace

from ..cache import BackendRecord, CacheRecord, Standing
from ..config import CacheConfig, decode, encode
from ..coordination import (
    Coordination,
    Delete,
    Entry,
    Lease,
    Put,
    compare_and_swap,
    put_if_absent,
)
from ..errors import CacheExists, CacheMissing, ConfigError, Corrupt
from ..model import check_name

_LOOK_S = 0.2
LEASE_S = 3.0  # a backend that was silent for so long is taken for dead


class CacheRegistry:
    """One cache's keys."""

    def __init__(self, coordination: Coordination, name: str) -> None:
        check_name(name, "cache")
        self.name, self._store = name, coordination
        self._prefix = f"caches/{name}/"

    def create(self, config: CacheConfig) -> CacheRecord:
        """Make the cache, or find it as it is asked for. CacheExists: it is there with other settings."""
        record = CacheRecord(config, 1)
        made = put_if_absent(self._store, self._prefix + "config", _config_json(record))
        if made.succeeded:
            return record
        there = self.record()
        if there.config != config:
            raise CacheExists(
                f"the cache {self.name!r} is there already, with {_difference(there.config, config)}; open it without "
                f"settings to use it as it is, or change it with configure()"
            )
        return there

    def find(self) -> CacheRecord | None:
        entry = self._store.get(self._prefix + "config")
        return None if entry is None else _config(entry)

    def record(self) -> CacheRecord:
        found = self.find()
        if found is None:
            raise CacheMissing(f"there is no cache {self.name!r}; make it with create_cache({self.name!r})")
        return found

    def configure(self, config: CacheConfig) -> CacheRecord:
        """Other settings under the next configuration id: backends and clients take them up."""
        while True:
            entry = self._store.get(self._prefix + "config")
            if entry is None:
                raise CacheMissing(f"there is no cache {self.name!r}; nothing was changed")
            there = _config(entry)
            for name in ("mode", "backends"):
                asked, stays = getattr(config, name), getattr(there.config, name)
                if asked != stays:
                    raise ConfigError(
                        f"{name}={asked!r}: the cache {self.name!r} has {stays!r}, which decides where its keys are; "
                        f"make another cache"
                    )
            next_record = CacheRecord(config, there.config_id + 1)
            if compare_and_swap(self._store, entry.key, entry, _config_json(next_record)).succeeded:
                return next_record

    def standing(self) -> Standing:
        snapshot = self._store.range(self._prefix)
        record: CacheRecord | None = None
        backends: dict[int, BackendRecord] = {}
        for entry in snapshot.entries:
            if entry.key == self._prefix + "config":
                record = _config(entry)
            elif entry.key.startswith(self._prefix + "backends/"):
                backends[int(entry.key.rsplit("/", 1)[1])] = _backend(entry)
        if record is None:
            raise CacheMissing(f"there is no cache {self.name!r}; make it with create_cache({self.name!r})")
        return Standing(record, backends, snapshot.revision)

    def changes(self, after_revision: int) -> "_Changes":
        return _Changes(self._store, self._prefix, after_revision)

    def client_id(self) -> int:
        """A number that no other client of this cache has."""
        key = self._prefix + "clients"
        while True:
            entry = self._store.get(key)
            number = 1 if entry is None else int(entry.value) + 1
            if compare_and_swap(self._store, key, entry, str(number).encode()).succeeded:
                return number % ((1 << 32) - 1) + 1

    def is_first(self, index: int) -> bool:
        """No backend of this number was ever there before."""
        return put_if_absent(self._store, f"{self._prefix}started/{index:05d}", b"").succeeded

    def enter(self, index: int, backend: BackendRecord) -> "_Tenure":
        """This backend serves from now on, for as long as it says that it is alive."""
        key, lease = f"{self._prefix}backends/{index:05d}", self._store.lease(LEASE_S)
        self._store.transact((), [Put(key, _backend_json(backend), lease.id)])
        return _Tenure(lease)

    def delete(self) -> None:
        """Forget the cache. Its backends notice and end."""
        entries = self._store.range(self._prefix).entries
        if entries:
            self._store.transact((), [Delete(entry.key) for entry in entries])


class _Tenure:
    """A successor's entry is bound to a lease of its own, so that ending ours leaves it alone."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    def keep_alive(self) -> None:
        self._lease.keep_alive()

    def leave(self) -> None:
        self._lease.revoke()


class _Changes:
    """Looks now and then rather than watching: whoever is in a hurry finds a changed backend by asking it."""

    def __init__(self, store: Coordination, prefix: str, after_revision: int) -> None:
        self._store, self._prefix = store, prefix
        self._closed = threading.Event()
        self._seen = self._look() if after_revision == 0 else None
        self._after = after_revision

    def _look(self) -> dict[str, int]:
        return {entry.key: entry.revision for entry in self._store.range(self._prefix).entries}

    def wait(self, timeout_s: float) -> bool:
        end_s = time.monotonic() + timeout_s
        while True:
            found = self._look()
            before, self._seen = self._seen, found
            if found != before and (before is not None or max(found.values(), default=0) > self._after):
                return True
            left_s = end_s - time.monotonic()
            if left_s <= 0 or self._closed.wait(min(left_s, _LOOK_S)):
                return False

    def close(self) -> None:
        self._closed.set()


def cache_names(coordination: Coordination) -> list[str]:
    """The names of all caches."""
    keys = (entry.key for entry in coordination.range("caches/").entries)
    return [key.split("/")[1] for key in keys if key.endswith("/config")]


def _config_json(record: CacheRecord) -> bytes:
    return json.dumps({"config_id": record.config_id, "config": encode(record.config)}).encode()


def _config(entry: Entry) -> CacheRecord:
    try:
        table = json.loads(entry.value)
        return CacheRecord(decode(CacheConfig, table["config"]), int(table["config_id"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise Corrupt(f"{entry.key} in coordination is not a cache's settings: {wrong}") from None


def _backend_json(backend: BackendRecord) -> bytes:
    return json.dumps(asdict(backend)).encode()


def _backend(entry: Entry) -> BackendRecord:
    try:
        table = json.loads(entry.value)
        return replace(BackendRecord(**table), rpc=tuple(table["rpc"]))
    except (ValueError, KeyError, TypeError) as wrong:
        raise Corrupt(f"{entry.key} in coordination is not a backend's entry: {wrong}") from None


def _difference(there: CacheConfig, asked: CacheConfig) -> str:
    mine, yours = encode(there), encode(asked)
    names = sorted(name for name in {*mine, *yours} if mine.get(name) != yours.get(name))
    return ", ".join(f"{name}={mine.get(name)!r} instead of {yours.get(name)!r}" for name in names)
