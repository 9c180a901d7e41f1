"""Decide in which cluster a consumer reads a stream: at home, or, while that is ill, in a near one that is well.

Always holds: it leaves home only after home has been ill for `ill_s` (at once if it cannot be read at all), and comes
back only after home has been well for `well_s`, so that it does not go to and fro with every hiccup.

Positions are the same everywhere, so a consumer takes its cursor along: it misses nothing and repeats nothing.
Pure: no clock, no store, no files. Whoever asks brings the time and what is known.
"""

from dataclasses import dataclass
from typing import Protocol

from ..errors import FileProblem
from .tail import ShardTail

Place = tuple[str, int]  # (stream, shard)


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    ill_s: float = 1.0
    well_s: float = 5.0


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known now: what is wrong at home, in words (empty: nothing), and where else the stream is, near first."""

    trouble: str = ""
    refuges: tuple[str, ...] = ()
    unreadable: bool = False  # home's files cannot be read at all


class Lodging:
    def __init__(self, home: str, patience: Patience | None = None) -> None:
        self._patience = patience or Patience()
        self._home = self.cluster = home  # where to read now
        self.why = ""  # it is not home
        self._ill_since_s: float | None = None
        self._well_since_s: float | None = None

    @property
    def away(self) -> bool:
        return self.cluster != self._home

    def look(self, outlook: Outlook, now_s: float) -> bool:
        """Whether to read elsewhere from now on."""
        before = self.cluster
        if outlook.trouble:
            self._well_since_s = None
            self._ill_since_s = now_s if self._ill_since_s is None else self._ill_since_s
        else:
            self._ill_since_s = None
            self._well_since_s = now_s if self._well_since_s is None else self._well_since_s
        if self.away and self._well_since_s is not None and now_s >= self._well_since_s + self._patience.well_s:
            self.cluster, self.why = self._home, ""
        elif self.away and self.cluster not in outlook.refuges:
            self.cluster = outlook.refuges[0] if outlook.refuges else self._home
        elif not self.away and outlook.refuges and self._is_over(outlook, now_s):
            self.cluster = outlook.refuges[0]
        self.why = outlook.trouble or self.why if self.away else ""
        return self.cluster != before

    def _is_over(self, outlook: Outlook, now_s: float) -> bool:
        """Whether home was given enough time."""
        if self._ill_since_s is None:
            return False
        return outlook.unreadable or now_s >= self._ill_since_s + self._patience.ill_s

    def stay(self, cluster: str) -> None:
        """It could not go where it wanted to: it is still there."""
        self.cluster, self._well_since_s = cluster, None


class Moves(Protocol):
    """Says where a consumer is to read. Belongs to the consumer's thread."""

    @property
    def away(self) -> bool:
        """Whether some stream is read elsewhere: then no hint at home tells of its news."""
        ...

    def is_due(self) -> bool:
        """Whether it is time to look again. Asked before every read, so it costs next to nothing."""
        ...

    def look(self, positions: dict[Place, int]) -> dict[Place, ShardTail]:
        """Tails to take the place of those there are, at the same positions; most of the time none."""
        ...

    def failed(self, place: Place, problem: FileProblem) -> bool:
        """A tail could not be read. True: there will be another one for it; False: there is nowhere else to go."""
        ...

    def clusters(self) -> dict[str, str]:
        """Where each stream is read now."""
        ...
