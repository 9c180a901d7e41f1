"""One process of a cluster: as reader, writer, scheduler and monitor of the copy tree, or several of these.

It finds the others in the world's store. On one machine they talk by sockets in the cluster's folder of shared memory;
between machines by the address that each is given.
"""

import logging
import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

from ..config import TlsConfig
from ..coordination import Coordination
from ..copytree import FilesCheck, Reader, ReaderLink, Route, Scheduler, Writer, score
from ..copytree.router import Router, RouterConfig
from ..copytree.world_record import load
from ..env import Clock, SystemClock
from ..errors import ConfigError, Denied, TailraceError
from ..files.served import ServedFiles
from ..native.hints import Waiter
from ..wire import Opening, Operation, Running
from .cluster_place import ClusterPlace
from .cluster_registry import ClusterRegistry
from .cluster_reports import FAR_BYTES, HEAD_BYTES, ClusterReports, Health, arrivals_elsewhere, unreachable
from .hop_monitor import ClusterMonitor, ClusterTeller
from .hosts import make_world_folder
from .standby import Standby
from .world import CATALOG_SLOT, World

ROLES = ("reader", "writer", "scheduler", "monitor")
_CALLED = ("writer", "scheduler", "reader")  # those that others call
LATE_S = 2.0  # a reader upstream that was silent for so long is stuck, or cut off
_LOG = logging.getLogger(__name__)


