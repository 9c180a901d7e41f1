"""Nominate versions: a hybrid clock that never goes back, whatever the machine's clock does.

Invariant: the versions of one clock ascend, and are above every version it has observed. Pure: the time is told to it.
"""

from collections.abc import Sequence
from typing import NamedTuple, overload

SEQUENCES = 1 << 31  # of one clock value
BY_CAS = 1 << 31  # in the sequence: this version came by compare-and-set, and repairs are careful with it


class Version(NamedTuple):
    """Compared in this order. (0, 0, 0) is below every version that is nominated: nothing is stored."""

    clock_us: int
    client: int
    sequence: int


NOTHING = Version(0, 0, 0)


class Versions(Sequence[Version]):
    """Consecutive ones. Whoever sets a thousand keys rarely asks for their versions, so they are made when asked for.

    >>> Versions(Version(100, 7, 3), 2)[-1]
    Version(clock_us=100, client=7, sequence=4)
    """

    __slots__ = ("_first", "_numbers")

    def __init__(self, first: Version, count: int) -> None:
        self._first, self._numbers = first, range(count)

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Version: ...

    @overload
    def __getitem__(self, at: slice) -> list[Version]: ...

    def __getitem__(self, at: int | slice) -> Version | list[Version]:
        if isinstance(at, slice):
            return [self[number] for number in self._numbers[at]]
        return self._first._replace(sequence=self._first.sequence + self._numbers[at])


class HybridClock:
    """
    >>> clock = HybridClock(client=7)
    >>> clock.nominate(1, now_us=100)
    Version(clock_us=100, client=7, sequence=0)
    >>> clock.nominate(3, now_us=90)  # the machine's clock went back; three versions, the first of them
    Version(clock_us=100, client=7, sequence=1)
    >>> clock.observe(Version(250, 9, 4))
    >>> clock.nominate(1, now_us=101)
    Version(clock_us=251, client=7, sequence=0)
    """

    def __init__(self, client: int) -> None:
        assert 0 < client < 1 << 32, client
        self._client = client
        self._clock_us, self._sequence = 0, 0

    def nominate(self, count: int, now_us: int, *, by_cas: bool = False) -> Version:
        """`count` versions with consecutive sequences; the first one."""
        assert 0 < count < SEQUENCES, count
        if now_us > self._clock_us:
            self._clock_us, self._sequence = now_us, 0
        if self._sequence + count >= SEQUENCES:
            self._clock_us, self._sequence = self._clock_us + 1, 0
        first = Version(self._clock_us, self._client, self._sequence | (BY_CAS if by_cas else 0))
        self._sequence += count
        if by_cas:  # the next ones are above it only with another clock
            self._clock_us, self._sequence = self._clock_us + 1, 0
        return first

    def observe(self, version: Version) -> None:
        """Someone's version stood in our way: the next ones are above it."""
        if version.clock_us >= self._clock_us:
            self._clock_us, self._sequence = version.clock_us + 1, 0
