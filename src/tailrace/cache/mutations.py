"""Carry frames of mutations to the backends that have copies, and count what came back.

To a backend in this process a frame is handed directly. To others it goes by their engine, which applies it without an
interpreter; and by RPC where there is no engine, or it cannot be reached.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..config import CacheConfig
from ..env import Clock
from ..errors import DeadlineExceeded, TailraceError, WireRefused
from ..native import Block
from ..native.cell import Outcome
from ..native.client import Couriers, Delivery
from ..wire import MutateReply
from .peer import Peer, Pending
from .registry import BackendRecord
from .tally import Tally
from .versions import NOTHING, Version
from .ways import CONNECT_S, Ways

_IN_FLIGHT = 8  # calls on their way at once; a frame is rarely more than half a megabyte
_OUTCOMES = tuple(Outcome)

Frame = tuple[int, Block, Sequence[int]]  # the backend, the packed mutations, and the numbers of their keys
Answer = MutateReply | TailraceError


@dataclass(slots=True)
class _Out:
    """Couriers, and to whom they are attached."""

    native: Couriers
    attached: dict[int, BackendRecord] = field(default_factory=dict)


class Post:
    """Safe to share between threads."""

    def __init__(self, ways: Ways, clock: Clock) -> None:
        self._ways, self._clock = ways, clock
        self._idle: list[_Out] = []

    def send(
        self, frames: Sequence[Frame], keys: int, deadline_at_s: float, spare: int
    ) -> tuple[list[Tally] | None, Version]:
        """A tally for each key, and the highest version that stood in the way. No tallies: everybody took all. When no
        more than `spare` backends have not answered, nobody waits for them until the deadline."""
        return _count(frames, self._carry(frames, deadline_at_s, spare), keys, self._ways.record.config)

    def _carry(self, frames: Sequence[Frame], deadline_at_s: float, spare: int) -> list[Answer | None]:
        answers: list[Answer | None] = [None] * len(frames)
        couriered: list[int] = []
        called: list[int] = []
        out = self._take()
        try:
            for number, (backend, frame, _) in enumerate(frames):
                local = self._ways.local(backend)
                if local is not None:
                    answers[number] = _tried(partial(local.mutate, local.instance, 0, memoryview(frame)))
                elif self._courier(out, backend):
                    couriered.append(number)
                else:
                    called.append(number)
            if couriered:
                others = len({frames[number][0] for number in called})  # of whom nobody knows yet if they take it
                called += self._deliver(out, frames, couriered, answers, deadline_at_s, max(spare - others, 0))
        finally:
            self._idle.append(out)
        if called:
            self._call(frames, called, answers, deadline_at_s)
        return answers

    # ---- by engine

    def _take(self) -> _Out:
        try:
            return self._idle.pop()
        except IndexError:
            return _Out(Couriers(self._ways.record.config.backends))

    def _courier(self, out: _Out, number: int) -> bool:
        """Whether a frame for this backend can go by its engine."""
        record = self._ways.backend(number)
        if record is not None and out.attached.get(number) == record and out.native.attached(number):
            return True
        out.attached.pop(number, None)
        if record is None or self._ways.shunned(number):
            return False
        try:
            door = self._ways.door(number)
            if door is None:
                return False
            out.native.attach(number, door.host, door.port, door.ticket, record.instance, CONNECT_S)
        except (OSError, ValueError, TailraceError):
            self._ways.shun(number)
            return False
        self._ways.forgive(number)
        out.attached[number] = record
        return True

    def _deliver(
        self,
        out: _Out,
        frames: Sequence[Frame],
        numbers: list[int],
        answers: list[Answer | None],
        deadline_at_s: float,
        spare: int,
    ) -> list[int]:
        """Those that surely did not get there are left for other ways."""
        left: list[int] = []
        left_s = deadline_at_s - self._clock.monotonic_s()
        told = out.native.deliver([frames[number] for number in numbers], left_s, spare)
        for number, (delivery, outcomes, floor) in zip(numbers, told, strict=True):
            backend = frames[number][0]
            where = f"mutations for backend {backend} of the cache {self._ways.name}"
            match delivery:
                case Delivery.TAKEN:
                    answers[number] = MutateReply(instance=0, config_id=0, outcomes=outcomes, floor=floor)
                case Delivery.WRONG:
                    answers[number] = WireRefused(f"{where}: {outcomes.decode(errors='replace')}; nothing was changed")
                case Delivery.UNKNOWN:
                    answers[number] = DeadlineExceeded(
                        f"{where}: its engine did not answer in time, or the connection broke; it may have taken them"
                    )
                case _:
                    out.native.detach(backend)
                    left.append(number)
        return left

    # ---- by RPC

    def _call(
        self, frames: Sequence[Frame], numbers: list[int], answers: list[Answer | None], deadline_at_s: float
    ) -> None:
        flying: deque[tuple[int, Pending]] = deque()
        whom: dict[int, tuple[Peer, int]] = {}  # asked for once: the ways may change between two frames
        for number in numbers:
            if len(flying) == _IN_FLIGHT:
                landed, pending = flying.popleft()
                answers[landed] = _tried(pending.result)
            backend, frame, _ = frames[number]
            left_s = max(deadline_at_s - self._clock.monotonic_s(), 0.001)
            try:
                if backend not in whom:
                    whom[backend] = self._ways.peer(backend), self._ways.instance(backend)
                peer, instance = whom[backend]
                pending = peer.mutate_async(instance, self._ways.record.config_id, memoryview(frame), deadline_s=left_s)
                flying.append((number, pending))
            except TailraceError as refused:
                answers[number] = refused
        for number, pending in flying:
            answers[number] = _tried(pending.result)

    def close(self) -> None:
        self._idle.clear()


def _tried(call: Callable[[], MutateReply]) -> Answer:
    try:
        return call()
    except TailraceError as failed:
        return failed


def _count(
    frames: Sequence[Frame], answers: Sequence[Answer | None], keys: int, config: CacheConfig
) -> tuple[list[Tally] | None, Version]:
    if all(
        isinstance(answer, MutateReply)
        and len(answer.outcomes) == len(numbers)
        and not answer.outcomes.strip(b"\0")  # the usual end: APPLIED is 0, and nothing else is there
        for (_, _, numbers), answer in zip(frames, answers, strict=True)
    ):
        return None, NOTHING
    tallies = [Tally(config.copies, config.quorum) for _ in range(keys)]
    floor = NOTHING
    for (_, _, numbers), answer in zip(frames, answers, strict=True):
        if isinstance(answer, MutateReply) and len(answer.outcomes) == len(numbers):
            floor = max(floor, Version(*answer.floor))
            for number, outcome in zip(numbers, answer.outcomes, strict=True):
                tallies[number].count(_OUTCOMES[outcome])
        else:
            # No outcomes at all: the backend is another instance than was meant, and did nothing.
            untouched = answer is None or isinstance(answer, MutateReply) or answer.took_effect is False
            for number in numbers:
                if untouched:
                    tallies[number].silent += 1
                else:
                    tallies[number].lost += 1
    return tallies, floor
