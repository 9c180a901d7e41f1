"""Which partition of the state a message file belongs to (U27, U28).

The number of partitions may change while everything runs: each setting holds for a range of time, and a file belongs to
the setting of the time in its name, which never changes. So two sites that look at one file always agree, and what is
under way stays where it is.

Invariant: of two settings the later one begins later, and never before a file that somebody has tracked already.

Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ConfigError
from ..native import hash64
from .tracking import created_us_of


@dataclass(frozen=True, slots=True)
class Epoch:
    from_us: int
    partitions: int

    def __post_init__(self) -> None:
        if not 1 <= self.partitions <= 1024:
            raise ConfigError(f"partitions={self.partitions}: use 1 to 1024")


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    epoch: int  # its number
    number: int

    @property
    def name(self) -> str:
        return f"{self.epoch}.{self.number}"


def partition_of(epochs: Sequence[Epoch], stream: str, shard: int, file: str) -> Partition:
    """All files of a shard that were made in one epoch are in one partition, so that their bytes follow each other."""
    number = max(0, bisect_right([epoch.from_us for epoch in epochs], created_us_of(file)) - 1)
    return Partition(number, hash64(f"{stream}/{shard}".encode()) % epochs[number].partitions)


def partitions_of(epochs: Sequence[Epoch]) -> list[Partition]:
    return [Partition(number, one) for number, epoch in enumerate(epochs) for one in range(epoch.partitions)]


def with_epoch(epochs: Sequence[Epoch], from_us: int, partitions: int, newest_file_us: int) -> tuple[Epoch, ...]:
    """The settings with one more. ConfigError if it would change the place of a file that is known already."""
    if from_us <= newest_file_us or from_us <= epochs[-1].from_us:
        latest = max(newest_file_us, epochs[-1].from_us)
        raise ConfigError(
            f"cannot change partitions from {from_us} µs on: files made up to {latest} µs are known; use a later one"
        )
    return (*epochs, Epoch(from_us, partitions))


def runs(epochs: Sequence[Epoch], stream: str, shard: int, files: Iterable[str]) -> list[tuple[Partition, list[str]]]:
    """A shard's files by partition, in order."""
    found: list[tuple[Partition, list[str]]] = []
    for file in files:
        place = partition_of(epochs, stream, shard, file)
        if not found or found[-1][0] != place:
            found.append((place, []))
        found[-1][1].append(file)
    return found
