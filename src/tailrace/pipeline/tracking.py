"""What is known of one shard: how far it goes at each site, and up to where its bytes are in work units (U3, U5, U14).

Invariants:
- `created` only grows. Each byte below it is in exactly one unit, or was; each byte behind it is in none.
- What a site has only grows at its end: a report that is repeated, late or shorter than an earlier one changes nothing.
- The files that are remembered are those from `created` on: what was handed out long ago takes no room (U13).

So a byte's state needs no list of its own: behind `created` it is free, in a unit that still stands it is in progress,
and otherwise it is committed.

Pure: reports in, the new record out.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ..model import MessageFile
from .ranges import ByteRange, merge, subtract

#: Of a byte.
State = Literal["free", "in a unit", "committed"]


@dataclass(frozen=True, slots=True)
class Extent:
    """The positions that a site can read of a shard: retention moves the begin, new messages the end."""

    begin: int
    end: int

    def covers(self, one: ByteRange) -> bool:
        return self.begin <= one.begin and one.end <= self.end


@dataclass(frozen=True, slots=True)
class Report:
    """A tracker's look at one shard at one site: its files in order, each beginning where the one before ends."""

    site: str
    stream: str
    shard: int
    incarnation: str
    files: tuple[str, ...]  # names of data files
    end: int

    @property
    def begin(self) -> int:
        return base_of(self.files[0]) if self.files else self.end


@dataclass(frozen=True, slots=True)
class Shard:
    """The record of a shard. `start`: what lies before is none of the pipeline's business."""

    stream: str
    shard: int
    incarnation: str
    start: int
    created: int
    files: tuple[str, ...] = ()
    sites: Mapping[str, Extent] = field(default_factory=dict)

    @property
    def end(self) -> int:
        """The longest that any site has."""
        return max([self.created, *(extent.end for extent in self.sites.values())])

    @property
    def free_bytes(self) -> int:
        return self.end - self.created

    def encode(self) -> dict[str, Any]:
        return {
            "incarnation": self.incarnation,
            "start": self.start,
            "created": self.created,
            "files": list(self.files),
            "sites": {site: [extent.begin, extent.end] for site, extent in sorted(self.sites.items())},
        }

    @classmethod
    def decode(cls, stream: str, shard: int, raw: Mapping[str, Any]) -> "Shard":
        sites = {site: Extent(*extent) for site, extent in raw["sites"].items()}
        return cls(stream, shard, raw["incarnation"], raw["start"], raw["created"], tuple(raw["files"]), sites)


def base_of(name: str) -> int:
    file = MessageFile.parse(name)
    assert file is not None, name
    return file.base


def created_us_of(name: str) -> int:
    file = MessageFile.parse(name)
    assert file is not None, name
    return file.created_us


def track(known: Shard | None, report: Report, start: int | None = None) -> Shard:
    """The record after a report. `start`: where the pipeline begins in a shard that it has not seen before; None means
    with the oldest message there is."""
    if known is None:
        begin = report.begin if start is None else min(max(start, report.begin), report.end)
        known = Shard(report.stream, report.shard, report.incarnation, begin, begin)
    assert (known.stream, known.shard, known.incarnation) == (report.stream, report.shard, report.incarnation), report
    before = known.sites.get(report.site)
    extent = Extent(report.begin, report.end)
    if before is not None:
        extent = Extent(max(before.begin, extent.begin), max(before.end, extent.end))
    return pruned(replace(known, files=_joined(known.files, report.files), sites={**known.sites, report.site: extent}))


def forget_site(known: Shard, site: str) -> Shard:
    """A site that has left for good."""
    return replace(known, sites={name: extent for name, extent in known.sites.items() if name != site})


def advance(known: Shard, created: int) -> Shard:
    """The bytes below are in units now."""
    assert known.created <= created <= known.end, (known, created)
    return pruned(replace(known, created=created))


def pieces(known: Shard, begin: int, end: int) -> list[ByteRange]:
    """The bytes between two positions, file by file."""
    bases = [base_of(name) for name in known.files]
    found = []
    place = max(0, bisect_right(bases, begin) - 1)
    while begin < end and place < len(bases):
        stop = min(end, bases[place + 1]) if place + 1 < len(bases) else end
        if stop > begin:
            found.append(ByteRange(known.stream, known.shard, known.files[place], begin, stop))
        begin, place = max(begin, stop), place + 1
    return found


def sites_with(known: Shard, one: ByteRange) -> list[str]:
    return [site for site, extent in sorted(known.sites.items()) if extent.covers(one)]


def states(known: Shard, in_units: Sequence[ByteRange]) -> list[tuple[ByteRange, State]]:
    """Every byte that still takes room in the record, by state, merged, in order (U5)."""
    if not known.files:
        return []
    of_shard = [one for one in in_units if (one.stream, one.shard) == (known.stream, known.shard)]
    every = pieces(known, max(base_of(known.files[0]), known.start), known.end)
    free = pieces(known, known.created, known.end)
    committed = subtract(every, [*free, *of_shard])
    named: list[tuple[ByteRange, State]] = [(one, "free") for one in free]
    named += [(one, "in a unit") for one in merge(of_shard)]
    named += [(one, "committed") for one in committed]
    return sorted(named)


def _joined(known: Sequence[str], reported: Sequence[str]) -> tuple[str, ...]:
    """Names sort by the time they were made, and so by base. Of two files with one base the later one took the place of
    the earlier, which has no messages."""
    by_base = {base_of(name): name for name in sorted({*known, *reported})}
    return tuple(by_base[base] for base in sorted(by_base))


def pruned(known: Shard) -> Shard:
    """Without the files that lie whole below `created`, save the last of them: it may still grow."""
    bases = [base_of(name) for name in known.files]
    place = max(0, bisect_right(bases, known.created) - 1)
    return replace(known, files=known.files[place:]) if place else known
