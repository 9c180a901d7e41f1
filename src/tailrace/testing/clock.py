"""A clock that moves only when it is told to, or when somebody waits on it."""

import threading

_MICROSECONDS = 1_000_000


class ManualClock:
    """Implements `tailrace.env.Clock`. Counts whole microseconds, so that many small steps add up exactly."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._lock = threading.Lock()
        self._wall_us = start_us
        self._monotonic_us = 0

    def time_us(self) -> int:
        with self._lock:
            return self._wall_us

    def monotonic_s(self) -> float:
        with self._lock:
            return self._monotonic_us / _MICROSECONDS

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Never block: if the event is not set, pretend that the whole timeout has passed.

        So a loop that waits runs through at full speed, and nobody else gets time to set the event: code that needs
        another thread's answer wants the system's clock.
        """
        if event.is_set():
            return True
        if timeout_s > 0:
            # At least one step: a loop towards a deadline must not stand still on a remainder of rounding.
            self._move(max(1, round(timeout_s * _MICROSECONDS)))
        return event.is_set()

    def advance(self, seconds: float) -> None:
        """Let time pass, on the wall and in monotonic time."""
        if seconds < 0:
            raise ValueError(
                f"cannot advance by {seconds} seconds: time never goes back; jump_wall() moves the wall only"
            )
        self._move(round(seconds * _MICROSECONDS))

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or a time server does; no time passes."""
        with self._lock:
            self._wall_us += round(seconds * _MICROSECONDS)

    def _move(self, step_us: int) -> None:
        with self._lock:
            self._wall_us += step_us
            self._monotonic_us += step_us
