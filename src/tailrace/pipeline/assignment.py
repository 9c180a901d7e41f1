"""Which site gets a new unit, and which units a runner may take now: health, weight, locality and ETAs.

- A site is up while one of its runners is known to live and to get on, and nobody declared it out. One that is not up
  gets no unit, and what it had is free for the others at once (U24). A runner that has not finished anything for the
  local ETA, though it has work, says so itself, if it still can.
- Among those that are up, and have the bytes, a unit goes to the one with the least work for its weight (U15, U16).
- A unit that was handed out is hidden: from its own site for the local ETA (U22), from others for the site ETA (U23),
  which is how a site is found out that is up but does nothing (U25). One that nobody has begun costs nothing to take
  over: once it has waited a little, its site has more to do than it can, and any other that has the bytes may help.
  Without that all would fall to the site that sees new bytes first, since it gets what the others have not got yet.
- Oldest first, always (U18).

ETAs are about speed. That no byte counts twice rests on the commit alone, so clocks of different sites may differ.

Pure: records in, decisions out.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from ..native import hash64
from .unit import Holder, Unit


@dataclass(frozen=True, slots=True)
class Etas:
    local_us: int
    site_us: int
    open_us: int | None = None  # of a unit that nobody has begun; None: the local one

    @property
    def waiting_us(self) -> int:
        return self.local_us if self.open_us is None else min(self.open_us, self.local_us)


@dataclass(frozen=True, slots=True)
class Health:
    """weights: of each site with a living runner, how much work it is provisioned for. out: declared so."""

    weights: Mapping[str, float] = field(default_factory=dict)
    runners: frozenset[str] = frozenset()  # that live
    out: frozenset[str] = frozenset()

    def up(self) -> list[str]:
        return sorted(site for site, weight in self.weights.items() if weight > 0 and site not in self.out)

    def is_up(self, site: str) -> bool:
        return site not in self.out and self.weights.get(site, 0) > 0


class Allotment:
    """Gives new units to sites, counting what each has already."""

    def __init__(self, health: Health, units: Iterable[Unit]) -> None:
        self._health = health
        self._bytes: dict[str, int] = dict.fromkeys(health.up(), 0)
        for unit in units:
            if unit.standing != "committed" and unit.site in self._bytes:
                self._bytes[unit.site] += unit.size

    def site_for(self, unit: Unit, default: str) -> str:
        """`default`: when nobody is up, the one who asks. Of sites with as little to do one is drawn by lot, which
        falls the same way for the same unit: when all are idle, none has more than its share."""
        size, nearby = unit.size, unit.nearby
        up = [site for site in self._bytes if not nearby or site in nearby] or list(self._bytes)
        if not up:
            return default
        best = min(
            up,
            key=lambda site: (
                (self._bytes[site] + size) / self._health.weights[site],
                hash64(f"{unit.id}/{site}".encode()),
            ),
        )
        self._bytes[best] += size
        return best


def may_take(unit: Unit, asker: Holder, now_us: int, health: Health, etas: Etas) -> bool:
    if unit.standing == "committed" or now_us < unit.not_before_us or not health.is_up(asker.site):
        return False
    if unit.standing == "held" and unit.holder == asker:
        return True  # who does not know of it any more: the answer that gave it to him was lost
    lost = not health.is_up(unit.site)
    if unit.standing == "open" and etas.open_us is not None and _passed(unit.given_us, etas.waiting_us, now_us):
        return True
    if unit.nearby and asker.site not in unit.nearby:
        near_ones_up = any(health.is_up(site) for site in unit.nearby)
        return (not near_ones_up) or _passed(unit.given_us, etas.site_us, now_us)
    if unit.standing == "open":
        return asker.site == unit.site or lost or _passed(unit.given_us, etas.local_us, now_us)
    assert unit.holder is not None, unit
    if asker.site != unit.site:
        return lost or _passed(unit.given_us, etas.site_us, now_us)
    return unit.holder.runner not in health.runners or _passed(unit.since_us, etas.local_us, now_us)


def choose(
    units: Iterable[Unit],
    asker: Holder,
    now_us: int,
    health: Health,
    etas: Etas,
    *,
    units_max: int,
    has: Callable[[Unit], bool] = lambda unit: True,
) -> list[Unit]:
    """What a runner takes: the oldest units that it may take and whose bytes it has."""
    ready = [unit for unit in units if may_take(unit, asker, now_us, health, etas)]
    ready.sort(key=lambda unit: (unit.oldest_us, unit.id))
    chosen: list[Unit] = []
    for unit in ready:
        if len(chosen) >= units_max:
            break
        if has(unit):
            chosen.append(unit)
    return chosen


def _passed(since_us: int, eta_us: int, now_us: int) -> bool:
    """A time from the future comes of a clock that was set back: it must not hide a unit for ever."""
    return now_us - since_us >= eta_us or since_us - now_us > eta_us
