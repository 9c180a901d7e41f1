"""What a query wants of a stream, as ranges of positions: options first, then the filters that Spark pushes down. Pure.

A filter on shard, position or timestamp is carried out exactly, by reading less: positions are what ranges are made of,
and within a shard times never go back, so a time is a position too. Spark need not look at such a filter again.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

#: Where the first message begins that is not older than a time, in a shard.
FindTime = Callable[[int, datetime], int]

_TASK_BYTES = 4 << 20  # what a task costs is about the time that so many bytes take
_TICK = timedelta(microseconds=1)
_LATE = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ShardRange:
    shard: int
    begin: int
    end: int


@dataclass(slots=True)
class Bounds:
    """Messages with begin <= position < end and not_before <= timestamp < before, of these shards (None: of all)."""

    shards: frozenset[int] | None = None
    begin: int = 0
    end: int | None = None
    not_before: datetime | None = None
    before: datetime | None = None
    taken: list[str] = field(default_factory=list)

    def restrict(self, column: str, relation: str, value: object) -> bool:
        """Take one condition in, as in ("position", ">=", 4096); False if it is not one that ranges can tell."""
        if column == "shard":
            taken = self._restrict_shard(relation, value)
        elif column == "position" and type(value) is int:
            taken = self._restrict_position(relation, value)
        elif column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            taken = self._restrict_time(relation, value)
        else:
            return False
        if taken:
            self.taken.append(f"{column} {relation} {value}")
        return taken

    def _restrict_shard(self, relation: str, value: object) -> bool:
        values: Iterable[object] = value if isinstance(value, list | tuple) else (value,)
        numbers = [one for one in values if type(one) is int]
        if relation not in ("=", "in") or len(numbers) != len(list(values)):
            return False
        wanted = frozenset(numbers)
        self.shards = wanted if self.shards is None else self.shards & wanted
        return True

    def _restrict_position(self, relation: str, value: int) -> bool:
        low = {"=": value, ">=": value, ">": value + 1}.get(relation)
        high = {"=": value + 1, "<=": value + 1, "<": value}.get(relation)
        if low is None and high is None:
            return False
        if low is not None:
            self.begin = max(self.begin, low)
        if high is not None:
            self.end = high if self.end is None else min(self.end, high)
        return True

    def _restrict_time(self, relation: str, value: datetime) -> bool:
        value = min(value.astimezone(UTC), _LATE - _TICK)
        low = {"=": value, ">=": value, ">": value + _TICK}.get(relation)
        high = {"=": value + _TICK, "<=": value + _TICK, "<": value}.get(relation)
        if low is None and high is None:
            return False
        if low is not None:
            self.not_before = low if self.not_before is None else max(self.not_before, low)
        if high is not None:
            self.before = high if self.before is None else min(self.before, high)
        return True

    def wants(self, shard: int) -> bool:
        return self.shards is None or shard in self.shards

    def narrow(self, one: ShardRange, find: FindTime) -> ShardRange:
        begin, end = max(one.begin, self.begin), one.end if self.end is None else min(one.end, self.end)
        if begin < end and self.not_before is not None:
            begin = max(begin, find(one.shard, self.not_before))
        if begin < end and self.before is not None:
            end = min(end, find(one.shard, self.before))
        return ShardRange(one.shard, begin, max(begin, end))


def tasks(total_bytes: int, bytes_max: int, cores: int) -> int:
    """How many tasks to make of so much: none reads more than bytes_max, and every core has one, unless it would read
    less than what a task costs by itself. As Spark divides files.

    >>> tasks(250 << 20, 128 << 20, 2), tasks(10 << 20, 128 << 20, 2), tasks(1 << 20, 128 << 20, 2), tasks(0, 1, 2)
    (2, 2, 1, 0)
    """
    return max(-(-total_bytes // bytes_max), min(cores, -(-total_bytes // _TASK_BYTES)))


def dealt(ranges: Iterable[ShardRange], count: int) -> list[tuple[ShardRange, ...]]:
    """The ranges laid end to end and cut into so many equal parts, one for each task, which reads one after the other.
    Pure arithmetic: a message belongs to the part in which it begins, so no file need be looked at.

    >>> for part in dealt([ShardRange(0, 100, 200), ShardRange(1, 0, 20)], 2):
    ...     print([(one.shard, one.begin, one.end) for one in part])
    [(0, 100, 160)]
    [(0, 160, 200), (1, 0, 20)]
    """
    ranges = [one for one in ranges if one.end > one.begin]
    total = sum(one.end - one.begin for one in ranges)
    edges = [total * place // count for place in range(1, count + 1)] if count else []
    parts: list[tuple[ShardRange, ...]] = []
    part: list[ShardRange] = []
    passed = 0  # bytes before what is looked at
    for one in ranges:
        begin = one.begin
        while begin < one.end:
            upto = min(one.end, begin + edges[len(parts)] - passed)
            if upto > begin:
                part.append(ShardRange(one.shard, begin, upto))
            passed, begin = passed + upto - begin, upto
            if passed == edges[len(parts)]:
                parts.append(tuple(part))
                part = []
    return [some for some in parts if some]


def shares(backlogs: Sequence[int], budget: int) -> list[int]:
    """How many bytes of each backlog make up the budget: equal shares, and what one does not need goes to the others.

    >>> shares([10, 100, 100], 110)
    [10, 50, 50]
    """
    left, result = budget, [0] * len(backlogs)
    order = sorted(range(len(backlogs)), key=lambda place: backlogs[place])
    for done, place in enumerate(order):
        result[place] = min(backlogs[place], -(-left // (len(order) - done)))
        left -= result[place]
    return result
