"""What the cache benchmark asks of every system, a peer's or ours: the same calls under the same clock.

Invariant: whatever can be known before a call (keys, their order, the shape of the answer) is prepared outside of the
clock; whatever only the call itself can know (values to be set, values that come back) is handled inside of it. A GET
delivers one `bytes` object per key to the caller.
"""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Sample:
    """One slice of time: operations are keys, not calls."""

    operations: int
    wall_s: float
    client_cpu_s: float
    server_cpu_s: float

    @property
    def per_s(self) -> float:
        return self.operations / self.wall_s


class System(ABC):
    """One client of one server. `name` says which client it is; it is what a figure is attributed to."""

    name: str
    can_set = True
    through_tcp = False
    delivers = True  # the values that were loaded; a limit may send any bytes

    @abstractmethod
    def load(self, items: Mapping[bytes, bytes]) -> None:
        """Put everything there, outside of the clock."""

    @abstractmethod
    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> Any:
        """What get_many takes. All values have this length; a client may make use of that."""

    @abstractmethod
    def get_many(self, request: Any) -> Any: ...

    def values(self, answer: Any) -> list[bytes | None]:
        """The values in an answer of get_many; to compare, not timed."""
        return list(answer)

    @abstractmethod
    def prepare_set(self, items: Mapping[bytes, bytes]) -> Any:
        """What set_many takes. Keys may be encoded already; the values may not be joined to them yet."""

    @abstractmethod
    def set_many(self, request: Any) -> None:
        """Return when every item is known to be stored."""

    def get_all(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self.get_many(request)

    def set_all(self, requests: Sequence[Any]) -> None:
        for request in requests:
            self.set_many(request)

    @abstractmethod
    def server_cpu_s(self) -> float:
        """CPU time of the server's processes so far."""

    @abstractmethod
    def close(self) -> None: ...


def process_cpu_s(pid: int) -> float:
    """CPU time of another process of ours, all of its threads, in the scheduler's resolution.

    /proc counts in hundredths of a second, which is longer than a slice. The clock's number is how Linux spells "the
    CPU clock of this process" (clock_getcpuclockid, which Python does not have).
    """
    return time.clock_gettime(((~pid) << 3) | 2)


def machine_cpu_s() -> tuple[float, float]:
    """CPU time since boot, of all cores: spent by anybody here or taken by the host; and spent or idle."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, iowait, irq, softirq, steal, *_ = map(int, file.readline().split()[1:])
    busy = user + nice + system + irq + softirq + steal
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return busy / ticks_per_s, (busy + idle + iowait) / ticks_per_s
