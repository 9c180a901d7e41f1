"""One system with one number of consumers, measured: delay at a fixed rate, then bytes at full speed.

At full speed twice: first everybody shares the processor as Linux shares it, which gives what is delivered in all and
what it costs; then consumers get only what the producer and the servers leave, as if they ran elsewhere, which shows
what the producer loses to its consumers and not to this machine's few cores.

And once more with a producer that never gets far ahead of its slowest consumer: then nobody is late, and what is
delivered is what the way to the consumers can bring.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import partial
from statistics import median

from ..peers.server import PeerFailed
from ..system import process_cpu_s
from .contender import Contender
from .crew import Crew, Phase, errand
from .tally import Slot


@dataclass(frozen=True, slots=True)
class Amounts:
    rate_per_s: float = 25.0
    busy_rate_per_s: float = 500.0  # of a crowd: to wake a hundred that often takes a third of two cores
    delay_s: float = 5.0  # long enough that one message, which a disk's hiccup makes late, is not 1 of 100
    rounds: int = 3  # where delays, or ways, are compared all take turns: a machine's mood lasts longer than a round
    warm_s: float = 1.5
    full_s: float = 2.5  # long enough that a disk's hiccup is not half of it
    catch_up_s: float = 3.0  # for messages on their way when the producer stops; later ones count as lost
    open_s: float = 60.0  # until all consumers have subscribed

    @property
    def samples_max(self) -> int:
        return int(4 * self.rate_per_s * (self.delay_s + self.warm_s)) + 100


@dataclass(frozen=True, slots=True)
class Delays:
    p50_ms: float
    p99_ms: float
    p999_ms: float
    lost: int  # messages that some consumer did not get in time; they count as late as that time


def typical(rounds: Sequence[Delays]) -> Delays:
    """Of several measurements the median of each figure; what was lost in any of them is lost."""
    p50, p99, p999 = (
        median(figures) for figures in zip(*((one.p50_ms, one.p99_ms, one.p999_ms) for one in rounds), strict=True)
    )
    return Delays(p50, p99, p999, sum(one.lost for one in rounds))


@dataclass(frozen=True, slots=True)
class FullSpeed:
    delivered_mb_per_s: float  # to all consumers together
    producer_mb_per_s: float
    producer_first_mb_per_s: float  # the producer's rate while consumers take only what is left
    server_cpu_s_per_gb: float  # of what is delivered
    client_cpu_s_per_gb: float  # consumers' and the producer's


@dataclass(frozen=True, slots=True)
class Held:
    """While the producer keeps to its slowest consumer."""

    delivered_mb_per_s: float  # to all consumers together
    server_cpu_s_per_gb: float
    client_cpu_s_per_gb: float


def typical_held(rounds: Sequence[Held]) -> Held:
    """The one whose delivery is the median."""
    return sorted(rounds, key=lambda one: one.delivered_mb_per_s)[len(rounds) // 2]


@dataclass(frozen=True, slots=True)
class Cell:
    consumers: int
    delays: Delays | None
    full: FullSpeed | None
    cpu_s: float  # of producer and consumers, in all
    busy: Delays | None = None  # at the busy rate
    held: Held | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    at_s: float
    confirmed: tuple[int, int]  # bytes of the producer, and since when, in nanoseconds
    delivered: int
    server_s: float
    client_s: float


def measure(contender: Contender, consumers: int, amounts: Amounts, *, delays: bool = True, full: bool = True) -> Cell:
    phases = [Phase(f"paced-{consumers}", amounts.rate_per_s)] * delays + [Phase(f"full-{consumers}")] * full
    with ExitStack() as stack:
        for phase in phases:
            errand(partial(contender.make, phase.stream, synced=phase.paced), f"{contender.name}: make {phase.stream}")
            stack.callback(_drop, contender, phase.stream)
        crew = stack.enter_context(closing(Crew(contender, consumers, phases, amounts.samples_max if delays else 0)))
        found = _delays(crew, amounts) if delays else None
        if delays and full:
            crew.end(0)
        speed = _full_speed(crew, contender, len(phases) - 1, amounts) if full else None
        return Cell(consumers, found, speed, crew.cpu_s())  # while all of them are there


def measure_held(contender: Contender, consumers: int, amounts: Amounts) -> Cell:
    phase = Phase(f"held-{consumers}", held=True)
    with ExitStack() as stack:
        errand(partial(contender.make, phase.stream, synced=False), f"{contender.name}: make {phase.stream}")
        stack.callback(_drop, contender, phase.stream)
        crew = stack.enter_context(closing(Crew(contender, consumers, [phase], 0)))
        crew.begin(0, amounts.open_s)
        crew.wait(amounts.warm_s)
        before, after = _window(crew, contender, amounts)
        crew.stop_producer(0)
        if after.delivered == before.delivered:
            raise PeerFailed(f"{contender.name}: nothing came, and its producer waits for somebody to get something")
        return Cell(consumers, None, None, crew.cpu_s(), held=Held(*_delivered(before, after)))


def _drop(contender: Contender, stream: str) -> None:
    with suppress(PeerFailed):  # a stream that stays is in nobody's way, and goes with the servers
        errand(partial(contender.drop, stream), f"{contender.name}: drop {stream}")


def _delays(crew: Crew, amounts: Amounts) -> Delays:
    crew.begin(0, amounts.open_s)
    crew.wait(amounts.warm_s)
    begin_ns = time.monotonic_ns()
    crew.wait(amounts.delay_s)
    end_ns = time.monotonic_ns()
    crew.stop_producer(0)
    end_s = time.monotonic() + amounts.catch_up_s
    while any(slot.stamped < crew.producer.stamped for slot in crew.consumers) and time.monotonic() < end_s:
        crew.wait(0.01)
    late_ns = time.monotonic_ns() - begin_ns

    def inside(slot: Slot) -> list[int]:
        return [delay for stamp, delay in slot.samples() if begin_ns <= stamp < end_ns]

    came = sorted(delay for slot in crew.consumers for delay in inside(slot))
    lost = max(1, len(inside(crew.producer))) * len(crew.consumers) - len(came)
    came += [late_ns] * lost

    def quantile_ms(share: float) -> float:
        return came[int(share * len(came))] / 1e6

    return Delays(quantile_ms(0.5), quantile_ms(0.99), quantile_ms(0.999), lost)


def _full_speed(crew: Crew, contender: Contender, number: int, amounts: Amounts) -> FullSpeed:
    crew.begin(number, amounts.open_s)
    crew.wait(amounts.warm_s)
    before, after = _window(crew, contender, amounts)
    crew.yield_to_others(contender.server_pids())
    try:
        crew.wait(amounts.warm_s)
        yielding, last = _window(crew, contender, amounts)
        crew.stop_producer(number)
    finally:
        crew.share_again(contender.server_pids())
    delivered_mb_per_s, server_cpu_s_per_gb, client_cpu_s_per_gb = _delivered(before, after)
    return FullSpeed(
        delivered_mb_per_s=delivered_mb_per_s,
        producer_mb_per_s=_produced_mb_per_s(before, after),
        producer_first_mb_per_s=_produced_mb_per_s(yielding, last),
        server_cpu_s_per_gb=server_cpu_s_per_gb,
        client_cpu_s_per_gb=client_cpu_s_per_gb,
    )


def _delivered(before: _Seen, after: _Seen) -> tuple[float, float, float]:
    """MB a second, and CPU seconds of servers and of clients for a GB."""
    seconds, gigabytes = after.at_s - before.at_s, (after.delivered - before.delivered) / 1e9
    servers_s, clients_s = after.server_s - before.server_s, after.client_s - before.client_s
    return 1e3 * gigabytes / seconds, servers_s / max(gigabytes, 1e-9), clients_s / max(gigabytes, 1e-9)


def _window(crew: Crew, contender: Contender, amounts: Amounts) -> tuple[_Seen, _Seen]:
    """Begin and end. On a slow disk one sync may take longer than the window: then it is longer, too."""
    before = _look(crew, contender)
    crew.wait(amounts.full_s)
    after = _look(crew, contender)
    while _nothing_came(before, after) and after.at_s < before.at_s + amounts.full_s + amounts.catch_up_s:
        crew.wait(0.05)
        after = _look(crew, contender)
    return before, after


def _nothing_came(before: _Seen, after: _Seen) -> bool:
    return after.delivered == before.delivered or after.confirmed == before.confirmed


def _produced_mb_per_s(before: _Seen, after: _Seen) -> float:
    """Confirmations come in large steps: what counts is the time from one step to another, not from look to look."""
    (first, first_ns), (last, last_ns) = before.confirmed, after.confirmed
    return 1e3 * (last - first) / (last_ns - first_ns) if last_ns > first_ns else 0.0


def _look(crew: Crew, contender: Contender) -> _Seen:
    try:
        return _seen(crew, contender)
    except OSError as seen:
        raise PeerFailed(f"{contender.name}: one of its processes has ended: {seen}") from seen


def _seen(crew: Crew, contender: Contender) -> _Seen:
    at_s = time.monotonic()
    confirmed, delivered = crew.producer.confirmed, sum(slot.bytes for slot in crew.consumers)
    server_s = contender.server_cpu_s()
    client_s = producer_s = process_cpu_s(crew.producer.pid)
    if threads := crew.producer.threads:  # the producer serves, too
        client_s = sum(_thread_cpu_s(crew.producer.pid, thread) for thread in threads)
        server_s += producer_s - client_s
    client_s += sum(process_cpu_s(slot.pid) for slot in crew.consumers)
    return _Seen(at_s, confirmed, delivered, server_s, client_s)


def _thread_cpu_s(pid: int, thread: int) -> float:
    with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
        return int(file.read().split()[0]) / 1e9
