"""The client libraries that people use, where they are installed: pylibmc (libmemcached), redis-py (with hiredis)."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from ..system import System
from .server import Address, PeerFailed, Server

_LOAD_AT_ONCE = 64


def importable(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


class _Library(System):
    def __init__(self, name: str, server: Server, address: Address) -> None:
        self.name, self._server = name, server
        self.through_tcp = not isinstance(address, str)

    def load(self, items: Mapping[bytes, bytes]) -> None:
        left = iter(items.items())
        while some := dict(islice(left, _LOAD_AT_ONCE)):
            self.set_many(self.prepare_set(some))

    def server_cpu_s(self) -> float:
        return self._server.cpu_s()


class Pylibmc(_Library):
    def __init__(self, name: str, server: Server, address: Address) -> None:
        super().__init__(name, server, address)
        place = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        self._client: Any = importlib.import_module("pylibmc").Client([place], behaviors={"tcp_nodelay": True})

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return list(keys)

    def get_many(self, request: list[bytes]) -> Any:
        if len(request) == 1:
            return [self._client.get(request[0])]
        found = self._client.get_multi(request)
        return [found.get(key) for key in request]

    def prepare_set(self, items: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return dict(items)

    def set_many(self, request: dict[bytes, bytes]) -> None:
        if failed := self._client.set_multi(request):
            raise PeerFailed(f"{self.name} did not store {len(failed)} items")

    def close(self) -> None:
        self._client.disconnect_all()


class RedisPy(_Library):
    def __init__(self, name: str, server: Server, address: Address) -> None:
        super().__init__(name, server, address)
        where = {"unix_socket_path": address} if isinstance(address, str) else {"host": address[0], "port": address[1]}
        self._client: Any = importlib.import_module("redis").Redis(**where)

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return list(keys)

    def get_many(self, request: list[bytes]) -> Any:
        if len(request) == 1:
            return [self._client.get(request[0])]
        return self._client.mget(request)

    def prepare_set(self, items: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        return dict(items)

    def set_many(self, request: dict[bytes, bytes]) -> None:
        self._client.mset(request)

    def close(self) -> None:
        self._client.close()
