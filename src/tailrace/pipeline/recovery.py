"""The state again from what the outputs say (U39).

Each output carries the input ranges it was made of. Of a shard's bytes, those that some output names are done; the
holes below the last of them become units of their own, and the rest is free.

Invariant: no byte is in two outputs. If two name the same byte, the outputs are wrong already, and nothing is rebuilt.

Pure: ranges in, records out.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..errors import Corrupt
from .ranges import ByteRange, merge, overlap, subtract
from .tracking import Shard, pieces, pruned
from .unit import Unit


@dataclass(frozen=True, slots=True)
class Rebuilt:
    shard: Shard
    units: tuple[Unit, ...]
    done_bytes: int


def check_outputs(done: Iterable[ByteRange]) -> list[ByteRange]:
    """The ranges of all outputs, merged."""
    listed = list(done)
    if (twice := overlap(listed)) is not None:
        raise Corrupt(
            f"two outputs were made of {twice}. Find out which is right and remove the other; nothing was rebuilt"
        )
    return merge(listed)


def rebuild(shard: Shard, done: Iterable[ByteRange], oldest_us: int, now_us: int, site: str) -> Rebuilt:
    """A shard as it was just tracked for the first time, with all it has, and what is done of it."""
    mine = [one for one in done if (one.stream, one.shard) == (shard.stream, shard.shard)]
    upto = max([shard.created, *(one.end for one in mine)])
    holes = subtract(pieces(shard, shard.created, upto), mine)
    born = {shard.stream: shard.incarnation}
    units = tuple(Unit((hole,), oldest_us, now_us, site, born, given_us=now_us, since_us=now_us) for hole in holes)
    # Another site may have been ahead of what this one has now: those bytes are done, too, and must not come again.
    return Rebuilt(pruned(replace(shard, created=upto)), units, sum(one.size for one in mine))
