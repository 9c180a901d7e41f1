"""From cells to figures: what each system did at each number of consumers, and how ours compares with the best peer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from ..report import Figure
from .cell import Cell
from .memcpy import Memcpy
from .ours import AMBASSADOR, READ, TCP, WIRE, Ours
from .wake import Wake

Figures = dict[Figure, float]
#: One repeat: by system, then by number of consumers.
Cells = Mapping[str, Mapping[int, Cell]]

HEADLINE_CONSUMERS = 16
DELAY_CONSUMERS = 100
#: Figures whose goal is an upper bound.
AT_MOST = {"idle_core_pct", "producer_drop_pct", "p99_vs_best_peer", "server_cpu_vs_best_peer"}
_BUSY = "busy_"  # delays of a crowd at the higher rate
_SHARED = "cores shared by all"
_YIELDING = "consumers take only what producer and servers leave"
_HELD = ", while the producer waits for the slowest of them"
_MEASURES = (
    ("mb_per_s", "MB/s", "delivered to all consumers together"),
    ("producer_mb_per_s", "MB/s", f"the producer's rate meanwhile, {_SHARED}"),
    ("producer_first_mb_per_s", "MB/s", f"the producer's rate while {_YIELDING}"),
    ("server_cpu_s_per_gb", "s/GB", "CPU time of the servers per GB delivered"),
    ("client_cpu_s_per_gb", "s/GB", "CPU time of producer and consumers per GB delivered"),
    ("p50_ms", "ms", "delay from producer to consumer at a fixed rate, median"),
    ("p99_ms", "ms", "the same, 99 of 100"),
    ("p999_ms", "ms", "the same, 999 of 1000"),
    ("lost", "messages", "that did not come in time in the measurement of delay"),
    ("held_mb_per_s", "MB/s", f"delivered to all consumers together{_HELD}"),
    ("held_server_cpu_s_per_gb", "s/GB", f"CPU time of the servers per GB delivered{_HELD}"),
    ("held_client_cpu_s_per_gb", "s/GB", f"CPU time of producer and consumers per GB delivered{_HELD}"),
    (f"{_BUSY}p50_ms", "ms", "delay at the busy rate, median"),
    (f"{_BUSY}p99_ms", "ms", "the same, 99 of 100"),
    (f"{_BUSY}p999_ms", "ms", "the same, 999 of 1000"),
    (f"{_BUSY}lost", "messages", "that did not come in time at the busy rate"),
)


def named(consumers: int, system: str, measure: str) -> str:
    return f"n{consumers}_{system}_{measure}"


def at_full_speed(cells: Cells) -> list[int]:
    """The numbers of consumers with which both ours and the limit were measured."""
    ours, limit = cells.get(Ours.name, {}), cells.get(Memcpy.name, {})
    return sorted(n for n in ours if ours[n].full is not None and n in limit)


def headline_of(numbers: Sequence[int]) -> int:
    """The number of consumers that the goals speak of; in a smaller run the largest one below it."""
    return max((n for n in numbers if n <= HEADLINE_CONSUMERS), default=min(numbers))


def idle_figure(consumers: int) -> Figure:
    return Figure(
        "idle_core_pct", "%", f"of one core, by {consumers} consumers together that wait on a quiet stream", 2.0
    )


def figures_of(cells: Cells, peers: Sequence[str], syncing: Sequence[str]) -> Figures:
    """Everything of one repeat; what compares comes first. `syncing`: those of the peers that bring messages to the
    disk at all."""
    figures: Figures = {}
    for system, by_consumers in cells.items():
        for consumers, cell in by_consumers.items():
            values = _values(cell)
            for measure, unit, what in _MEASURES:
                if measure in values and (system != Memcpy.name or measure == "mb_per_s"):
                    meaning = f"{system}, {consumers} consumers: {what}"
                    figures[Figure(named(consumers, system, measure), unit, meaning)] = values[measure]
    return {**_compared({figure.name: value for figure, value in figures.items()}, cells, peers, syncing), **figures}


def _values(cell: Cell) -> dict[str, float]:
    values: dict[str, float] = {}
    if (full := cell.full) is not None:
        values |= {
            "mb_per_s": full.delivered_mb_per_s,
            "producer_mb_per_s": full.producer_mb_per_s,
            "producer_first_mb_per_s": full.producer_first_mb_per_s,
            "server_cpu_s_per_gb": full.server_cpu_s_per_gb,
            "client_cpu_s_per_gb": full.client_cpu_s_per_gb,
        }
    if (held := cell.held) is not None:
        values |= {
            "held_mb_per_s": held.delivered_mb_per_s,
            "held_server_cpu_s_per_gb": held.server_cpu_s_per_gb,
            "held_client_cpu_s_per_gb": held.client_cpu_s_per_gb,
        }
    for prefix, delays in (("", cell.delays), (_BUSY, cell.busy)):
        if delays is not None:
            values |= {f"{prefix}{name}": value for name, value in asdict(delays).items()}
    return values


def _compared(known: Mapping[str, float], cells: Cells, peers: Sequence[str], syncing: Sequence[str]) -> Figures:
    ours = cells[Ours.name]
    numbers = at_full_speed(cells)
    with_delays = sorted(consumers for consumers, cell in ours.items() if cell.delays)
    many = headline_of(numbers)
    crowd = DELAY_CONSUMERS if DELAY_CONSUMERS in with_delays else with_delays[-1]
    fewest, most = numbers[0], numbers[-1]

    def of(consumers: int, system: str, measure: str) -> float:
        return known[named(consumers, system, measure)]

    def of_peers(consumers: int, measure: str, whom: Sequence[str] = peers) -> list[float]:
        return [known[name] for peer in whom if (name := named(consumers, peer, measure)) in known]

    def drop_pct(system: str, measure: str) -> float:
        return 100 * (1 - of(most, system, measure) / max(of(fewest, system, measure), 1e-9))

    def figure(name: str, unit: str, what: str, goal: float | None = None) -> Figure:
        return Figure(name, unit, what, goal)

    span = f"from {fewest} to {most} consumers"
    found: Figures = {}
    delivered = of(many, Ours.name, "mb_per_s")
    if rates := of_peers(many, "mb_per_s"):
        what = f"{many} consumers: bytes/s delivered, ours through shared memory against the best peer"
        found[figure("shm_vs_best_peer", "ratio", what, 10.0)] = delivered / max(*rates, 1e-9)
        for system, goal in ((TCP, 2.0), (AMBASSADOR, None), (READ, None)):
            if (name := named(many, system, "mb_per_s")) in known:
                what = f"{many} consumers: bytes/s delivered, ours by way of {system} against the best peer"
                found[figure(f"{system}_vs_best_peer", "ratio", what, goal)] = known[name] / max(*rates, 1e-9)
    if (rates := of_peers(many, "held_mb_per_s")) and (name := named(many, WIRE, "held_mb_per_s")) in known:
        what = f"{many} consumers: bytes/s delivered by connections alone, against the best peer{_HELD}"
        found[figure("wire_vs_best_peer", "ratio", what)] = known[name] / max(*rates, 1e-9)
    if rates := of_peers(many, "mb_per_s", syncing):
        for system in (Ours.name, TCP):
            if (name := named(many, system, "mb_per_s")) in known:
                what = f"{many} consumers: bytes/s delivered, ours by way of {system} against the best peer that syncs"
                found[figure(f"{system}_vs_best_syncing_peer", "ratio", what)] = known[name] / max(*rates, 1e-9)
    what = f"{many} consumers: bytes/s delivered, against as many processes that only copy memory"
    found[figure("shm_of_memcpy", "share", what, 0.6)] = delivered / of(many, Memcpy.name, "mb_per_s")
    what = f"what the producer's rate loses {span}; {_YIELDING}"
    found[figure("producer_drop_pct", "%", what, 5.0)] = drop_pct(Ours.name, "producer_first_mb_per_s")
    what = f"the same, {_SHARED}"
    found[figure("producer_drop_shared_pct", "%", what)] = drop_pct(Ours.name, "producer_mb_per_s")
    there = [peer for peer in peers if all(named(n, peer, "producer_first_mb_per_s") in known for n in (fewest, most))]
    if there:
        what = f"the producer's loss {span} with the peer where it is smallest; {_YIELDING}"
        drops = [drop_pct(peer, "producer_first_mb_per_s") for peer in there]
        found[figure("best_peer_producer_drop_pct", "%", what)] = min(drops)
    for prefix, kind, when, goal in ((_BUSY, "", "at the busy rate", 0.2), ("", "quiet_", "when little is sent", None)):
        measure = f"{prefix}p99_ms"
        if (delays := of_peers(crowd, measure)) and named(crowd, Ours.name, measure) in known:
            best = max(min(delays), 1e-9)
            what = f"{crowd} consumers: 99 of 100 messages are there within this share of the best peer's delay, {when}"
            found[figure(f"{kind}p99_vs_best_peer", "ratio", what, goal)] = of(crowd, Ours.name, measure) / best
            if (name := named(crowd, Wake.name, measure)) in known:
                what = f"the same share for {crowd} processes that are only woken when a message is on disk"
                found[figure(f"{kind}wake_p99_vs_best_peer", "ratio", what)] = known[name] / best
    if costs := of_peers(many, "server_cpu_s_per_gb"):
        what = f"{many} consumers: CPU time of servers per GB delivered, against the best peer"
        mine = of(many, Ours.name, "server_cpu_s_per_gb")
        found[figure("server_cpu_vs_best_peer", "ratio", what, 0.05)] = mine / max(min(costs), 1e-9)
    return found
