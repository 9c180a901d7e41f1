"""Which reader runs which operation: pure. Events in, orders out.

Invariants:
- An operation that is wanted is given to a reader as long as there is one, and stays there while that reader lives.
- What a reader already runs when it comes is left to it: operations go on while a scheduler is away (A53).
- An operation moves by being started at its new reader first; the old one is told to stop when the new one runs, which
  has displaced it by then (make before break).
- Readers get about equally many. New operations are handed out a few at a time, and a reader that has too many gives
  some away now and then (A52).

What a reader has at a time is told as a whole, so a lost message is made good by the next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from ..wire import Operation, Order, Running

STARTING_MAX = 64  # operations of one reader that have been ordered and do not run yet
SHED_S = 5.0  # how often loads are compared
GATHER_S = 0.3  # a scheduler that has just begun listens for so long what readers run already
_SHED_SHARE = 20  # one in so many moves at a time


@dataclass(frozen=True, slots=True)
class Wanted:
    """All operations that are to run now."""

    orders: Mapping[Operation, Order]


@dataclass(frozen=True, slots=True)
class Joined:
    reader: str


@dataclass(frozen=True, slots=True)
class Reported:
    reader: str
    running: Sequence[Running]


@dataclass(frozen=True, slots=True)
class Left:
    reader: str


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = Wanted | Joined | Reported | Left | Tick


@dataclass(frozen=True, slots=True)
class Tell:
    """All that a reader is to run."""

    reader: str
    orders: tuple[Order, ...]


@dataclass(slots=True)
class _Reader:
    told: tuple[Order, ...] | None = None  # what it was told last
    running: dict[Operation, Running] = field(default_factory=dict)
    heard: bool = False  # it has said what it runs


def score(what: str, who: str) -> int:
    """Rendezvous: everybody who knows the same names comes to the same order, and a name that goes moves only its own
    share.

    >>> sorted(["r0", "r1", "r2"], key=lambda who: score("prices/0", who))
    ['r1', 'r0', 'r2']
    """
    return int.from_bytes(blake2b(f"{what}\0{who}".encode(), digest_size=8).digest(), "big")


class Schedule:
    def __init__(self, *, starting_max: int = STARTING_MAX, shed_s: float = SHED_S, gather_s: float = GATHER_S) -> None:
        self._starting_max, self._shed_s, self._gather_s = starting_max, shed_s, gather_s
        self._begun_s: float | None = None
        self._wanted: dict[Operation, Order] = {}
        self._readers: dict[str, _Reader] = {}
        self._owner: dict[Operation, str] = {}
        self._leaving: dict[Operation, str] = {}  # who still runs what has been given to another
        self._shed_at_s: float | None = None

    def handle(self, event: Event, now_s: float) -> list[Tell]:
        match event:
            case Wanted(orders):
                self._wanted = dict(orders)
            case Joined(reader):
                self._readers[reader] = _Reader()
            case Reported(reader, running):
                self._hear(reader, running)
            case Left(reader):
                self._readers.pop(reader, None)
                self._owner = {one: owner for one, owner in self._owner.items() if owner != reader}
                self._leaving = {one: owner for one, owner in self._leaving.items() if owner != reader}
            case Tick():
                pass
        if self._begun_s is None:
            self._begun_s = now_s
        self._assign(fresh=now_s >= self._begun_s + self._gather_s)
        if self._shed_at_s is None:
            self._shed_at_s = now_s + self._shed_s
        if now_s >= self._shed_at_s:
            self._shed_at_s = now_s + self._shed_s
            self._shed()
        return self._tell()

    # ---- what is known

    @property
    def owners(self) -> Mapping[Operation, str]:
        return self._owner

    @property
    def waiting(self) -> int:
        """Operations that no reader has yet."""
        return sum(operation not in self._owner for operation in self._wanted)

    def running(self) -> dict[Operation, Running]:
        return {
            operation: state
            for operation, owner in self._owner.items()
            if (state := self._readers[owner].running.get(operation)) is not None
        }

    # ---- inside

    def _hear(self, name: str, running: Sequence[Running]) -> None:
        reader = self._readers.get(name)
        if reader is None:
            return
        reader.running = {one.operation: one for one in running}
        if not reader.heard:
            reader.heard = True
            for operation in reader.running:
                if operation in self._wanted and operation not in self._owner:
                    self._owner[operation] = name
                elif self._owner.get(operation) != name:
                    self._leaving.setdefault(operation, name)
        for operation, owner in list(self._leaving.items()):
            new = self._owner.get(operation)
            state = self._readers[new].running.get(operation) if new is not None else None
            there = owner in self._readers and operation in self._readers[owner].running
            if not there or operation not in self._wanted or (state is not None and state.state == "running"):
                del self._leaving[operation]

    def _assign(self, *, fresh: bool) -> None:
        """`fresh`: give away those that nobody runs, too."""
        self._owner = {one: owner for one, owner in self._owner.items() if one in self._wanted}
        for operation, leaver in list(self._leaving.items()):
            if operation in self._wanted and operation not in self._owner:
                self._owner[operation] = leaver  # its successor is gone: it may as well go on
            if operation not in self._wanted or self._owner[operation] == leaver:
                del self._leaving[operation]
        heard = [name for name, reader in self._readers.items() if reader.heard]
        if not heard or not fresh:
            return
        loads = dict.fromkeys(heard, 0)
        starting = dict.fromkeys(heard, 0)
        for operation, owner in self._owner.items():
            loads[owner] += 1
            state = self._readers[owner].running.get(operation)
            starting[owner] += state is None or state.state == "starting"
        limit = -(-len(self._wanted) * 5 // (4 * len(heard)))  # a quarter more than its share
        for operation in sorted(one for one in self._wanted if one not in self._owner):
            free = [name for name in heard if loads[name] < limit and starting[name] < self._starting_max]
            if not free:
                continue
            chosen = max(free, key=lambda name: score(f"{operation.stream}/{operation.shard}", name))
            self._owner[operation] = chosen
            loads[chosen] += 1
            starting[chosen] += 1

    def _shed(self) -> None:
        heard = [name for name, reader in self._readers.items() if reader.heard]
        if len(heard) < 2 or self._leaving:
            return
        loads = dict.fromkeys(heard, 0)
        for owner in self._owner.values():
            loads[owner] += 1
        most, least = max(heard, key=lambda name: loads[name]), min(heard, key=lambda name: loads[name])
        count = min((loads[most] - loads[least]) // 2, max(1, len(self._wanted) // _SHED_SHARE), self._starting_max)
        mine = sorted(
            (one for one, owner in self._owner.items() if owner == most),
            key=lambda one: score(f"{one.stream}/{one.shard}", least),
            reverse=True,
        )
        for operation in mine[:count]:
            self._owner[operation] = least
            self._leaving[operation] = most

    def _tell(self) -> list[Tell]:
        due: dict[str, dict[Operation, Order]] = {name: {} for name, reader in self._readers.items() if reader.heard}
        for operation, owner in (*self._owner.items(), *self._leaving.items()):
            if owner in due and operation in self._wanted:
                due[owner][operation] = self._wanted[operation]
        tells = []
        for name, orders in due.items():
            listed, reader = tuple(orders[operation] for operation in sorted(orders)), self._readers[name]
            if listed != reader.told or not reader.running.keys() <= orders.keys():  # it runs what it was not told
                reader.told = listed
                tells.append(Tell(name, listed))
        return tells
