"""One process of a cluster: as reader, writer and scheduler of the copy tree, or several of these.

It finds the others in the world's store. On one machine they talk by sockets in the cluster's folder of shared memory;
between machines by the address that each is given.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from ..config import TlsConfig
from ..coordination import Coordination
from ..copytree import Reader, ReaderLink, Route, Scheduler, Writer, score
from ..env import Clock, SystemClock
from ..errors import ConfigError, Denied, TailraceError
from ..native.hints import Waiter
from ..wire import Opening, Operation
from .cluster_place import ClusterPlace
from .cluster_registry import ClusterRegistry
from .hosts import make_world_folder
from .world import CATALOG_SLOT, World

ROLES = ("reader", "writer", "scheduler")


class ClusterNode:
    """`listen`: where other machines reach this process, "host:port"; one door for all its roles. `number` tells it
    from the others of its kind."""

    def __init__(
        self,
        world: World,
        root: str,
        cluster: str,
        store: Coordination,
        roles: Sequence[str],
        *,
        number: int = 0,
        listen: str | None = None,
        tls: TlsConfig | None = None,
        admits: Sequence[str] = (),
        compression: str = "",
        clock: Clock | None = None,
    ) -> None:
        unknown = set(roles) - set(ROLES)
        if unknown or not roles:
            raise ConfigError(f"roles={','.join(roles)}: use some of {', '.join(ROLES)}")
        self._world, self._cluster, self._number = world, cluster, number
        self._registry, self._tls, self._admits = ClusterRegistry(store), tls, frozenset(admits)
        self._compression = compression
        self._clock = clock or SystemClock()
        self._place = ClusterPlace(world)
        self._folder = make_world_folder(root)
        self._waiter = self._make_waiter()
        self.reader: Reader | None = None
        self.writer: Writer | None = None
        self.scheduler: Scheduler | None = None
        self.addresses: dict[str, str] = {}
        with ExitStack() as undo:
            if "writer" in roles:
                self.writer = Writer(cluster, self._place, admit=self._admit)
                undo.callback(self.writer.close)
            if "scheduler" in roles:
                self.scheduler = Scheduler(
                    self._place.files, self._clock, self._routes, mine=self._is_mine, wait=self._wait
                )
                undo.callback(self.scheduler.close)
                undo.callback(self._registry.follow(self._nudge).close)
            if self.writer is not None or self.scheduler is not None:
                self._serve(undo, listen)
            if "reader" in roles:
                self.reader = Reader(f"{cluster}-{number}-{os.getpid()}", cluster, self._place, self._clock, tls=tls)
                undo.callback(self.reader.close)
                link = ReaderLink(self.reader, self._clock, partial(self._addresses, cluster, "scheduler"), self._dial)
                undo.callback(link.close)
            self._undo = undo.pop_all()

    def close(self) -> None:
        if self._waiter is not None:
            self._waiter.stop()
        self._undo.close()

    # ---- inside

    def _serve(self, undo: ExitStack, listen: str | None) -> None:
        from ..wire import serve_copies

        own = f"unix:{self._folder}/{'writer' if self.writer is not None else 'scheduler'}-{self._number}"
        server = serve_copies(
            [own, *([listen] if listen else [])],
            writer=self.writer,
            scheduler=self.scheduler,
            tls=self._tls,
            admit=self._check_names,
        )
        undo.callback(server.close, 0.2)
        address = server.addresses[-1]
        for role, there in (("writer", self.writer), ("scheduler", self.scheduler)):
            if there is not None:
                name = f"{self._number:05d}"
                undo.callback(self._registry.announce(self._cluster, role, name, address).close)
                self.addresses[role] = address

    def _dial(self, address: str) -> Any:
        from ..wire import CopyPeer

        return CopyPeer(address, tls=self._tls)

    def _addresses(self, cluster: str, role: str) -> list[str]:
        return list(self._registry.doors(cluster, role).values())

    def _check_names(self, names: tuple[str, ...] | None) -> None:
        """Who came by a socket of this host was let in by its folder. Others are known by their certificates."""
        if names is not None and self._admits and not self._admits & set(names):
            raise Denied(f"{', '.join(names) or 'nobody'} may not copy to {self._cluster}; add a name to its peers")

    def _admit(self, opening: Opening) -> None:
        """Only along a tree that this cluster knows, or may come to know: the parent may have heard first."""
        operation = opening.operation
        for planted in self._registry.trees():
            if planted.tree.stream == operation.stream:
                if self._cluster not in planted.tree and planted.epoch >= opening.epoch:
                    raise Denied(f"{operation}: {self._cluster} is not in the tree of this stream")
                return
        raise Denied(f"{operation}: the world has no such stream")

    # ---- for the scheduler

    def _routes(self) -> list[Route]:
        routes = []
        for planted in self._registry.trees():
            tree = planted.tree
            for target in tree.downstream(self._cluster) if self._cluster in tree else ():
                hop = tree.hop(target)
                limit = 0 if hop is None or hop.bytes_per_s_max == float("inf") else round(hop.bytes_per_s_max)
                routes.append(
                    Route(
                        stream=tree.stream,
                        origin=tree.source,
                        target=target,
                        writers=tuple(self._addresses(target, "writer")),
                        epoch=planted.epoch,
                        compression=self._compression,
                        bytes_per_s=limit,
                    )
                )
        return routes

    def _is_mine(self, operation: Operation) -> bool:
        """Schedulers of a cluster share the operations, as far as they know of each other."""
        try:
            others = self._registry.doors(self._cluster, "scheduler")
        except TailraceError:
            return True
        names = {*others, f"{self._number:05d}"}
        what = f"{operation.stream}/{operation.shard}"
        return max(names, key=lambda name: score(what, name)) == f"{self._number:05d}"

    def _make_waiter(self) -> Waiter | None:
        hints = self._world._hints()
        return None if hints is None else Waiter(hints, [CATALOG_SLOT])

    def _wait(self, timeout_s: float) -> None:
        if self._waiter is None:
            assert self.scheduler is not None
            self.scheduler._wait_for_nudge(timeout_s)
        else:
            self._waiter.wait(timeout_s)
            self._waiter.look()

    def _nudge(self) -> None:
        if self.scheduler is not None:
            self.scheduler.nudge()
        if (hints := self._world._hints()) is not None:
            hints.raise_(CATALOG_SLOT)
