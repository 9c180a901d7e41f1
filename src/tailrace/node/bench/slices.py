"""Systems that take turns on the clock.

Every system runs for a slice of a fraction of a second, then the next one, several times around. The best slice counts
as the rate: what disturbs a shared machine only ever takes away. CPU time is taken over all slices.
"""

import gc
import itertools
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from .limit import Memcpy
from .system import Sample, System


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured side by side: a call, the length of its values and the number of its keys."""

    verb: Literal["get", "set"]
    size: str
    value_bytes: int
    batch: int

    @property
    def name(self) -> str:
        return f"{self.verb}_{self.size}_b{self.batch}"


@dataclass(frozen=True, slots=True)
class Slices:
    count: int = 10
    seconds: float = 0.025  # short, so that some find the machine undisturbed
    calls_timed: int = 75  # after each slice, one by one, for the quantiles


@dataclass(slots=True)
class Measured:
    """All slices of one system in one case."""

    name: str
    samples: list[Sample] = field(default_factory=list)
    calls_s: list[float] = field(default_factory=list)

    @property
    def per_s(self) -> float:
        return max(sample.per_s for sample in self.samples)

    def call_us(self, share: float) -> float:
        ordered = sorted(self.calls_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e6

    @property
    def server_cpu_us(self) -> float:
        return 1e6 * sum(s.server_cpu_s for s in self.samples) / sum(s.operations for s in self.samples)

    @property
    def cpu_us(self) -> float:
        spent_s = sum(s.server_cpu_s + s.client_cpu_s for s in self.samples)
        return 1e6 * spent_s / sum(s.operations for s in self.samples)


class _Turn:
    """A system with its requests of one case."""

    def __init__(self, system: System, case: Case, items: Mapping[bytes, bytes], order: Sequence[bytes]) -> None:
        self._system = system
        self._batch = system.batch if isinstance(system, Memcpy) else case.batch
        groups = [order[at : at + self._batch] for at in range(0, len(order) - self._batch + 1, self._batch)]
        self._requests: list[Any]
        self._all: Callable[[Sequence[Any]], None]
        self._one: Callable[[Any], Any]
        if case.verb == "get":
            self._requests = [system.prepare_get(group, case.value_bytes) for group in groups]
            self._all, self._one = system.get_all, system.get_many
            for number in range(0, len(groups), max(1, len(groups) // 8)) if system.delivers else ():
                found = system.values(system.get_many(self._requests[number]))
                assert found == [items[key] for key in groups[number]], f"{system.name} gave other values"
        else:
            self._requests = [system.prepare_set({key: items[key] for key in group}) for group in groups]
            self._all, self._one = system.set_all, system.set_many
        self._endless = itertools.cycle(self._requests)
        self._calls = 1
        self.measured = Measured(system.name)

    def warm(self, seconds: float) -> None:
        """Touch what will be touched, and see how many calls fill a slice."""
        spent_s, calls = 0.0, 0
        begin = time.perf_counter()
        while spent_s < seconds:
            self._all(list(itertools.islice(self._endless, 8)))
            calls += 8
            spent_s = time.perf_counter() - begin
        self._calls = max(4, round(calls * seconds / spent_s))

    def run(self, calls_timed: int) -> None:
        requests = list(itertools.islice(self._endless, self._calls))
        server_cpu_s, client_cpu_s = self._system.server_cpu_s(), time.process_time()
        begin = time.perf_counter()
        self._all(requests)
        wall_s = time.perf_counter() - begin
        client_cpu_s = time.process_time() - client_cpu_s
        server_cpu_s = self._system.server_cpu_s() - server_cpu_s
        self.measured.samples.append(Sample(self._calls * self._batch, wall_s, client_cpu_s, server_cpu_s))
        # Calls are timed on their own: reading the clock is a tenth of the shortest of them.
        one, clock, calls_s = self._one, time.perf_counter, self.measured.calls_s
        for request in requests[:calls_timed]:
            begin = clock()
            one(request)
            calls_s.append(clock() - begin)


def side_by_side(case: Case, systems: Sequence[System], items: Mapping[bytes, bytes], slices: Slices) -> list[Measured]:
    """In the order of the systems. All of them ask for the same keys in the same random order, new at every call."""
    order = list(items)
    random.shuffle(order)
    turns = [_Turn(system, case, items, order) for system in systems]
    # What is there now will stay: nobody's answer shall make the collector look through it.
    gc.collect()
    gc.freeze()
    try:
        for turn in turns:
            turn.warm(slices.seconds)
        for number in range(slices.count):
            shift = number % len(turns)
            for turn in turns[shift:] + turns[:shift]:
                turn.run(slices.calls_timed)
    finally:
        gc.unfreeze()
    return [turn.measured for turn in turns]
