"""The clusters around this one, for consumers: how they are, and their files: in their folders where these are here,
else by the doors of their processes.

A cluster's folder has a note of the world it belongs to, which its processes leave there: cluster.json. So whoever
opens the folder finds the world's store, without being told. One thread of a process looks there now and then; when the
store is away everybody stays where they are.
"""

import logging
import os
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import TlsConfig
from ..coordination import Coordination
from ..copytree import score
from ..copytree.routing import Conditions, refuges
from ..copytree.world_record import WorldState, load
from ..env import Clock
from ..errors import FileProblem, TailraceError
from ..files import Files, PosixFiles
from ..files.remote import RemoteFiles
from ..streams import Lodging, Outlook, ShardTail
from ..streams.shard_files import flushed_index
from ..wire import ByteRange, FileBytes, Listing, Sight
from .any_door import AnyDoor
from .cluster_registry import ClusterRegistry
from .membership import Membership, read_membership

if TYPE_CHECKING:
    from ..wire import FilesPeer

_LOOK_S = 0.5  # at the store
_CHECK_S = 0.25  # at what is known of it
_CLOSE_S = 2.0  # so far behind others home is well: who is nearer to the source is always a little ahead
_AVOID_S = 10.0  # a refuge that could not be read is not tried again for so long
_NOTHING = "\x7f"  # no key begins so
_AT_ONCE = 16  # shards that are asked about from afar
_LENDERS = ("reader", "writer", "scheduler")  # whose processes are asked for files, in this order

A = TypeVar("A")
Place = tuple[str, int]
_LOG = logging.getLogger(__name__)


def outlook(state: WorldState, stream: str, home: str) -> Outlook:
    """What the world says of a stream in one cluster, and in those around it. Pure."""
    tree = state.trees.get(stream)
    if tree is None or home not in state.world or tree.source == home:
        return Outlook()  # where it is produced, the files have all there is
    trouble, report = "", state.reports.get(home)
    upstream = tree.upstream(home)
    if report is None:
        trouble = f"{home} says nothing"
    elif stream in report.late:
        trouble = f"{stream} comes late to {home}"
    elif upstream is not None and (told := state.reports.get(upstream)) is not None and home in told.cut:
        trouble = f"{upstream} cannot send to {home}"
    ill = {one.name for one in state.world.clusters if one.name not in state.reports}
    ill |= {name for name, told in state.reports.items() if stream in told.late}
    found = refuges(state.world, tree, home, Conditions(bad_clusters=frozenset(ill)))
    return Outlook(trouble, tuple(found))


class Neighbours:
    """Of one cluster. Shared by all consumers of a process."""

    def __init__(
        self,
        membership: Membership,
        open_store: Callable[[], Coordination],
        clock: Clock,
        tls: Callable[[], TlsConfig | None] = lambda: None,
    ) -> None:
        """`tls`: who we are to processes of other clusters; asked when one is called for the first time."""
        self.membership, self._open_store, self._clock, self._tls = membership, open_store, clock, tls
        self.state: WorldState | None = None  # None: nothing is known
        self._addresses: dict[str, list[str]] = {}  # of processes, by cluster
        self._salt = secrets.token_hex(8)
        self._opening = threading.Lock()
        self._near: dict[str, Files] = {}
        self._far: dict[str, tuple[AnyDoor[FilesPeer], Files]] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tailrace neighbours", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        self._thread.join(5.0)
        with self._opening:
            for door, _ in self._far.values():
                door.close()

    def files(self, cluster: str) -> Files | None:
        """Of a cluster; None: they cannot be reached from here."""
        folder = self._folder(cluster)
        with self._opening:
            if folder is not None:
                return self._near.setdefault(cluster, PosixFiles(folder))
            if not self._addresses.get(cluster):
                return None
            if cluster not in self._far:
                door = AnyDoor(cluster, lambda: self._addresses.get(cluster, []), self._dial, self._clock)
                self._far[cluster] = door, RemoteFiles(_Lender(door), self._clock, cluster)
            return self._far[cluster][1]

    def _folder(self, cluster: str) -> str | None:
        """Its own folder, which its processes have signed. One that is only called so may be anybody's."""
        if self.state is None:
            return None
        beside = os.path.dirname(self.membership.world_file)
        folder = os.path.join(beside, self.state.world.cluster(cluster).folder or cluster)
        note = read_membership(folder)
        return folder if note is not None and note.cluster == cluster else None

    def _dial(self, address: str) -> "FilesPeer":
        from ..wire import FilesPeer  # with it comes gRPC

        return FilesPeer(address, tls=self._tls())

    def _run(self) -> None:
        seen, store = -1, None
        known: dict[str, tuple[int, Any]] = {}
        while not self._closed.is_set():
            with suppress(TailraceError):  # the store is away, or makes no sense: what was known stays known
                if store is None:
                    store = self._open_store()
                now = store.range(_NOTHING).revision
                if now != seen:
                    self._addresses = lenders(ClusterRegistry(store).all_doors(), self._salt)
                    self.state, seen = load(store, known), now
            self._closed.wait(_LOOK_S)
        if store is not None:
            store.close()


