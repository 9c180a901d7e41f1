"""Memory that the benchmark shares with its processes: how far each has come. Written by its owner, read by the parent.

    word    what
    0       the step that the parent has reached
    then for each process, the producer's first:
    0       its process id
    1       phases it is ready for
    2       bytes so far
    3       messages with a stamp so far
    4       bytes so far, with those that came by another way than the one that is measured
    5       when the bytes have last changed, in nanoseconds; the producer's only
    6..9    threads of it that serve nobody; 0: no such thread
    10..    stamp and delay of each message, in nanoseconds

Words are aligned, so they are never seen half written.
"""

import mmap
import time
from array import array
from collections.abc import Iterator, Sequence

STEP = 0
_PID, _READY, _BYTES, _STAMPED, _REACHED, _AT, _THREADS = range(7)
_THREADS_MAX = 4
_SAMPLES = _THREADS + _THREADS_MAX


class Tally:
    def __init__(self, processes: int, samples_max: int) -> None:
        self._samples_max = samples_max
        self._each = _SAMPLES + 2 * samples_max
        self._words = memoryview(mmap.mmap(-1, 8 * (1 + processes * self._each))).cast("Q")
        self.processes = processes

    @property
    def step(self) -> int:
        return self._words[STEP]

    @step.setter
    def step(self, step: int) -> None:
        self._words[STEP] = step

    def slot(self, number: int) -> "Slot":
        begin = 1 + number * self._each
        return Slot(self._words, self._words[begin : begin + self._each], self._samples_max)


class Slot:
    """Of one process; `common` for whoever cannot afford to ask for the step."""

    def __init__(self, common: memoryview, words: memoryview, samples_max: int) -> None:
        self.common, self._words, self._samples_max = common, words, samples_max

    @property
    def step(self) -> int:
        step: int = self.common[STEP]
        return step

    @property
    def pid(self) -> int:
        pid: int = self._words[_PID]
        return pid

    @pid.setter
    def pid(self, pid: int) -> None:
        self._words[_PID] = pid

    @property
    def threads(self) -> list[int]:
        return [thread for thread in self._words[_THREADS:_SAMPLES] if thread]

    @threads.setter
    def threads(self, threads: Sequence[int]) -> None:
        for number in range(_THREADS_MAX):
            self._words[_THREADS + number] = threads[number] if number < len(threads) else 0

    @property
    def ready(self) -> int:
        ready: int = self._words[_READY]
        return ready

    @ready.setter
    def ready(self, phases: int) -> None:
        self._words[_READY] = phases

    @property
    def bytes(self) -> int:
        count: int = self._words[_BYTES]
        return count

    @property
    def stamped(self) -> int:
        count: int = self._words[_STAMPED]
        return count

    @property
    def confirmed(self) -> tuple[int, int]:
        """Bytes, and since when it is these, in nanoseconds."""
        while True:
            at_ns, count = self._words[_AT], self._words[_BYTES]
            if at_ns == self._words[_AT]:
                return count, at_ns

    def confirm(self, count_bytes: int) -> None:
        if count_bytes != self._words[_BYTES] or not self._words[_AT]:
            self._words[_BYTES] = count_bytes
            self._words[_AT] = time.monotonic_ns()

    @property
    def reached(self) -> int:
        """How far it has come, in bytes, whatever way they came."""
        count: int = self._words[_REACHED]
        return count

    def add(self, count_bytes: int, aside_bytes: int = 0) -> None:
        """`aside_bytes` came by another way, and do not count."""
        self._words[_BYTES] += count_bytes
        self._words[_REACHED] += count_bytes + aside_bytes

    def add_delays(self, noted: list[int]) -> None:
        """Stamp and delay of one message after the other, as far as there is room."""
        number = self._words[_STAMPED]
        at = _SAMPLES + 2 * number
        count = max(0, min(len(noted), len(self._words) - at))
        self._words[at : at + count] = memoryview(array("Q", noted[:count]))
        self._words[_STAMPED] = number + len(noted) // 2

    def samples(self) -> Iterator[tuple[int, int]]:
        words = self._words[_SAMPLES : _SAMPLES + 2 * min(self.stamped, self._samples_max)]
        return zip(words[::2], words[1::2], strict=True)