class ClusterNode:
    """`listen`: where other machines reach this process, "host:port"; one door for all its roles. `advertise`: what is
    told them, if that differs. `number` tells it from the others of its kind."""

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
        advertise: str | None = None,
        tls: TlsConfig | None = None,
        admits: Sequence[str] = (),
        compression: str = "",
        clock: Clock | None = None,
    ) -> None:
        unknown = set(roles) - set(ROLES)
        if unknown or not roles:
            raise ConfigError(f"roles={','.join(roles)}: use some of {', '.join(ROLES)}")
        self._world, self._cluster, self._number = world, cluster, number
        self._store = store
        self._registry, self._tls, self._admits = ClusterRegistry(store), tls, frozenset(admits)
        self._compression = compression
        self._clock = clock or SystemClock()
        self._place = ClusterPlace(world)
        self._folder = make_world_folder(root)
        self._waiter = self._make_waiter()
        self._closed = threading.Event()
        self._caught_up: frozenset[str] = frozenset()
        self._told: set[tuple[str, str]] = set()  # (cluster, problem)
        self.reader: Reader | None = None
        self.writer: Writer | None = None
        self.scheduler: Scheduler | None = None
        self._link: ReaderLink | None = None
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
                undo.callback(ClusterReports(store, cluster, self._health).close)
                self._route(undo)
            elif "writer" in roles:
                undo.callback(ClusterReports(store, cluster, self._arrivals, number).close)
            if set(roles) & set(_CALLED):
                self._serve(undo, roles, listen, advertise)
            if "reader" in roles:
                self.reader = Reader(f"{cluster}-{number}-{os.getpid()}", cluster, self._place, self._clock, tls=tls)
                undo.callback(self.reader.close)
                schedulers = partial(self._addresses, cluster, "scheduler")
                self._link = ReaderLink(self.reader, self._clock, schedulers, self._dial)
                undo.callback(self._link.close)
            if self.writer is not None or self.reader is not None:
                self._stand_by(undo)
            if "monitor" in roles:
                teller = ClusterTeller(store, cluster, self._clock)
                undo.callback(teller.close)
                undo.callback(ClusterMonitor(world, tell=teller.tell, clock=self._clock).close)
            self._undo = undo.pop_all()

    @property
    def ready(self) -> bool:
        """Whether it does all of its work."""
        ordered = self._link is None or self._link.connected
        return ordered and (self.scheduler is None or self.scheduler.gathered)

    def close(self) -> None:
        self._closed.set()
        if self._waiter is not None:
            self._waiter.stop()
        self._undo.close()

    # ---- inside

    def _serve(self, undo: ExitStack, roles: Sequence[str], listen: str | None, advertise: str | None) -> None:
        from ..wire import serve_copies

        served = [role for role in _CALLED if role in roles]
        own = f"unix:{self._folder}/{served[0]}-{self._number}"
        server = serve_copies(
            [own, *([listen] if listen else [])],
            writer=self.writer,
            scheduler=self.scheduler,
            checker=FilesCheck(self._place.files),
            files=ServedFiles(self._place.files, self._clock),
            tls=self._tls,
            admit=self._check_names,
        )
        undo.callback(server.close, 0.2)
        address = advertise or server.addresses[-1]
        for role in served:
            name = f"{self._number:05d}"
            undo.callback(self._registry.announce(self._cluster, role, name, address).close)
            self.addresses[role] = address

    def _route(self, undo: ExitStack) -> None:
        """Whoever schedules can make the trees; one of all in the world does, by lease."""
        router = Router(self._store, f"{self._cluster}-{self._number}", config=RouterConfig(step_s=0.2))
        thread = threading.Thread(target=self._keep_routing, args=(router,), name="tailrace router", daemon=True)
        undo.callback(thread.join, 5.0)
        undo.callback(router.close)
        thread.start()

    def _stand_by(self, undo: ExitStack) -> None:
        from . import caches  # noqa: F401  # the streams come later, and most of their first time is this

        standby = Standby(self._streams_here, partial(self._place.prepare, writing=self.writer is not None))
        undo.callback(standby.close)
        undo.callback(self._registry.follow(standby.look).close)

    def _streams_here(self) -> set[str]:
        """Those that this process may be given to read or to write."""
        trees = load(self._store).trees.values()
        received = {tree.stream for tree in trees if self._cluster in tree and self._cluster != tree.source}
        sent = {tree.stream for tree in trees if any(hop.upstream == self._cluster for hop in tree.hops)}
        return (received if self.writer is not None else set()) | (sent if self.reader is not None else set())

    def _keep_routing(self, router: Router) -> None:
        while not self._closed.is_set():
            try:
                router.run()
                return
            except Exception as problem:  # the store is away, or what is in it makes no sense: trees stay as they are
                if not self._closed.is_set():
                    _LOG.warning("routing: %s", problem)
                self._closed.wait(1.0)

    def _health(self) -> Health:
        running = {} if self.scheduler is None else self.scheduler.running
        self._tell_failures(running)
        elsewhere = arrivals_elsewhere(self._store, self._cluster, self._number if self.writer is not None else -1)
        return replace(self._arrivals(), cut=unreachable(running)).with_arrivals(elsewhere)

    def _tell_failures(self, running: Mapping[Operation, Running]) -> None:
        """Each problem once: a cluster that cannot be reached is tried again and again."""
        problems = {(one.target, state.problem) for one, state in running.items() if state.state == "failed"}
        for target, problem in sorted(problems - self._told):
            _LOG.warning("%s cannot be sent to: %s", target, problem)
        self._told = problems

    def _arrivals(self) -> Health:
        arrivals = [] if self.writer is None else self.writer.arrivals
        now_s = self._clock.monotonic_s()
        durable = [one for one in arrivals if one.opening.operation.storage == "durable"]
        streams = {one.opening.operation.stream for one in durable}
        # Once at the head, a stream counts as caught up until it is far behind: the word goes to the whole world.
        limits = {stream: FAR_BYTES if stream in self._caught_up else HEAD_BYTES for stream in streams}
        behind = {
            one.opening.operation.stream
            for one in durable
            if one.behind_bytes is None or one.behind_bytes >= limits[one.opening.operation.stream]
        }
        self._caught_up = frozenset(streams - behind)
        return Health(
            late=frozenset(one.opening.operation.stream for one in durable if now_s > one.heard_s + LATE_S),
            caught_up=self._caught_up,
            behind=frozenset(behind),
        )

    def _dial(self, address: str) -> Any:
        from ..wire import CopyPeer

        return CopyPeer(address, tls=self._tls)

    def _addresses(self, cluster: str, role: str) -> list[str]:
        return list(self._registry.doors(cluster, role).values())

    def _check_names(self, names: tuple[str, ...] | None) -> None:
        """Who came by a socket of this host was let in by its folder. Others are known by their certificates."""
        if names is not None and self._admits and not self._admits & set(names):
            raise Denied(
                f"{', '.join(names) or 'nobody'} may neither copy to {self._cluster} nor read in it; add a name to its "
                "peers"
            )

    def _admit(self, opening: Opening) -> None:
        """Only along a tree that this cluster knows, or may come to know: the parent may have heard first."""
        operation = opening.operation
        state = load(self._store)
        tree = state.trees.get(operation.stream)
        if tree is None:
            raise Denied(f"{operation}: the world has no such stream")
        if self._cluster not in tree and state.epochs[operation.stream] >= opening.epoch:
            raise Denied(f"{operation}: {self._cluster} is not in the tree of this stream")

    # ---- for the scheduler

    def _routes(self) -> list[Route]:
        return [
            Route(
                stream=sending.stream,
                origin=sending.source,
                target=sending.target,
                writers=tuple(self._addresses(sending.target, "writer")),
                epoch=sending.epoch,
                compression=self._compression,
                bytes_per_s=0 if sending.bytes_per_s_max == math.inf else round(sending.bytes_per_s_max / 2),
            )
            for sending in load(self._store).sends(self._cluster)
        ]

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
