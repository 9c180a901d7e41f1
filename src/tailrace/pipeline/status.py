"""How a pipeline stands: what is left to do, who does it, and what is the matter. Pure, from records and reports.

It is true also when nobody is at work: what the files hold beyond what was tracked is counted, too.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from .failure import BadRange
from .forecast import Trend, drain_s, slots_needed
from .ledger import Page
from .ranges import ByteRange, total
from .state import Members
from .tracking import Report, pieces
from .unit import Unit
from .usage import Usage, summary


def summarise(
    pipeline: str,
    pages: Iterable[Page],
    members: Members,
    reports: Mapping[tuple[str, int], Report],
    oldest_us: Mapping[tuple[str, int], int],
    now_us: int,
    *,
    draining: bool = False,
    usage: Mapping[str, Usage] | None = None,
) -> dict[str, Any]:
    """`reports`: what the files here hold now. `oldest_us`: of shards with free bytes, the first one's time. `usage`:
    of each site, since the pipeline began."""
    pages = list(pages)
    units = [unit for page in pages for unit in page.units.values()]
    waiting = [unit for unit in units if unit.standing != "committed"]
    created: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {key: report.end for key, report in reports.items()}
    free: list[tuple[int, ByteRange]] = []
    for page in pages:
        for key, shard in page.shards.items():
            created[key] = max(created.get(key, 0), shard.created)
            ends[key] = max(ends.get(key, 0), shard.end)
            if shard.free_bytes and shard.files:
                free.append((oldest_us.get(key, now_us), pieces(shard, shard.created, shard.end)[0]))
    untracked = {key: end - created.get(key, _begin(reports.get(key))) for key, end in ends.items()}
    free_bytes = sum(max(0, size) for size in untracked.values())
    free += [
        (oldest_us.get(key, now_us), _first(reports[key], created.get(key)))
        for key, size in untracked.items()
        if size > 0 and key in reports and reports[key].files and key not in {_key(one) for _, one in free}
    ]
    oldest = min([*free, *((unit.oldest_us, unit.ranges[0]) for unit in waiting)], default=None, key=lambda one: one[0])
    bad = [bad for page in pages for bad in page.bad.values()]
    backlog_bytes = free_bytes + total(one for unit in waiting for one in unit.ranges)
    return {
        "pipeline": pipeline,
        "state": _state(members, draining, waiting, free_bytes, units),
        "backlog_bytes": backlog_bytes,
        "backlog_s": round(max(0.0, (now_us - oldest[0]) / 1e6), 3) if oldest else 0.0,
        "oldest": None if oldest is None else {**_place(oldest[1]), "time_us": oldest[0]},
        "units": {
            "open": sum(unit.standing == "open" for unit in units),
            "held": sum(unit.standing == "held" for unit in units),
            "committed": sum(unit.standing == "committed" for unit in units),
            "failing": sum(unit.failures > 0 for unit in waiting),
        },
        "failing": [
            {
                "unit": unit.id,
                "failures": unit.failures,
                "reason": unit.reason,
                "ranges": list(map(_place, unit.ranges)),
            }
            for unit in sorted(waiting, key=lambda unit: -unit.failures)[:10]
            if unit.failures
        ],
        "bad_ranges": len(bad),
        "bad_bytes": total(one.range for one in bad),
        "sites": _sites(pages, members, units),
        "draining": draining,
        "usage": summary(usage or {}),
        "forecast": _forecast(members, backlog_bytes),
    }


def describe_bad(bad: BadRange) -> dict[str, Any]:
    return {**_place(bad.range), "reason": bad.reason, "found_us": bad.found_us}


def _state(members: Members, draining: bool, waiting: list[Unit], free_bytes: int, units: list[Unit]) -> str:
    if not members.runners:
        return "stopped"
    if draining:
        return "drained" if not units else "draining"
    return "working" if waiting or free_bytes else "idle"


def _sites(pages: Iterable[Page], members: Members, units: list[Unit]) -> list[dict[str, Any]]:
    names = {member.site for member in members.runners} | members.out | {unit.site for unit in units}
    names |= {site for page in pages for shard in page.shards.values() for site in shard.sites}
    health = members.health
    found = []
    for name in sorted(names):
        runners = [member for member in members.runners if member.site == name]
        figures = [member.figures for member in runners]
        delays = [one["delay_p90_s"] for one in figures if one.get("delay_p90_s") is not None]
        found.append(
            {
                "site": name,
                "up": health.is_up(name),
                "out": name in members.out,
                "stuck": bool(figures) and all(one.get("stuck", False) for one in figures),
                "runners": len(runners),
                "slots": sum(one.get("slots", 0) for one in figures),
                "weight": health.weights.get(name, 0.0),
                "units_assigned": sum(unit.site == name and unit.standing != "committed" for unit in units),
                "units_held": sum(unit.site == name and unit.standing == "held" for unit in units),
                **{key: sum(one.get(key, 0) for one in figures) for key in _SUMMED},
                "delay_p90_s": max(delays) if delays else None,
                "throttled": sorted({one["throttled"] for one in figures if one.get("throttled")}),
                "problems": {key: text for one in figures for key, text in one.get("problems", {}).items()},
            }
        )
    return found


def _forecast(members: Members, backlog_bytes: int) -> dict[str, Any]:
    """As the runners that are up see it. All of them see what arrives, one a little before the other: the highest of
    what they say counts. `drain_s` is None if that is never, or if nobody has done anything yet."""
    health = members.health
    figures = [member.figures for member in members.runners if health.is_up(member.site)]
    seen = [(one.get("arriving_bytes_per_s", 0.0), one.get("arriving_bytes_per_s2", 0.0)) for one in figures]
    trend = Trend(*max(seen, default=(0.0, 0.0)))
    speeds = [(one["slots"], one["slot_bytes_per_s"]) for one in figures if one.get("slot_bytes_per_s")]
    slots = sum(count for count, _ in speeds)
    capacity = sum(count * speed for count, speed in speeds)
    goal_s = min((one["delay_goal_s"] for one in figures if one.get("delay_goal_s")), default=_GOAL_S)
    after_s = drain_s(backlog_bytes, trend, capacity) if capacity else None
    return {
        "arriving_bytes_per_s": round(trend.bytes_per_s, 1),
        "arriving_bytes_per_s2": round(trend.slope, 1),
        "capacity_bytes_per_s": round(capacity, 1),
        "drain_s": None if after_s is None else round(after_s, 3),
        "delay_goal_s": goal_s,
        "slots": sum(one.get("slots", 0) for one in figures),
        "slots_needed": slots_needed(backlog_bytes, trend, capacity / slots, goal_s) if capacity else None,
    }


_GOAL_S = 60.0  # of pipelines that name none
_SUMMED = (
    "bytes_per_s",
    "messages_per_s",
    "units",
    "messages",
    "input_bytes",
    "rows",
    "published",
    "refused",
    "failures",
)


def _place(one: ByteRange) -> dict[str, Any]:
    return {"stream": one.stream, "shard": one.shard, "file": one.file, "begin": one.begin, "end": one.end}


def _key(one: ByteRange) -> tuple[str, int]:
    return one.stream, one.shard


def _begin(report: Report | None) -> int:
    return report.begin if report else 0


def _first(report: Report, created: int | None) -> ByteRange:
    begin = report.begin if created is None else created
    return ByteRange(report.stream, report.shard, report.files[-1] if created else report.files[0], begin, report.end)
