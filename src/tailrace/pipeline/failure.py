"""What becomes of a unit that failed: tried again, or divided until the bad bytes stand alone (U37, U41).

Invariants:
- Whatever happens, the bytes of the parts and of the bad ranges together are those of the unit, each once.
- Only a range that cannot be divided, or that was found to be bad by name, is given up; everything else is done.
- Too many bad ranges at once say that the trouble is not in the data: then nothing is given up, and the unit waits.

A worker that can tell where it failed names the range. One that cannot, because it died, has its unit halved: by ranges
first, then within a range between two messages, down to a single one.

Pure: the unit and what is known of the failure come in, its successors go out.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .ranges import ByteRange, merge, subtract, total
from .unit import Unit


@dataclass(frozen=True, slots=True)
class Patience:
    attempts_max: int  # of a unit as it is, before it is divided
    bad_ranges_max: int  # of the whole pipeline
    pause_us: int  # after the first failure, and twice as long after each more …
    pause_max_us: int  # … up to this


@dataclass(frozen=True, slots=True)
class Failure:
    """`bad`: the ranges that are at fault, where the worker could tell. certain: trying again cannot help, as with
    bytes that fail their checksum. everywhere: so much of the unit fails that the data can hardly be the cause."""

    reason: str
    bad: tuple[ByteRange, ...] = ()
    certain: bool = False
    everywhere: bool = False


@dataclass(frozen=True, slots=True)
class BadRange:
    range: ByteRange
    reason: str
    found_us: int
    oldest_us: int


@dataclass(frozen=True, slots=True)
class Aftermath:
    units: tuple[Unit, ...]
    bad: tuple[BadRange, ...] = ()


#: A position between two messages near the middle of a range; None if there is but one message in it.
Middle = Callable[[ByteRange], int | None]


def aftermath(
    unit: Unit, failure: Failure, patience: Patience, bad_known: int, middle: Middle, now_us: int
) -> Aftermath:
    """The unit's successors: itself, or its parts. `bad_known`: how many bad ranges the pipeline has already."""
    assert unit.standing != "committed", unit
    failures = unit.failures + 1
    again = replace(
        unit,
        standing="open",
        holder=None,
        failures=failures,
        reason=failure.reason,
        since_us=now_us,
        not_before_us=now_us + _pause_us(failures, patience),
    )
    if unit.whole or failure.everywhere:
        return Aftermath((again,))
    tried_enough = failures >= patience.attempts_max
    if not (tried_enough or failure.certain or unit.suspect):
        return Aftermath((again,))
    bad = [one for one in merge(failure.bad) if not subtract([one], unit.ranges)]
    if bad:  # found by trying them alone
        if bad_known + len(bad) > patience.bad_ranges_max:
            return Aftermath((replace(again, reason=_too_many(failure.reason, patience)),))
        rest = subtract(unit.ranges, bad)
        return Aftermath(_parts(unit, [rest], now_us), _given_up(unit, bad, failure, now_us))
    if len(unit.ranges) > 1:
        return Aftermath(_parts(unit, _halves(unit.ranges), now_us))
    (only,) = unit.ranges
    at = middle(only)
    if at is None:
        if not tried_enough and not failure.certain:
            return Aftermath((again,))  # a last resort: not because of one hiccup
        if bad_known >= patience.bad_ranges_max:
            return Aftermath((replace(again, reason=_too_many(failure.reason, patience)),))
        return Aftermath((), _given_up(unit, [only], failure, now_us))
    assert only.begin < at < only.end, (only, at)
    return Aftermath(_parts(unit, [[replace(only, end=at)], [replace(only, begin=at)]], now_us))


def revived(bad: BadRange, site: str, now_us: int) -> Unit:
    """A bad range as a unit again, since the cause was mended."""
    return Unit((bad.range,), bad.oldest_us, now_us, site, given_us=now_us, since_us=now_us)


def _parts(unit: Unit, parts: Sequence[Sequence[ByteRange]], now_us: int) -> tuple[Unit, ...]:
    """A part that fails is divided at once, so that one bad message costs few tries."""
    return tuple(
        replace(
            unit,
            ranges=tuple(part),
            standing="open",
            holder=None,
            failures=0,
            suspect=True,
            given_us=now_us,
            since_us=now_us,
            not_before_us=0,
        )
        for part in parts
        if part
    )


def _halves(ranges: Sequence[ByteRange]) -> list[list[ByteRange]]:
    """About as many bytes in each, and none empty."""
    ordered = sorted(ranges)
    half, first = total(ordered) / 2, [ordered[0]]
    while len(first) < len(ordered) - 1 and total(first) < half:
        first.append(ordered[len(first)])
    return [first, ordered[len(first) :]]


def _given_up(unit: Unit, bad: Sequence[ByteRange], failure: Failure, now_us: int) -> tuple[BadRange, ...]:
    return tuple(BadRange(one, failure.reason, now_us, unit.oldest_us) for one in bad)


def _too_many(reason: str, patience: Patience) -> str:
    return (
        f"{reason} (not given up: there are {patience.bad_ranges_max} bad ranges already, so look at the cause first)"
    )


def _pause_us(failures: int, patience: Patience) -> int:
    return int(min(patience.pause_max_us, patience.pause_us * 2.0 ** min(failures - 1, 40)))
