"""The state again from what the outputs say, the part with input and output (U39). What it decides: `recovery.py`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..env import Clock
from ..errors import CoordinationError
from .epochs import runs
from .ledger import KINDS, Changes, portions
from .logs import Logs
from .ranges import total
from .recovery import check_outputs, rebuild
from .sinks import Sink
from .state import State
from .tracking import base_of, track
from .unit import Unit


@dataclass(frozen=True, slots=True)
class Recovered:
    outputs: int
    done_bytes: int
    units: int  # of holes between outputs
    hole_bytes: int


def rebuild_state(
    state: State, sink: Sink, logs: Logs, streams: Mapping[str, Any], site: str, clock: Clock
) -> Recovered:
    """Forget the state and make it anew from the sink and the logs. Refused while a runner lives: it might publish
    something that was not counted."""
    if living := sorted(f"{member.site}/{member.runner}" for member in state.members().runners):
        raise CoordinationError(
            f"the state of {state.pipeline} cannot be rebuilt while {', '.join(living)} is at work; stop it, or "
            "wait until its lease is over. Nothing was changed"
        )
    footers = [footer for footer in sink.outputs() if footer.pipeline == state.pipeline]
    done = check_outputs(one for footer in footers for one in footer.ranges)
    stretches = [one for footer in footers for one in footer.stretches]
    done_bytes = total(done) + sum(one.end - one.begin for one in stretches)
    layout = state.clear()
    holes: list[Unit] = []
    for stream, start in streams.items():
        for number in range(logs.shards(stream)):
            report = logs.report(site, stream, number)
            folded = [
                one
                for stretch in stretches
                if (stretch.stream, stretch.shard) == (stream, number)
                and stretch.incarnation in ("", report.incarnation)
                for one in stretch.ranges(report.files)
            ]
            parts = runs(layout.epochs, stream, number, report.files)
            for place, (partition, files) in enumerate(parts):
                end = base_of(parts[place + 1][1][0]) if place + 1 < len(parts) else report.end
                begin = logs.start(stream, number, start) if place == 0 else None
                of_part = replace(report, files=tuple(files), end=end)
                first = base_of(files[0])
                mine = [
                    one
                    for one in [*done, *folded]
                    if (one.stream, one.shard) == (stream, number)
                    and one.begin >= first
                    and (place + 1 == len(parts) or one.begin < end)
                ]
                if mine:  # it had begun there at the latest
                    begin = min(*(one.begin for one in mine), begin) if begin is not None else None
                shard = track(None, of_part, begin)
                made = rebuild(shard, mine, clock.time_us(), clock.time_us(), site)
                units = [replace(unit, oldest_us=logs.time_us(unit.ranges[0])) for unit in made.units]
                holes += units
                ledger = state.ledger(partition)
                ledger.update(lambda page, made=made: Changes(shards=[made.shard]), KINDS)  # type: ignore[misc]
                for some in portions(units):
                    ledger.update(lambda page, some=some: Changes(units=list(some)), KINDS)  # type: ignore[misc]
    return Recovered(len(footers), done_bytes, len(holes), total(one for unit in holes for one in unit.ranges))
