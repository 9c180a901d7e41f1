"""Two servers of one program: one that syncs every message, and one that syncs now and then."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from ...peers.server import Address, Server

#: From its folder, and whether it syncs every message: the command line and where it listens.
Arrange = Callable[[str, bool], tuple[Sequence[str], Sequence[Address]]]


class Pair:
    def __init__(self, folder: str, name: str, arrange: Arrange, environment: Mapping[str, str] | None = None) -> None:
        """`environment`: beside that of this process."""
        self._servers: dict[bool, Server] = {}
        try:
            for synced in (False, True):
                place = os.path.join(folder, f"{name}-{'synced' if synced else 'plain'}")
                os.makedirs(place)
                log = os.path.join(place, "log")
                self._servers[synced] = Server(partial(arrange, place, synced), log, environment=environment)
        except BaseException:
            self.close()
            raise

    def address(self, *, synced: bool) -> Address:
        return self._servers[synced].addresses[0]

    def addresses(self) -> list[Address]:
        return [server.addresses[0] for server in self._servers.values()]

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers.values()]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