def lenders(doors: Mapping[str, Mapping[str, Sequence[str]]], salt: str) -> dict[str, list[str]]:
    """Whom to ask for the files of each cluster, in this order: role by role, and within a role in an order that the
    salt decides, so that those who have different ones ask different processes. Pure."""
    return {
        cluster: [
            address for role in _LENDERS for address in sorted(roles.get(role, ()), key=lambda one: score(one, salt))
        ]
        for cluster, roles in doors.items()
    }


class _Lender:
    """Implements FilesService, by whoever of a cluster answers."""

    def __init__(self, door: "AnyDoor[FilesPeer]") -> None:
        self._door = door

    def sight(self, stream: str, seen: int) -> Sight | None:
        return self._door.ask(lambda peer: peer.sight(stream, seen))

    def list(self, folder: str) -> Listing:
        return self._door.ask(lambda peer: peer.list(folder))

    def read(self, ranges: Sequence[ByteRange]) -> Sequence[FileBytes | None]:
        return self._door.ask(lambda peer: peer.read(ranges))


class Moving:
    """Where one consumer reads. `at_home` makes a tail there; `home` are the files there."""

    def __init__(
        self,
        neighbours: Neighbours,
        home: Files,
        at_home: Callable[[str, int, int], ShardTail],
        places: list[Place],
        clock: Clock,
        *,
        in_place: bool,
        incarnations: Mapping[str, str | None] | None = None,
    ) -> None:
        self._incarnations = incarnations or {}
        self._neighbours, self._home, self._at_home, self._clock = neighbours, home, at_home, clock
        self._in_place = in_place
        self._cluster = neighbours.membership.cluster
        self._lodgings = {stream: Lodging(self._cluster) for stream, _ in places}
        self._unreadable: dict[str, str] = {}  # streams that cannot be read at home, and why
        self._avoid: dict[tuple[str, str], float] = {}  # (stream, cluster) that could not be read, until when
        # How far the index of the nearest refuge goes; when away, our own positions.
        self._past = {stream: _Past() for stream in self._lodgings}
        self._check_s = 0.0

    @property
    def away(self) -> bool:
        return any(lodging.away for lodging in self._lodgings.values())

    def clusters(self) -> dict[str, str]:
        return {stream: lodging.cluster for stream, lodging in self._lodgings.items()}

    def is_due(self) -> bool:
        return self._neighbours.state is not None and self._clock.monotonic_s() >= self._check_s

    def look(self, positions: dict[Place, int]) -> dict[Place, ShardTail]:
        now_s = self._clock.monotonic_s()
        self._check_s = now_s + _CHECK_S
        tails: dict[Place, ShardTail] = {}
        for stream, lodging in self._lodgings.items():
            here = {place: at for place, at in positions.items() if place[0] == stream}
            before = lodging.cluster
            if lodging.look(self._outlook(stream, lodging, here, now_s), now_s):
                try:
                    tails |= self._tails(lodging.cluster, here)
                except TailraceError as problem:
                    _LOG.warning("%s cannot be read in %s: %s", stream, lodging.cluster, problem)
                    self._avoid[stream, lodging.cluster] = now_s + _AVOID_S
                    lodging.stay(before)
                else:
                    self._past[stream].clear()
                    _LOG.info("%s is read in %s%s", stream, lodging.cluster, f": {lodging.why}" if lodging.why else "")
        return tails

    def failed(self, place: Place, problem: FileProblem) -> bool:
        stream, state = place[0], self._neighbours.state
        lodging = self._lodgings[stream]
        if state is None:
            return False
        if lodging.away:
            self._avoid[stream, lodging.cluster] = self._clock.monotonic_s() + _AVOID_S
        else:
            self._unreadable[stream] = str(problem)
        self._check_s = 0.0
        elsewhere = self._refuges(stream, outlook(state, stream, self._cluster))
        return bool(elsewhere) or (lodging.away and stream not in self._unreadable)

    def _outlook(self, stream: str, lodging: Lodging, positions: Mapping[Place, int], now_s: float) -> Outlook:
        assert self._neighbours.state is not None
        self._avoid = {key: until_s for key, until_s in self._avoid.items() if until_s > now_s}
        seen = outlook(self._neighbours.state, stream, self._cluster)
        trouble, found = seen.trouble, self._refuges(stream, seen)
        if lodging.away:
            trouble = trouble or self._behind(stream, positions, now_s)
        elif stream in self._unreadable:
            trouble = f"{self._cluster} cannot be read: {self._unreadable[stream]}"
        elif not trouble:
            self._past[stream].clear()
        elif not self._lags(stream, positions, found, now_s):
            trouble = ""
        return Outlook(trouble, found, stream in self._unreadable)

    def _refuges(self, stream: str, seen: Outlook) -> tuple[str, ...]:
        return tuple(
            name
            for name in seen.refuges
            if (stream, name) not in self._avoid and self._neighbours.files(name) is not None
        )

    def _lags(self, stream: str, places: Iterable[Place], refuges: Sequence[str], now_s: float) -> bool:
        """Whether what is reported hurts: home has not even what the nearest refuge had a while ago. A scheduler that
        restarts, or a stream that is silent, is no reason to leave."""
        if not refuges:
            return False
        try:
            there = _reaches(self._files_of(refuges[0]), places)
        except TailraceError:
            self._avoid[stream, refuges[0]] = now_s + _AVOID_S
            return False
        before = self._past[stream].add(there, now_s)
        try:
            return before is not None and _is_behind(_reaches(self._home, places), before)
        except TailraceError:
            return True

    def _behind(self, stream: str, positions: Mapping[Place, int], now_s: float) -> str:
        """Why it is too early to come home although nobody complains; empty: it is not."""
        before = self._past[stream].add(positions, now_s)
        try:
            if before is None or _is_behind(self._ends(self._home, positions), before):
                return f"{stream} in {self._cluster} is behind"
        except TailraceError as problem:
            return str(problem)
        self._unreadable.pop(stream, None)
        return ""

    def _ends(self, files: Files, places: Iterable[Place]) -> dict[Place, int]:
        ends = {}
        for stream, shard in places:
            tail = ShardTail(files, self._clock, stream, shard, "latest")
            ends[stream, shard] = tail.position
            tail.close()
        return ends

    def _files_of(self, cluster: str) -> Files:
        files = self._neighbours.files(cluster)
        if files is None:
            raise FileProblem(f"the files of {cluster} cannot be reached")
        return files

    def _tails(self, cluster: str, positions: Mapping[Place, int]) -> dict[Place, ShardTail]:
        """All shards of a stream, or none."""
        away = cluster != self._cluster
        files = self._files_of(cluster) if away else self._home

        def there(place: Place) -> ShardTail:
            return ShardTail(
                files,
                self._clock,
                *place,
                positions[place],
                in_place=self._in_place,
                incarnation=self._incarnations.get(place[0]),
            )

        made = _of_each(files, positions, there if away else lambda place: self._at_home(*place, positions[place]))
        tails = {place: one for place, one in made.items() if isinstance(one, ShardTail)}
        for problem in made.values():
            if isinstance(problem, TailraceError):
                for tail in tails.values():
                    tail.close()
                raise problem
        return tails


