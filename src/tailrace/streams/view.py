"""A keyed view: the newest snapshots of a stream with all updates since, as keys and values in this process's memory.

Invariants:
- Per shard, the state is what all messages before its position set, in order; a position never goes back.
- `get` waits for nobody. Whatever iterates waits at most while one batch is applied.
- Callbacks hear of each key's changes in order, from one thread.
- If retention, or damage, overtakes the view, the shard is loaded anew from a newer snapshot, and callbacks hear the
  difference. Until there is such a snapshot the shard stays as it was, and `problem` and `freshness_ms` say so.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, overload

from ..env import Clock
from ..errors import Closed, Corrupt, PositionRetired, TailraceError
from ..native import shard_of
from .batch import Batch
from .consumer import Consumer
from .freshness import Freshness
from .snapshots import Snapshots, in_parallel

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
State = dict[bytes, bytes]
OnChange = Callable[[bytes, bytes | None], object]  # (key, its value, or None when it is gone)
Positions = Mapping[int, int] | Mapping[tuple[str, int], int]


class HasPositions(Protocol):
    """A producer, a consumer, another view."""

    @property
    def positions(self) -> Positions: ...


_LOG = logging.getLogger(__name__)
_LOOK_S = 0.25  # how often a view of a quiet stream makes sure that it is fresh
_RETRY_S = 1.0  # before something that went wrong is tried again
_SMALL = 64  # batches below this cost less message by message than as Arrow
_TRIES = 20
_JOIN_S = 10.0


class View:
    """`view[key]`, `view.get(key)`, `key in view`, `len(view)`, `view.items()`. Safe to use from several threads.

    Keys and values are bytes. A key lives in its shard; one that was sent to other shards by hand is found there if its
    own shard does not have it, and counts in each. After close() the state stays as it was.
    """

    def __init__(
        self,
        stream: str,
        shards: Sequence[int],
        shard_count: int,
        snapshots: Snapshots,
        consumer: Callable[[Mapping[int, int]], Consumer],
        clock: Clock,
        *,
        wait: bool = True,
        on_change: OnChange | None = None,
    ) -> None:
        """`consumer` opens one at these positions."""
        self.stream, self.shards = stream, tuple(shards)
        self.updates = 0  # messages applied since the view was opened
        self._snapshots, self._clock = snapshots, clock
        self._shard_count = shard_count
        self._notes: list[str] = []
        self._problem: BaseException | None = None
        self._callbacks: list[OnChange] = [] if on_change is None else [on_change]
        self._stop = threading.Event()
        self._lock = threading.Lock()  # while a batch is put into the state
        self._delivering = threading.RLock()  # while callbacks hear of it
        self._moved = threading.Condition()  # positions, freshness or a problem changed
        self._freshness = Freshness()
        self._stuck: dict[int, tuple[float, int, TailraceError]] = {}  # shard: when to try again, from where on, why
        self._states: list[State] = [{} for _ in range(shard_count)]
        self._positions: dict[int, int] = {}
        self._consumer = self._open(consumer)
        self._thread = threading.Thread(target=self._run, name=f"tailrace view {stream}", daemon=True)
        self._thread.start()
        if wait:
            try:
                self._wait_until_fresh()
            except BaseException:
                self.close()
                raise

    # ---- reading

    @overload
    def get(self, key: bytes) -> bytes | None: ...
    @overload
    def get(self, key: bytes, default: T) -> bytes | T: ...
    def get(self, key: bytes, default: T | None = None) -> bytes | T | None:
        """The key's value, or `default`."""
        if type(key) is not bytes:
            key = _as_key(key)
        if self._shard_count == 1:
            return self._states[0].get(key, default)
        home = self._states[shard_of(key, self._shard_count)]
        value = home.get(key)
        if value is not None:
            return value
        for shard in self.shards:
            value = self._states[shard].get(key)
            if value is not None:
                return value
        return default

    def __getitem__(self, key: bytes) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(key)
        return value

    def __contains__(self, key: bytes) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        return sum(len(self._states[shard]) for shard in self.shards)

    def __iter__(self) -> Iterator[bytes]:
        return (key for key, _ in self.items())

    def keys(self) -> Iterator[bytes]:
        return iter(self)

    def values(self) -> Iterator[bytes]:
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys and values, shard by shard, each shard as it is when its turn comes."""
        for shard in self.shards:
            with self._lock:
                copied = self._states[shard].copy()
            yield from copied.items()

    # ---- how far it is

    @property
    def positions(self) -> dict[int, int]:
        """{shard: all messages before this position are applied, and callbacks have heard of them}."""
        with self._moved:
            return dict(self._positions)

    @property
    def freshness_ms(self) -> float:
        """Milliseconds since the last moment at which everything that was durable had been applied; inf before the
        first. While all is well that is a quarter of a second at most, or half a second when the stream never
        pauses."""
        return (self._clock.monotonic_s() - self._freshness.fresh_s) * 1000

    @property
    def problem(self) -> BaseException | None:
        """What keeps the view from going on, in one shard or in all; it tries again every second."""
        return self._problem

    @property
    def notes(self) -> tuple[str, ...]:
        """Which snapshots could not be read when the view was loaded, so that older ones were taken."""
        return tuple(self._notes)

    def wait_for(self, positions: "Positions | HasPositions", timeout_s: float = 30.0) -> bool:
        """Wait until all before these positions is applied; False when the time is over.

        {shard: position}, or whatever has positions: after producer.flush(), wait_for(producer) makes sure that this
        view has what was sent.
        """
        wanted = self._wanted(positions)
        with self._moved:
            self._moved.wait_for(
                lambda: self._stop.is_set() or all(self._positions[shard] >= at for shard, at in wanted.items()),
                timeout_s,
            )
            if all(self._positions[shard] >= at for shard, at in wanted.items()):
                return True
        self._check_open()
        return False

    def on_change(self, callback: OnChange, *, present: bool = False) -> Callable[[], None]:
        """Call it with (key, value) for every update from now on, and with (key, None) when a key goes. What it returns
        ends that.

        present: first for every key that is there now, with no change missed in between. It is called in the view's
        own thread, after the update is applied; the view may be further on already. Whatever it raises is logged.
        """
        with self._delivering:
            if present:
                for key, value in self.items():
                    callback(key, value)
            self._callbacks = [*self._callbacks, callback]

        def end() -> None:
            with self._delivering:
                if callback in self._callbacks:
                    rest = list(self._callbacks)
                    rest.remove(callback)
                    self._callbacks = rest

        return end

    def close(self) -> None:
        """Stop following. The state stays readable as it is."""
        self._stop.set()
        self._consumer.close()
        with self._moved:
            self._moved.notify_all()
        if threading.current_thread() is not self._thread:
            self._thread.join(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View {self.stream}, {len(self.shards)} shards, {len(self)} keys>"

    # ---- loading

    def _open(self, consumer: Callable[[Mapping[int, int]], Consumer]) -> Consumer:
        """Load all shards side by side; again, if retention took meanwhile what a snapshot leads to."""
        for attempt in range(_TRIES):
            self._notes.clear()
            for shard, (state, position) in zip(self.shards, in_parallel(self._load, self.shards), strict=True):
                self._states[shard], self._positions[shard] = state, position
            try:
                return consumer(self._positions)
            except PositionRetired:
                if attempt == _TRIES - 1:
                    raise
        raise AssertionError("unreachable")

    def _load(self, shard: int, at_least: int = 0) -> tuple[State, int]:
        base = self._snapshots.load(shard, at_least=at_least)
        self._notes += [note for note in base.notes if note not in self._notes]
        return {} if base.table is None else _state(base.table), base.position

    def _wait_until_fresh(self) -> None:
        with self._moved:
            self._moved.wait_for(lambda: self._freshness.fresh_s > -math.inf or self._problem or self._stop.is_set())
            problem = None if self._freshness.fresh_s > -math.inf else self._problem
        if problem is not None:
            raise problem

    # ---- following

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._mend()
                self._step()
            except Closed as problem:
                if not self._stop.is_set():  # it was not we: the world was closed under us
                    self._stop.set()
                    self._consumer.close()
                    self._tell(problem)
                return
            except (PositionRetired, Corrupt) as problem:
                if problem.shard is None or problem.position is None:
                    self._tell(problem)
                    self._clock.wait(self._stop, _RETRY_S)
                else:
                    self._consumer.pause(problem.shard)
                    self._stuck[problem.shard] = (-math.inf, problem.position + 1, problem)
            except TailraceError as problem:
                self._tell(problem)
                self._clock.wait(self._stop, _RETRY_S)
            except BaseException as problem:  # a bug of ours: whoever waits must not wait for ever
                self._tell(problem)
                raise

    def _step(self) -> None:
        now_s = self._clock.monotonic_s()
        if self._freshness.wants_mark(now_s):
            self._mark(now_s)
            now_s = self._clock.monotonic_s()
        batch = self._consumer.poll()
        if batch is None:
            if not self._stuck:
                with self._moved:
                    before_s = self._freshness.fresh_s
                    self._freshness.looked(now_s, self._positions)
                    self._refreshed(before_s)
            batch = self._consumer.poll(_LOOK_S)
        if batch is not None:
            self._apply(batch)

    def _mark(self, now_s: float) -> None:
        ends: dict[int, int] | None = None
        try:
            ends = self._snapshots.ends(self.shards)
        except TailraceError as problem:
            self._tell(problem)
        self._freshness.marked(now_s, self._clock.monotonic_s() - now_s, ends)

    def _apply(self, batch: Batch) -> None:
        keys, values = _columns(batch)
        changes = dict(zip(keys, values, strict=True))
        changes.pop(None, None)  # a message without a key sets nothing
        state = self._states[batch.shard]
        with self._delivering:
            with self._lock:
                _change(state, changes)
            if self._callbacks:
                for key, value in zip(keys, values, strict=True):
                    if key is not None:
                        self._call(key, value)
            self.updates += len(keys)
            self._move(batch.shard, batch.end)

    def _mend(self) -> None:
        """Load shards anew that cannot go on from where they are."""
        for shard, (due_s, at_least, why) in list(self._stuck.items()):
            if self._clock.monotonic_s() < due_s:
                continue
            try:
                state, position = self._load(shard, at_least)
                self._consumer.seek(position, shard)
            except TailraceError as problem:
                self._tell(why if isinstance(why, Corrupt) else problem)
                self._stuck[shard] = (self._clock.monotonic_s() + _RETRY_S, at_least, why)
                continue
            _LOG.warning("%s/%s was loaded anew from the snapshot at %s: %s", self.stream, shard, position, why)
            self._replace(shard, state, position)
            del self._stuck[shard]
            self._consumer.resume(shard)

    def _replace(self, shard: int, state: State, position: int) -> None:
        before = self._states[shard]
        with self._delivering:
            with self._lock:
                self._states[shard] = state
            if self._callbacks:
                for key in before.keys() - state.keys():
                    self._call(key, None)
                for key, value in state.items():
                    if before.get(key) != value:
                        self._call(key, value)
            self._move(shard, position)

    def _call(self, key: bytes, value: bytes | None) -> None:
        for callback in self._callbacks:
            try:
                callback(key, value)
            except Exception:
                _LOG.exception("a change callback of the view %s failed for the key %r", self.stream, key[:80])

    def _move(self, shard: int, position: int) -> None:
        with self._moved:
            self._positions[shard] = position
            before_s = self._freshness.fresh_s
            self._freshness.applied(self._positions)
            self._refreshed(before_s)
            self._moved.notify_all()

    def _refreshed(self, before_s: float) -> None:
        if self._freshness.fresh_s > before_s:
            self._problem = None
            self._moved.notify_all()

    def _tell(self, problem: BaseException) -> None:
        """Somebody may look at it; whoever waits is woken."""
        with self._moved:
            if str(problem) != str(self._problem):
                _LOG.warning("the view %s cannot go on: %s", self.stream, problem)
            self._problem = problem
            self._moved.notify_all()

    def _wanted(self, positions: "Positions | HasPositions") -> dict[int, int]:
        told: Mapping[Any, int] = positions if isinstance(positions, Mapping) else positions.positions
        wanted = {}
        for place, position in told.items():
            stream, shard = place if isinstance(place, tuple) else (self.stream, place)
            if stream != self.stream:
                continue
            if shard not in self._positions:
                raise ValueError(f"this view does not follow {stream}/{shard}; it has the shards {list(self.shards)}")
            wanted[shard] = position
        return wanted

    def _check_open(self) -> None:
        if self._stop.is_set():
            raise Closed("this view was closed; open a new one")


def _state(table: "pyarrow.Table") -> State:
    """Piece by piece: other threads get their turn, and little is held twice."""
    state: State = {}
    for piece in table.to_batches():
        state.update(zip(piece.column(0).to_pylist(), piece.column(1).to_pylist(), strict=True))
    return state


def _columns(batch: Batch) -> tuple[list[bytes | None], list[bytes | None]]:
    if batch.count < _SMALL:
        messages = batch.messages()
        return [message.key for message in messages], [message.value for message in messages]
    table = batch.to_arrow()
    return table.column("key").to_pylist(), table.column("value").to_pylist()


def _change(state: State, changes: dict[bytes | None, bytes | None]) -> None:
    if None not in changes.values():
        state.update(changes)  # type: ignore[arg-type]
        return
    for key, value in changes.items():
        if value is None:
            state.pop(key, None)  # type: ignore[arg-type]
        else:
            state[key] = value  # type: ignore[index]


def _as_key(key: object) -> bytes:
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise TypeError(f"keys are bytes, not {type(key).__name__}: {key!r:.80}")
