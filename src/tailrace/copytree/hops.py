"""What each hop of a copy tree adds, and where a stream is stuck: from what monitors see in each cluster. Pure.

A cluster that gets nothing looks the same from inside whether nobody produces or a worker on the way is stuck (A72).
Side by side they differ: a producer that fell silent stops everywhere at the same place; a stuck worker stops behind
its hop, while what is before it goes on. So a hop is stuck when its lower end has stood still for a while although its
upper end is ahead: by the files' lengths, and by the producer's beat, which travels with the cache's copies.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..errors import Corrupt, NameRefused
from ..model import CopyTree, check_name

STUCK_S = 3.0  # longer than any pause of somebody who lives
_FORMAT = 1
_SHARDS_MAX, _MARKS_MAX = 65536, 1000

HopState = Literal["flowing", "quiet", "stuck", "cache stuck", "unseen"]
ProducerState = Literal["flowing", "quiet", "silent", "unseen"]
_WORST: tuple[HopState, ...] = ("stuck", "cache stuck", "flowing", "quiet", "unseen")


@dataclass(frozen=True, slots=True)
class ShardSight:
    """One shard as a cluster sees it."""

    durable: int  # where it ends on disk
    still_s: float  # since that changed
    beat_us: int = 0  # when the producer was last heard of, by its clock; 0: that is not known here
    silent_s: float | None = None  # since that changed
    marks: Mapping[int, int] = field(default_factory=dict)  # when each came, in microseconds of this cluster's clock


#: What a cluster's monitor sees, by stream, shard by shard.
Sight = Mapping[str, tuple[ShardSight, ...]]


@dataclass(frozen=True, slots=True)
class HopReport:
    stream: str
    upstream: str
    downstream: str
    state: HopState
    samples: int = 0  # messages that were timed at both ends
    delay_p50_ms: float | None = None
    delay_p99_ms: float | None = None
    behind_bytes: int = 0
    stuck_shards: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamReport:
    stream: str
    source: str
    producer: ProducerState
    hops: tuple[HopReport, ...]

    @property
    def words(self) -> str:
        """What is the matter, for a person; empty: nothing."""
        stuck = [f"{hop.upstream} > {hop.downstream}" for hop in self.hops if hop.state in ("stuck", "cache stuck")]
        if stuck:
            return f"stuck at {', '.join(stuck)}"
        return "the producer is silent" if self.producer == "silent" else ""


class HopWatch:
    """Call see() again and again: that somebody stands still shows only over time."""

    def __init__(self, stuck_s: float = STUCK_S) -> None:
        self._stuck_s = stuck_s
        self._since: dict[tuple[str, str, str, int, str], tuple[int, float]] = {}

    def see(self, trees: Iterable[CopyTree], sights: Mapping[str, Sight], now_s: float) -> list[StreamReport]:
        before, self._since = self._since, {}
        reports = []
        for tree in trees:
            hops = [self._hop(tree.stream, hop.upstream, hop.downstream, sights, now_s, before) for hop in tree.hops]
            origin = sights.get(tree.source, {}).get(tree.stream, ())
            reports.append(StreamReport(tree.stream, tree.source, _producer(origin), tuple(hops)))
        return reports

    def _hop(
        self,
        stream: str,
        upstream: str,
        downstream: str,
        sights: Mapping[str, Sight],
        now_s: float,
        before: Mapping[tuple[str, str, str, int, str], tuple[int, float]],
    ) -> HopReport:
        above, below = (sights.get(cluster, {}).get(stream, ()) for cluster in (upstream, downstream))
        pairs = list(zip(above, below, strict=False))
        if not pairs:
            return HopReport(stream, upstream, downstream, "unseen")
        states: list[HopState] = []
        stuck = []
        for shard, (up, down) in enumerate(pairs):
            state: HopState = "flowing" if down.still_s <= self._stuck_s else "quiet"
            for what, ahead, there in (("cache stuck", up.beat_us, down.beat_us), ("stuck", up.durable, down.durable)):
                if ahead <= there or (what == "cache stuck" and not there):
                    continue
                key = stream, upstream, downstream, shard, what
                value, since_s = before.get(key, (there, now_s))
                since_s = since_s if value == there else now_s
                self._since[key] = there, since_s
                if now_s - since_s > self._stuck_s:
                    state = "stuck" if what == "stuck" else "cache stuck"
            states.append(state)
            if state in ("stuck", "cache stuck"):
                stuck.append(shard)
        added_us = sorted(
            down.marks[mark] - up.marks[mark] for up, down in pairs for mark in up.marks.keys() & down.marks.keys()
        )
        return HopReport(
            stream,
            upstream,
            downstream,
            min(states, key=_WORST.index),
            len(added_us),
            _percentile_ms(added_us, 50),
            _percentile_ms(added_us, 99),
            sum(max(0, up.durable - down.durable) for up, down in pairs),
            tuple(stuck),
        )


def _producer(shards: tuple[ShardSight, ...]) -> ProducerState:
    if not shards:
        return "unseen"
    if any(one.still_s <= STUCK_S for one in shards):
        return "flowing"
    heard = [one.silent_s for one in shards if one.silent_s is not None]
    return "silent" if heard and min(heard) > STUCK_S else "quiet"


def _percentile_ms(ordered: list[int], percent: int) -> float | None:
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] / 1000 if ordered else None


# ---- as the coordination store has it: docs/formats/world.md


def write_sight(sight: Sight, told_us: int) -> bytes:
    streams = {
        stream: [
            {
                "durable": one.durable,
                "still_s": round(one.still_s, 2),
                "beat_us": one.beat_us,
                "silent_s": None if one.silent_s is None else round(one.silent_s, 2),
                "marks": {str(mark): came_us for mark, came_us in one.marks.items()},
            }
            for one in shards
        ]
        for stream, shards in sight.items()
    }
    return json.dumps({"version": _FORMAT, "told_us": told_us, "streams": streams}).encode()


def read_sight(raw: bytes, key: str) -> Sight:
    try:
        table = json.loads(raw)
        if table["version"] != _FORMAT:
            raise ValueError("another version")
        return {
            check_name(stream, "stream"): tuple(map(_read_shard, shards[:_SHARDS_MAX]))
            for stream, shards in table["streams"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, NameRefused) as wrong:
        raise Corrupt(
            f"{key} in the coordination store makes no sense: {wrong!r}; the monitor writes it anew"
        ) from None


def _read_shard(table: Mapping[str, Any]) -> ShardSight:
    marks = dict(list(table["marks"].items())[:_MARKS_MAX])
    return ShardSight(
        durable=int(table["durable"]),
        still_s=float(table["still_s"]),
        beat_us=int(table["beat_us"]),
        silent_s=None if table["silent_s"] is None else float(table["silent_s"]),
        marks={int(mark): int(came_us) for mark, came_us in marks.items()},
    )
