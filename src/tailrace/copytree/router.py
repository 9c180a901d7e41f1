"""The process that keeps the copy trees of a world: it feeds the rerouting core from the coordination store and stores
what the core orders. One at a time, by lease; others stand by. While none is there the trees stay as they are.

All of the input and output, none of the deciding: that is routing/rerouting.py.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from tailrace.coordination import AtRevision, Coordination, Lease, put_if_absent
from tailrace.env import Clock, SystemClock
from tailrace.errors import Closed, CoordinationError, Corrupt, LeaseExpired
from tailrace.model import WorldMap

from .routing import CaughtUp, ClusterSilent, Patience, PublishTree, Rerouting, Tick, WorldChanged
from .routing.rerouting import Event
from .world_record import ROUTER, WorldFollower, WorldState, publish_trees


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterConfig:
    lease_s: float = 3.0  # a router that was silent for so long makes room for another
    step_s: float = 0.1  # how often time is looked at
    silence_s: float = 0.5  # a cluster whose report is gone for so long is taken for silent: it may just be restarting


class Router:
    """`run` until it is closed, or `step` by hand."""

    def __init__(
        self,
        store: Coordination,
        name: str,
        *,
        config: RouterConfig | None = None,
        patience: Patience | None = None,
        clock: Clock | None = None,
        on_order: Callable[[PublishTree], None] = lambda order: None,
    ) -> None:
        self._store, self._name = store, name
        self._config, self._clock = config or RouterConfig(), clock or SystemClock()
        self._patience, self._on_order = patience, on_order
        self._stopping = threading.Event()
        self._stepping = threading.Lock()
        self.problem = ""  # why it does nothing at the moment, in words; empty: all is well
        self._lease: Lease | None = None
        self._renew_s = 0.0
        self._core: Rerouting | None = None
        self._leading = AtRevision(ROUTER, 0)  # what must hold for our word to count
        self._seen = WorldState()
        self._gone_since_s: dict[str, float] = {}
        self._follower = WorldFollower(store)

    @property
    def leads(self) -> bool:
        return self._core is not None

    @property
    def world(self) -> WorldMap:
        return self._follower.state.world

    def run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.attend(self._config.step_s)
            except Closed:
                if not self._stopping.is_set():
                    raise

    def attend(self, timeout_s: float) -> list[PublishTree]:
        """A step that outlives a store that is away, or that does not know whether it did what was asked: the next one
        reads everything anew, and what was not published is found missing and ordered again."""
        try:
            orders = self.step(timeout_s)
            self.problem = ""
            return orders
        except (CoordinationError, Corrupt) as problem:
            self.problem = str(problem)
            self._core = None
            self._clock.wait(self._stopping, timeout_s)
            self._follow_anew()
            return []

    def _follow_anew(self) -> None:
        with suppress(CoordinationError, Corrupt):
            self._follower.read()

    def step(self, timeout_s: float) -> list[PublishTree]:
        """Wait for a change for so long at most, and do what it asks for."""
        with self._stepping:
            return self._step(timeout_s)

    def _step(self, timeout_s: float) -> list[PublishTree]:
        if self._stopping.is_set():
            raise Closed(f"the router {self._name} was closed; make a new one")
        if not self._lead():
            self._follower.poll(timeout_s)
            return []
        assert self._core is not None
        changed = self._follower.poll(self._patient(timeout_s))
        now_s = self._clock.monotonic_s()
        orders = []
        for event in self._events(self._seen, changed or self._seen, now_s):
            orders += self._core.handle(event, now_s)
        self._seen = changed or self._seen
        self._obey(orders)
        return orders

    def close(self) -> None:
        self._stopping.set()
        self._follower.close()  # ends a step that waits
        with self._stepping:
            if self._lease is not None:
                self._lease.revoke()
            self._lease = self._core = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _lead(self) -> bool:
        """Whether we are the one; the lease is renewed on the way."""
        now_s = self._clock.monotonic_s()
        if self._lease is None:
            self._lease = self._store.lease(self._config.lease_s)
            self._renew_s = now_s + self._config.lease_s / 3
        elif now_s >= self._renew_s:
            try:
                self._lease.keep_alive()
                self._renew_s = now_s + self._config.lease_s / 3
            except LeaseExpired:
                self._lease = self._core = None  # another may lead by now
                return False
        if self._core is None and (there := self._leader()) is not None:
            self._leading = AtRevision(ROUTER, there)
            self._take_over(now_s)
        return self._core is not None

    def _leader(self) -> int | None:
        """The revision at which we became the one; None: another is."""
        assert self._lease is not None
        there = self._follower.state.router
        if there is None:  # as far as we know: asking costs the store a write, so it is not done every time
            taken = put_if_absent(self._store, ROUTER, self._name.encode(), lease=self._lease.id)
            if taken.succeeded:
                return taken.revision
            there = taken.conflicts[ROUTER]
        return there.revision if there is not None and there.lease == self._lease.id else None

    def _take_over(self, now_s: float) -> None:
        self._follower.read()
        state = self._follower.state
        self._core = Rerouting(state.trees.values(), self._patience)
        self._seen = WorldState()
        # Whoever has a place in a tree should have spoken before us, if clusters speak at all here.
        named = {name for tree in state.trees.values() for name in tree.clusters} if state.reports else set()
        self._gone_since_s = dict.fromkeys(named - state.reports.keys(), now_s)
        orders = []
        for event in self._events(self._seen, state, now_s):
            orders += self._core.handle(event, now_s)
        self._seen = state
        self._obey(orders)

    def _patient(self, timeout_s: float) -> float:
        assert self._core is not None
        due = [s for s in (self._core.due_s, *(s + self._config.silence_s for s in self._gone_since_s.values())) if s]
        return max(0.0, min([timeout_s, *(s - self._clock.monotonic_s() for s in due)]))

    def _events(self, before: WorldState, after: WorldState, now_s: float) -> list[Event]:
        events: list[Event] = []
        if after.version != before.version:
            events.append(WorldChanged(after.world, after.preferences))
        for cluster, told in after.reports.items():
            self._gone_since_s.pop(cluster, None)
            if before.reports.get(cluster) != told:
                events.append(told)
        for cluster in before.reports.keys() - after.reports.keys():
            self._gone_since_s.setdefault(cluster, now_s)
        for cluster, since_s in list(self._gone_since_s.items()):
            if now_s >= since_s + self._config.silence_s:
                del self._gone_since_s[cluster]
                events.append(ClusterSilent(cluster))
        events += [CaughtUp(*pair) for pair in sorted(after.caught_up - before.caught_up)]
        return [*events, Tick()]

    def _obey(self, orders: list[PublishTree]) -> None:
        assert self._core is not None
        newest = {order.tree.stream: order.tree for order in orders}
        obsolete = self._follower.state.trees.keys() - self._core.trees.keys()
        if not newest and not obsolete:
            return
        if not publish_trees(self._store, newest, sorted(obsolete), [self._leading]):
            self._core = None  # another leads: what we found does not count
            return
        for order in orders:
            self._on_order(order)
