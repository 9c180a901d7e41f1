"""Time. Wall time stamps messages and names files; monotonic time measures waits. Neither does the other's work."""

import threading
import time
from typing import Protocol


class Clock(Protocol):
    def time_us(self) -> int:
        """Microseconds since the epoch, by the wall. May jump."""
        ...

    def monotonic_s(self) -> float:
        """Seconds since some start. Never goes back."""
        ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Wait until the event is set (True) or the time is over (False)."""
        ...


class SystemClock:
    def time_us(self) -> int:
        return time.time_ns() // 1000

    monotonic_s = staticmethod(time.monotonic)  # as it is: it is asked all the time

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(timeout_s)
