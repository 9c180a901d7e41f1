"""Turns free bytes into work units (U8).

Invariants:
- Each byte goes into exactly one unit: a shard's bytes are taken from `created` on, without a gap, and `created` moves
  with them in the same transaction.
- Oldest first: of all that is free, the pieces with the oldest messages go into the first units (U18).
- A unit mixes pieces of several files where there are several, since those are read side by side.
- Few bytes wait a little for others, and longer while there are units that nobody has begun.
- No more units than the limits allow (U38); what is not taken now waits, and is counted.

Pure: what is free and where it may be cut comes in; units and new records go out.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from .assignment import Allotment, Health
from .ranges import ByteRange
from .tracking import Shard, advance, base_of, pieces, sites_with
from .unit import Unit


@dataclass(frozen=True, slots=True)
class Limits:
    unit_bytes: int
    units_max: int  # that are not committed
    undispatched_max: int  # committed, but not published: above that the sink is too slow, and more would not help
    linger_us: int  # so long may a byte wait for others to fill a unit


@dataclass(frozen=True, slots=True)
class Piece:
    """Bytes of one file that no cut divides further. first_us: the time of the first message in it."""

    range: ByteRange
    first_us: int


@dataclass(frozen=True, slots=True)
class Created:
    shards: tuple[Shard, ...]
    units: tuple[Unit, ...]
    throttled: str = ""  # what keeps more from being made


def reachable(shard: Shard, site: str) -> tuple[int, int]:
    """The free positions that a site can cut: from `created` on, as far as it has them itself."""
    extent = shard.sites.get(site)
    if extent is None or extent.begin > shard.created:
        return shard.created, shard.created
    return shard.created, max(shard.created, extent.end)


def lost(shard: Shard) -> list[ByteRange]:
    """Free bytes that no site has any more: retention was faster than the pipeline."""
    if not shard.sites:
        return []
    begin = min(extent.begin for extent in shard.sites.values())
    if begin <= shard.created:
        return []
    before = [name for name in shard.files if base_of(name) <= shard.created]
    file = before[-1] if before else (shard.files[0] if shard.files else "")
    return [ByteRange(shard.stream, shard.shard, file, shard.created, begin)]


def cut(shard: Shard, cuts: Iterable[int], end: int) -> list[ByteRange]:
    """The bytes from `created` to `end`, cut at these positions and at the ends of files."""
    found: list[ByteRange] = []
    begin = shard.created
    for stop in [*sorted(at for at in cuts if shard.created < at < end), end]:
        found += pieces(shard, begin, stop)
        begin = stop
    return found


def create(
    shards: Mapping[tuple[str, int], Shard],
    found: Sequence[Piece],
    units: Sequence[Unit],
    limits: Limits,
    health: Health,
    site: str,
    now_us: int,
) -> Created:
    """Units from pieces: of each shard those from `created` on, in order. `units`: those that stand already."""
    room = limits.units_max - sum(unit.standing != "committed" for unit in units)
    undispatched = sum(unit.standing == "committed" for unit in units)
    if undispatched >= limits.undispatched_max:
        return Created((), (), f"the sink: {undispatched} units wait to be published")
    bundles = _bundles(found, limits.unit_bytes)
    # Small units while there is somebody to take them; else the bytes wait, and come together in larger ones. So a
    # worker with a high price for each unit gets few of them, and the delay stays that of a unit or two.
    idle = sum(unit.standing == "open" for unit in units) < max(1.0, sum(health.weights.values()))
    ripe = [
        bundle
        for bundle in bundles
        if sum(piece.range.size for piece in bundle) >= limits.unit_bytes // 2
        or (idle and now_us - min(piece.first_us for piece in bundle) >= limits.linger_us)
    ]
    # Only whole runs may go: a bundle that waits keeps all behind it waiting, since bytes are taken in order.
    ripe = bundles[: _leading(bundles, ripe)]
    throttled = ""
    if len(ripe) > room:
        throttled = f"work: {limits.units_max} units are not committed yet"
        ripe = ripe[: max(0, room)]
    allotment = Allotment(health, units)
    made, ends = [], {key: shard.created for key, shard in shards.items()}
    for bundle in ripe:
        ranges = _joined([piece.range for piece in bundle])
        for one in ranges:
            key = (one.stream, one.shard)
            assert one.begin == ends[key], (one, ends[key])
            ends[key] = one.end
        nearby = _nearby(shards, ranges, health)
        unit = Unit(
            ranges=ranges,
            oldest_us=min(piece.first_us for piece in bundle),
            made_us=now_us,
            site="",
            born={one.stream: shards[one.stream, one.shard].incarnation for one in ranges},
            nearby=nearby,
            given_us=now_us,
            since_us=now_us,
        )
        made.append(replace(unit, site=allotment.site_for(unit, site)))
    changed = [advance(shard, ends[key]) for key, shard in shards.items() if ends[key] > shard.created]
    return Created(tuple(changed), tuple(made), throttled)


def _nearby(shards: Mapping[tuple[str, int], Shard], ranges: Sequence[ByteRange], health: Health) -> tuple[str, ...]:
    """The sites that have all the bytes; nothing to say if all sites do."""
    have = set(health.weights)
    for one in ranges:
        have &= set(sites_with(shards[one.stream, one.shard], one))
    return () if have == set(health.weights) else tuple(sorted(have))


def _bundles(found: Sequence[Piece], unit_bytes: int) -> list[list[Piece]]:
    """Pieces in order of age, but those of one shard in their own order, in bundles of about unit_bytes. A bundle never
    takes a piece whose predecessor in the shard is in a later bundle."""
    waiting: dict[tuple[str, int], list[Piece]] = {}
    for piece in found:
        waiting.setdefault((piece.range.stream, piece.range.shard), []).append(piece)
    for queue in waiting.values():
        queue.sort(key=lambda piece: piece.range.begin)
        queue.reverse()  # the next one is the last
    bundles: list[list[Piece]] = []
    bundle: list[Piece] = []
    size = 0
    while waiting:
        key = min(waiting, key=lambda key: (waiting[key][-1].first_us, key))
        piece = waiting[key][-1]
        if bundle and size + piece.range.size > unit_bytes:
            bundles.append(bundle)
            bundle, size = [], 0
        waiting[key].pop()
        if not waiting[key]:
            del waiting[key]
        bundle.append(piece)
        size += piece.range.size
    return [*bundles, bundle] if bundle else bundles


def _leading(bundles: Sequence[list[Piece]], ripe: Sequence[list[Piece]]) -> int:
    count = 0
    while count < len(ripe) and ripe[count] is bundles[count]:
        count += 1
    return count


def _joined(ranges: Sequence[ByteRange]) -> tuple[ByteRange, ...]:
    """Neighbouring pieces of one file as one range, in the order of their bytes."""
    joined: list[ByteRange] = []
    for one in sorted(ranges):
        if joined and joined[-1].place == one.place and joined[-1].end == one.begin:
            joined[-1] = replace(joined[-1], end=one.end)
        else:
            joined.append(one)
    return tuple(joined)