def _reaches(files: Files, places: Iterable[Place]) -> dict[Place, int]:
    """How far the indexes of these shards go."""
    reaches: dict[Place, int] = {}
    for place, found in _of_each(files, places, lambda place: flushed_index(files, *place)).items():
        if isinstance(found, TailraceError):
            raise found
        reaches[place] = found
    return reaches


def _of_each(files: Files, places: Iterable[Place], ask: Callable[[Place], A]) -> dict[Place, A | TailraceError]:
    """What comes of it for each shard: from afar several at once, since each may take a few calls."""

    def attempt(place: Place) -> A | TailraceError:
        try:
            return ask(place)
        except TailraceError as problem:
            return problem

    places = list(places)
    if not isinstance(files, RemoteFiles) or len(places) == 1:
        return {place: attempt(place) for place in places}
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="tailrace moving") as pool:
        return dict(zip(places, pool.map(attempt, places), strict=True))


class _Past:
    """Where something stood a while ago."""

    def __init__(self) -> None:
        self._known: deque[tuple[float, dict[Place, int]]] = deque()

    def add(self, positions: Mapping[Place, int], now_s: float) -> dict[Place, int] | None:
        """Where it stood `_CLOSE_S` before now; None: that is not known yet."""
        self._known.append((now_s, dict(positions)))
        while len(self._known) > 1 and self._known[1][0] <= now_s - _CLOSE_S:
            self._known.popleft()
        since_s, before = self._known[0]
        return before if since_s <= now_s - _CLOSE_S else None

    def clear(self) -> None:
        self._known.clear()


def _is_behind(ends: Mapping[Place, int], others: Mapping[Place, int]) -> bool:
    return any(ends[place] < others[place] for place in ends)
