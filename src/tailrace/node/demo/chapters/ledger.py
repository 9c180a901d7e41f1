"""Keeps the demo's books: who was told what is durable, who saw what, and whether that fits together. Pure.

Every message of the demo carries its number within its shard, counted on by whichever producer writes the shard. So a
consumer sees a loss as a gap and a repetition as a step back, and the books need only one number for each shard.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Flushed:
    """A producer was told that the messages below these numbers are durable."""

    producer: str
    upto: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Began:
    """A consumer saw these numbers first since it (re)started."""

    consumer: str
    first: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Saw:
    """A consumer has seen everything from where it began to below these numbers, in order."""

    consumer: str
    upto: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Broke:
    """A consumer saw a number out of order."""

    consumer: str
    shard: int
    expected: int
    seen: int


Event = Flushed | Began | Saw | Broke


@dataclass(slots=True)
class Ledger:
    flushed: dict[int, int] = field(default_factory=dict)
    seen: dict[str, dict[int, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def handle(self, event: Event) -> None:
        match event:
            case Flushed(upto=upto):
                for shard, number in upto.items():
                    self.flushed[shard] = max(self.flushed.get(shard, 0), number)
            case Began(consumer, first):
                known = self.seen.setdefault(consumer, {})
                for shard, number in first.items():
                    if number > known.setdefault(shard, 0):
                        self.problems.append(
                            f"{consumer} began at message {number} of shard {shard}, but had seen only {known[shard]}"
                        )
            case Saw(consumer, upto):
                known = self.seen.setdefault(consumer, {})
                for shard, number in upto.items():
                    known[shard] = max(known.get(shard, 0), number)
            case Broke(consumer, shard, expected, seen):
                self.problems.append(f"{consumer} expected message {expected} of shard {shard} and saw {seen}")

    def flushed_total(self) -> int:
        return sum(self.flushed.values())

    def behind(self, consumers: list[str]) -> dict[str, int]:
        """How many flushed messages each consumer has still to see."""
        return {
            name: sum(max(0, upto - self.seen.get(name, {}).get(shard, 0)) for shard, upto in self.flushed.items())
            for name in consumers
        }

    def verdict(self, consumers: list[str]) -> list[str]:
        """What is wrong; nothing, when every flushed message reached every consumer in order."""
        missing = [f"{name} misses {count} flushed messages" for name, count in self.behind(consumers).items() if count]
        return self.problems + missing
