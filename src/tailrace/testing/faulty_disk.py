"""A disk that does as another one, until the n-th call fails.

A sweep fails the first call, then the second, and so on until a run ends with `fired` false: no call was left to fail.
"""

import errno
import functools
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Literal, ParamSpec, TypeVar

from tailrace.env import Disk
from tailrace.env.disk import Buffer
from tailrace.errors import ConfigError

_P = ParamSpec("_P")
_R = TypeVar("_R")

_CALLS = frozenset(name for name in vars(Disk) if not name.startswith("_"))


class SimulatedCrash(BaseException):
    """The process ends here. Not an Exception, so that no `except Exception` survives its own death."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Which call fails, and how.

    `kind` says what is raised: "error" an OSError with `errno`, "crash" a SimulatedCrash. `effect` says what the call
    does before that: "none", "half" (of the bytes of a write; other calls cannot be halved and do nothing) or "whole".
    """

    at: int  # the first matching call is 1
    kind: Literal["error", "crash"] = "error"
    effect: Literal["none", "half", "whole"] = "none"
    errno: int = errno.EIO
    only: frozenset[str] | None = None  # names of the calls that match; None: all do
    sticky: bool = False  # later matching calls fail too, without effect, until heal()

    def __post_init__(self) -> None:
        if self.at < 1:
            raise ConfigError(f"fault.at={self.at} is no call; the first one is 1")
        if unknown := (self.only or frozenset()) - _CALLS:
            raise ConfigError(f"fault.only names {sorted(unknown)}, which the disk does not have; use {sorted(_CALLS)}")


def _failing(
    method: Callable[Concatenate[Disk, _P], _R], half: Callable[Concatenate[Disk, _P], None] | None = None
) -> "Callable[Concatenate[FaultyDisk, _P], _R]":
    """The same call on the inner disk, unless it is its turn to fail."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: "FaultyDisk", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        inner: Callable[_P, _R] = getattr(self._inner, name)
        number, turn = self._count(name)
        if turn == "passes":
            return inner(*args, **kwargs)
        fault = self._fault
        if turn == "fires" and fault.effect == "whole":
            inner(*args, **kwargs)
        elif turn == "fires" and fault.effect == "half" and half is not None:
            half(self._inner, *args, **kwargs)
        if fault.kind == "crash":
            raise SimulatedCrash(f"simulated crash in {name}, call {number}")
        raise OSError(fault.errno, f"{os.strerror(fault.errno)} (simulated, {name}, call {number})")

    return call


def _write_half(disk: Disk, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
    data = b"".join(buffers)
    disk.write(handle, offset, [data[: len(data) // 2]])


class FaultyDisk:
    """Implements `tailrace.env.Disk` on top of another one.

    After a crash every call crashes until `heal()`, sticky or not, matching or not: the `finally` blocks that Python
    still runs belong to a process that is no more.
    """

    def __init__(self, inner: Disk, fault: Fault) -> None:
        self._inner = inner
        self._fault = fault
        self._lock = threading.Lock()
        self._calls = 0
        self._fired = False
        self._healed = False

    @property
    def calls(self) -> int:
        """How many matching calls were made, failed ones included."""
        return self._calls

    @property
    def fired(self) -> bool:
        """Whether the n-th call was reached."""
        return self._fired

    def heal(self) -> None:
        """From now on nothing fails."""
        with self._lock:
            self._healed = True

    def _count(self, name: str) -> tuple[int, Literal["passes", "fires", "fails again"]]:
        fault = self._fault
        matches = fault.only is None or name in fault.only
        with self._lock:
            self._calls += matches
            if self._healed:
                return self._calls, "passes"
            if matches and self._calls == fault.at:
                self._fired = True
                return self._calls, "fires"
            again = self._fired and (fault.kind == "crash" or (fault.sticky and matches))
            return self._calls, "fails again" if again else "passes"

    identity = _failing(Disk.identity)
    create = _failing(Disk.create)
    open = _failing(Disk.open)
    close = _failing(Disk.close)
    read_into = _failing(Disk.read_into)
    is_mappable = _failing(Disk.is_mappable)
    write = _failing(Disk.write, half=_write_half)
    reserve = _failing(Disk.reserve)
    truncate = _failing(Disk.truncate)
    sync = _failing(Disk.sync)
    forget = _failing(Disk.forget)
    expect = _failing(Disk.expect)
    size = _failing(Disk.size)
    linked = _failing(Disk.linked)
    try_lock = _failing(Disk.try_lock)
    unlock = _failing(Disk.unlock)
    rename = _failing(Disk.rename)
    link = _failing(Disk.link)
    unlink = _failing(Disk.unlink)
    make_folder = _failing(Disk.make_folder)
    remove_folder = _failing(Disk.remove_folder)
    list = _failing(Disk.list)
    is_folder = _failing(Disk.is_folder)
    sync_folder = _failing(Disk.sync_folder)
