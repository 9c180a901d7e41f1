"""Carry frames of mutations to the backends that have copies, and count what came back."""

from collections import deque
from collections.abc import Sequence

from ..env import Clock
from ..errors import TailraceError
from ..native.cell import Outcome
from ..wire import MutateReply
from .peer import Pending
from .tally import Tally
from .versions import NOTHING, Version
from .ways import Ways

_IN_FLIGHT = 8  # frames on their way at once; a frame is at most half a megabyte

Frame = tuple[int, bytes, list[int]]  # the backend, the packed mutations, and the numbers of their keys
_OUTCOMES = tuple(Outcome)


def send(
    ways: Ways, clock: Clock, frames: Sequence[Frame], keys: int, copies: int, quorum: int, deadline_at_s: float
) -> tuple[list[Tally] | None, Version]:
    """A tally for each key, and the highest version that stood in the way. No tallies: everybody took everything."""
    answers: list[MutateReply | TailraceError] = [TailraceError()] * len(frames)
    flying: deque[tuple[int, Pending]] = deque()
    for number, (backend, frame, _) in enumerate(frames):
        if len(flying) == _IN_FLIGHT:
            landed, pending = flying.popleft()
            answers[landed] = _landed(pending)
        left_s = max(deadline_at_s - clock.monotonic_s(), 0.001)
        try:
            pending = ways.peer(backend).mutate_async(
                ways.instance(backend), ways.record.config_id, frame, deadline_s=left_s
            )
            flying.append((number, pending))
        except TailraceError as refused:
            answers[number] = refused
    for number, pending in flying:
        answers[number] = _landed(pending)
    return _count(frames, answers, keys, copies, quorum)


def _landed(pending: Pending) -> MutateReply | TailraceError:
    try:
        return pending.result()
    except TailraceError as failed:
        return failed


def _count(
    frames: Sequence[Frame], answers: Sequence[MutateReply | TailraceError], keys: int, copies: int, quorum: int
) -> tuple[list[Tally] | None, Version]:
    if all(
        isinstance(answer, MutateReply)
        and len(answer.outcomes) == len(numbers)
        and not answer.outcomes.strip(b"\0")  # the usual end: APPLIED is 0, and nothing else is there
        for (_, _, numbers), answer in zip(frames, answers, strict=True)
    ):
        return None, NOTHING
    tallies = [Tally(copies, quorum) for _ in range(keys)]
    floor = NOTHING
    for (_, _, numbers), answer in zip(frames, answers, strict=True):
        if isinstance(answer, MutateReply) and len(answer.outcomes) == len(numbers):
            floor = max(floor, Version(*answer.floor))
            for number, outcome in zip(numbers, answer.outcomes, strict=True):
                tallies[number].count(_OUTCOMES[outcome])
        else:
            # No outcomes at all: the backend is another instance than was meant, and did nothing.
            untouched = isinstance(answer, MutateReply) or answer.took_effect is False
            for number in numbers:
                if untouched:
                    tallies[number].silent += 1
                else:
                    tallies[number].lost += 1
    return tallies, floor
