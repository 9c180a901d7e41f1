"""The caches of a world, for this process: opens them, and serves those backends that nobody else does.

In a world without servers the first process that opens a cache serves its backends. Others on the host read their
memory and send them mutations; when that process is gone, the next one that needs a backend serves it.
"""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..cache import Backend, Cache, Standing, Ways
from ..config import CacheClientConfig, CacheConfig, TlsConfig, WorldConfig, decode
from ..coordination import Coordination
from ..env import Clock
from ..errors import CacheMissing, Closed, ConfigError, Denied, FileProblem
from ..wire import BackendPeer, Server, serve
from .cache_registry import CacheRegistry, cache_names
from .hosts import cell_folder, host_id, make_world_folder


@dataclass(slots=True)
class Served:
    """One backend in this process, and the doors it has."""

    backend: Backend
    server: Server
    ways: Ways
    folder: str

    def close(self, *, remove: bool) -> None:
        self.server.close()
        self.backend.stop()
        self.ways.close()  # and with it what the backend still waits for: one of its cohort may hang
        if remove:  # as long as the folder is ours: a successor may come as soon as the backend is closed
            for door in ("rpc", "rpc.lock", "engine"):
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(self.folder, door))
        self.backend.close(remove=remove)
        if remove:
            for folder in (self.folder, os.path.dirname(self.folder)):
                with suppress(OSError):  # there is a successor, or others serve backends of the same cache
                    os.rmdir(folder)


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a backend listens besides its socket on this host: nowhere unless asked."""

    rpc: tuple[str, ...] = ()
    engine: str | None = None
    tls: TlsConfig | None = None

    def further(self, count: int) -> "Doors":
        """Those of a backend that comes behind so many others: each has ports of its own, one behind the other."""
        rpc = tuple(_further(address, count) for address in self.rpc)
        return replace(self, rpc=rpc, engine=None if self.engine is None else _further(self.engine, count))


class Caches:
    """Opens, makes and deletes caches. Safe to share between threads."""

    def __init__(self, root: str, coordination: Callable[[], Coordination], config: WorldConfig, clock: Clock) -> None:
        self._root, self._coordination, self._config, self._clock = root, coordination, config, clock
        self._host = host_id(config.host)
        self._serving = threading.RLock()
        self._served: dict[tuple[str, int], Served] = {}
        self._local: dict[str, dict[int, Backend]] = {}
        self._opened: set[Cache] = set()
        self._closed = False

    def names(self) -> list[str]:
        return cache_names(self._coordination())

    def create(self, name: str, config: CacheConfig | None = None, **settings: Any) -> CacheConfig:
        base = config or self._config.cache(name)
        return self._registry(name).create(decode(CacheConfig, settings, base=base)).config

    def configure(self, name: str, config: CacheConfig) -> CacheConfig:
        return self._registry(name).configure(config).config

    def delete(self, name: str) -> None:
        registry = self._registry(name)
        if registry.find() is None:
            raise CacheMissing(f"there is no cache {name!r}; nothing was deleted")
        registry.delete()
        with self._serving:
            for key in [key for key in self._served if key[0] == name]:
                self._served.pop(key).close(remove=True)
            self._local.pop(name, None)

    def open(self, name: str, *, serving: bool = True, create: bool = True, **settings: Any) -> Cache:
        """The cache, made on first use. `serving`: serve those backends that nobody does."""
        client, own = _split(settings)
        client_config = decode(CacheClientConfig, client, base=self._config.cache_client)
        registry = self._registry(name)
        record = registry.find()
        if record is None and not create:
            raise CacheMissing(f"there is no cache {name!r} in this world; `tailrace cache create {name}` makes one")
        if record is None or own:
            base = self._config.cache(name) if record is None else record.config
            registry.create(decode(CacheConfig, own, base=base))
        if serving:
            self.serve_missing(name)
        ways = Ways(
            registry,
            client_config,
            self._clock,
            self._host,
            self._local.setdefault(name, {}),
            self._connect,
            (lambda: self.serve_missing(name)) if serving else (lambda: None),
        )
        cache = Cache(
            ways,
            client_config,
            self._clock,
            lambda: self._opened.discard(cache),
        )
        self._opened.add(cache)
        return cache

    def serve_missing(self, name: str) -> None:
        """Serve the backends that nobody serves. Who holds a backend's folder serves it, whatever the registry says."""
        registry = self._registry(name)
        standing = registry.standing()
        if not standing.record.config.embedded:
            return  # its servers come back by themselves, and must find their places free
        for index in range(standing.record.config.backends):
            entered = standing.backends.get(index)
            if entered is None or entered.host == self._host:  # a dead process may look alive until it is waited for
                self.serve(name, index, Doors())

    def standing(self, name: str) -> Standing:
        return self._registry(name).standing()

    def serving(self) -> dict[tuple[str, int], bool]:
        """The backends in this process, and of each whether it has all that it should."""
        with self._serving:
            return {key: one.backend.whole for key, one in self._served.items() if not one.backend.stopped}

    def serve_all(self, names: Sequence[str], backends: Sequence[int] | None, doors: Doors) -> list[tuple[str, Served]]:
        """Whatever of these nobody serves yet. The first takes the ports of `doors`, the others those that follow."""
        served: list[tuple[str, Served]] = []
        place = 0
        for name in names:
            count = self.standing(name).record.config.backends
            for index in range(count) if backends is None else backends:
                if index >= count:
                    raise ConfigError(f"backend {index} of the cache {name}: it has 0 to {count - 1}")
                one = self.serve(name, index, doors.further(place))
                place += 1  # taken by whoever serves it, if not by us: a backend keeps its ports
                if one is not None:
                    served.append((name, one))
        return served

    def serve(self, name: str, index: int, doors: Doors) -> Served | None:
        """Serve one backend; None: another process does, or is about to."""
        with self._serving:
            if self._closed:
                raise Closed("this world was closed; open it again")
            there = self._served.get((name, index))
            if there is not None and not there.backend.stopped:
                return there
            if there is not None:
                there.close(remove=False)
                del self._served[name, index]
            served = self._start(name, index, doors)
            if served is not None:
                self._served[name, index] = served
                self._local.setdefault(name, {})[index] = served.backend
            return served

    def _start(self, name: str, index: int, doors: Doors) -> Served | None:
        make_world_folder(self._root, self._config.host)
        folder = cell_folder(self._root, name, index, self._config.host)
        registry = self._registry(name)
        engine_host, engine_port = _host_and_port(doors.engine)
        try:
            backend = Backend(
                registry,
                index,
                folder=folder,
                host=self._host,
                clock=self._clock,
                engine_host=engine_host,
                engine_port=engine_port,
            )
        except OSError as seen:
            if seen.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                return None
            if seen.errno == errno.ENOENT:  # whoever served it takes the folder away just now: next time
                return None
            raise FileProblem(f"serve backend {index} of the cache {name} in {folder}: {seen}") from seen
        ways = None
        try:
            server = serve(
                backend,
                [f"unix:{folder}/rpc", *doors.rpc],
                tls=doors.tls or self._config.tls,
                authorize=partial(_authorize, backend),
            )
            ways = Ways(
                registry, self._config.cache_client, self._clock, self._host, self._local.get(name, {}), self._connect
            )
            backend.open(server.addresses, ways.peer, partial(self._reap, name, backend))
        except BaseException:
            backend.close()
            if ways is not None:
                ways.close()
            raise
        return Served(backend, server, ways, folder)

    def _reap(self, name: str, backend: Backend) -> None:
        """It has nothing to serve any more: let go of its folder. Unless somebody is at it, and waits for us."""
        while not backend.closing:
            if self._serving.acquire(timeout=0.1):
                try:
                    there = self._served.get((name, backend.index))
                    if there is not None and there.backend is backend:
                        del self._served[name, backend.index]
                        there.close(remove=True)
                finally:
                    self._serving.release()
                return

    def _registry(self, name: str) -> CacheRegistry:
        return CacheRegistry(self._coordination(), name)

    def _connect(self, address: str) -> BackendPeer:
        return BackendPeer(address, tls=self._config.tls)

    def close(self, *, remove: bool = True) -> None:
        """`remove`: take the memory of the backends here away, too; else it stays readable until someone serves it."""
        for cache in list(self._opened):
            cache.close()
        with self._serving:
            self._closed = True
            for served in self._served.values():
                served.close(remove=remove)
            self._served.clear()


def _authorize(backend: Backend, names: tuple[str, ...] | None, method: str) -> None:
    """Who came by the socket of this host was let in by its folder. Others are known by their certificates."""
    allowed = backend.config.clients
    if names is not None and allowed and not set(names) & set(allowed):
        raise Denied(f"{method}: {', '.join(names) or 'nobody'} may not use this cache; add a name to its clients")


def _split(settings: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is the client's, and what is the cache's own."""
    names = set(CacheClientConfig.__dataclass_fields__)
    return (
        {name: value for name, value in settings.items() if name in names},
        {name: value for name, value in settings.items() if name not in names},
    )


def _further(address: str, count: int) -> str:
    host, port = _host_and_port(address)
    return f"{host}:{port + count if port else 0}"


def _host_and_port(address: str | None) -> tuple[str | None, int]:
    if address is None:
        return None, 0
    host, _, port = address.rpartition(":")
    return host, int(port)
