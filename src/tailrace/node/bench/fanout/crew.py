"""The processes of one measurement: a producer and N consumers, forked from a process that has everything imported.

A crew goes through its phases together. In each, the producer opens its end first, then all consumers theirs, then
messages flow; the producer stops first, then the consumers leave.

Producer, consumers and servers are a session each: where Linux shares the processor among sessions (autogroup), a
thousand consumers do not starve the one producer. Nobody outlives the benchmark, however it ends.
"""

import ctypes
import gc
import os
import select
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from glob import glob
from itertools import chain

from ..peers.server import PeerFailed
from ..system import process_cpu_s
from .contender import Contender, Publisher
from .message import message
from .tally import STEP, Slot, Tally

_RECEIVE_S = 0.25  # how soon a consumer that gets nothing notices that the phase is over
_FOR_EVER_S = 3600.0
_RECEIVED_UNTOLD = 16
_MESSAGES_AT_ONCE = 256
_HELD_BYTES = 32 << 20  # of confirmed messages, that a producer which is held is ahead of its slowest consumer
_HELD_S = 0.001
_END_S = 5.0
_PR_SET_PDEATHSIG = 1
_AUTOGROUP_NICE_MAX = 19


@dataclass(frozen=True, slots=True)
class Phase:
    """`rate_per_s`: messages at this pace, each stamped, in a synced stream. None: as fast as it can; if it is `held`,
    as fast as its slowest consumer. `quiet`: consumers wait for ever."""

    stream: str
    rate_per_s: float | None = None
    held: bool = False
    quiet: bool = False

    @property
    def paced(self) -> bool:
        return self.rate_per_s is not None


class _Gate:
    """Many wait until one opens it, without a look at the clock: opening closes the pipe that they read."""

    def __init__(self) -> None:
        self._inside, self._outside = os.pipe()
        self._is_open = False

    def pass_(self) -> None:
        os.read(self._inside, 1)

    def open(self) -> None:
        if not self._is_open:
            self._is_open = True
            os.close(self._outside)

    def stand_before(self) -> None:
        """In a forked process: only the parent holds it shut."""
        if not self._is_open:
            os.close(self._outside)

    def close(self) -> None:
        self.open()
        os.close(self._inside)


class _Gates:
    def __init__(self) -> None:
        self.publish, self.subscribe, self.go, self.leave = self._all = [_Gate() for _ in range(4)]

    def stand_before(self) -> None:
        for gate in self._all:
            gate.stand_before()

    def close(self) -> None:
        for gate in self._all:
            gate.close()


def forked(run: Callable[[], None], complain: Callable[[str], None], *, session: bool = False) -> int:
    """A process that runs this and ends, or ends when its parent does."""
    parent = os.getpid()
    if pid := os.fork():
        return pid
    code = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            if session:
                os.setsid()
            run()
            code = 0
    except BaseException as seen:  # whatever it is, the parent is the one to tell
        with suppress(OSError):
            where = traceback.extract_tb(seen.__traceback__)[-1]
            complain(f"{type(seen).__name__}: {seen} ({os.path.basename(where.filename)}:{where.lineno})")
    finally:
        os._exit(code)


def errand(run: Callable[[], None], what: str, deadline_s: float = 30.0) -> None:
    """In a process of its own, which leaves nothing behind in this one: no threads, no connections."""
    inside, outside = os.pipe()
    pid = forked(run, lambda text: _write(outside, text))
    os.close(outside)
    came: list[int] = []
    try:
        came, _, _ = select.select([inside], [], [], deadline_s)
        said = os.read(inside, 4096).decode(errors="replace") if came else f"no end after {deadline_s:g} s"
    finally:
        os.close(inside)
        if not _ended(pid, time.monotonic() + (1.0 if came else 0.0)):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    if said:
        raise PeerFailed(f"{what}: {said}")


class Crew:
    def __init__(self, contender: Contender, consumers: int, phases: Sequence[Phase], samples_max: int) -> None:
        self._contender, self._phases = contender, phases
        self.tally = Tally(1 + consumers, samples_max)
        self.producer = self.tally.slot(0)
        self.consumers = [self.tally.slot(1 + number) for number in range(consumers)]
        self._gates = [_Gates() for _ in phases]
        self._complaints, self._complain_to = os.pipe()
        os.set_blocking(self._complaints, False)
        gc.collect()
        gc.freeze()  # so that the children's collector does not write to the pages they share
        try:
            self._producer_pid = forked(self._produce, self._complain, session=True)
            self._leader_pid = forked(self._lead, self._complain, session=True)
        finally:
            gc.unfreeze()
        self._running = {self._producer_pid, self._leader_pid}

    # ---- in the parent

    def begin(self, number: int, deadline_s: float) -> None:
        """Open this phase; returns when messages flow."""
        gates = self._gates[number]
        gates.publish.open()
        self._await_ready(number + 1, [self.producer], deadline_s, "open a publisher")
        gates.subscribe.open()
        self._await_ready(number + 1, self.consumers, deadline_s, "subscribe")
        gates.go.open()

    def stop_producer(self, number: int) -> None:
        self.tally.step = 2 * number + 1

    def end(self, number: int) -> None:
        self.tally.step = 2 * number + 2
        self._gates[number].leave.open()

    def wait(self, seconds: float) -> None:
        """Let it run; raises when one of the processes has failed."""
        end_s = time.monotonic() + seconds
        while True:
            left_s = end_s - time.monotonic()
            came, _, _ = select.select([self._complaints], [], [], max(0.0, left_s))
            if came:
                said = os.read(self._complaints, 4096).decode(errors="replace").splitlines()[0]
                raise PeerFailed(f"{self._contender.name}: {said}")
            for pid in self._running:  # one that was killed could not complain
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    raise PeerFailed(f"{self._contender.name}: process {pid} has ended too early")
            if left_s <= 0:
                return

    def yield_to_others(self, server_pids: Sequence[int]) -> None:
        """Consumers get only the processor time that the producer and the servers leave."""
        # Linux may share by session first. Then it is the session that has to yield, and whoever wakes in another one
        # still waits until a consumer's turn is over, unless it goes before all turns, where we may say so.
        for pid in (self.producer.pid, *server_pids):
            for task in _threads(pid):
                with suppress(OSError):
                    os.sched_setscheduler(task, os.SCHED_RR, os.sched_param(1))
        with suppress(OSError), open(f"/proc/{self._leader_pid}/autogroup", "w") as file:
            file.write(str(_AUTOGROUP_NICE_MAX))
        for consumer in self.consumers:
            for task in _threads(consumer.pid):
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))

    def share_again(self, server_pids: Sequence[int]) -> None:
        """Servers stay for the next crew."""
        for task in chain.from_iterable(map(_threads, server_pids)):
            with suppress(OSError):
                os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))

    def cpu_s(self) -> float:
        """CPU time of all its processes that are still there."""
        spent_s = 0.0
        for slot in [self.producer, *self.consumers]:
            with suppress(OSError):
                spent_s += process_cpu_s(slot.pid)
        return spent_s

    def close(self) -> None:
        self.tally.step = 2 * len(self._phases)
        for gates in self._gates:
            gates.close()
        end_s = time.monotonic() + _END_S
        for pid in self._running:
            if not _ended(pid, end_s):
                with suppress(ProcessLookupError):  # each leads a session of its own, unless it has just begun
                    os.killpg(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        os.close(self._complaints)
        os.close(self._complain_to)

    def _await_ready(self, phases: int, slots: Sequence[Slot], deadline_s: float, what: str) -> None:
        end_s = time.monotonic() + deadline_s
        while waiting := sum(slot.ready < phases for slot in slots):
            if time.monotonic() > end_s:
                raise PeerFailed(
                    f"{self._contender.name}: {waiting} of {len(slots)} did not {what} in {deadline_s:g} s"
                )
            self.wait(0.01)

    # ---- in the children

    def _complain(self, text: str) -> None:
        _write(self._complain_to, text + "\n")

    def _stand_before(self) -> None:
        for gates in self._gates:
            gates.stand_before()

    def _lead(self) -> None:
        self._stand_before()
        numbers = range(len(self.consumers))
        for _ in [forked(partial(self._consume, number), self._complain) for number in numbers]:
            pid, status = os.wait()
            if os.WIFSIGNALED(status):  # it could not complain itself
                self._complain(f"consumer {pid} was ended by signal {os.WTERMSIG(status)}")

    def _consume(self, number: int) -> None:
        slot = self.consumers[number]
        slot.pid = os.getpid()
        for phase_number, phase in enumerate(self._phases):
            self._gates[phase_number].subscribe.pass_()
            with closing(self._contender.subscription(phase.stream, stamped=phase.paced)) as subscription:
                slot.ready = phase_number + 1
                self._gates[phase_number].go.pass_()
                patience_s = _FOR_EVER_S if phase.quiet else _RECEIVE_S
                if phase.paced:
                    _note_delays(subscription.receive, patience_s, slot, 2 * phase_number + 2)
                else:
                    while slot.step < 2 * phase_number + 2:
                        count, _ = subscription.receive(patience_s)
                        slot.add(count, subscription.aside_bytes)

    def _produce(self) -> None:
        self._stand_before()
        slot = self.producer
        slot.pid = os.getpid()
        for number, phase in enumerate(self._phases):
            self._gates[number].publish.pass_()
            with closing(self._contender.publisher(phase.stream, synced=phase.paced)) as publisher:
                slot.threads = publisher.client_threads or ()
                slot.ready = number + 1
                self._gates[number].go.pass_()
                if phase.rate_per_s is not None:
                    _at_pace(publisher, slot, 2 * number, 1 / phase.rate_per_s)
                else:
                    _at_full_speed(publisher, slot, 2 * number, self.consumers if phase.held else ())
                self._gates[number].leave.pass_()


def _note_delays(
    receive: Callable[[float], tuple[int, Sequence[int]]], patience_s: float, slot: Slot, end_step: int
) -> None:
    """Everybody who wakes finds this loop gone from the processor's cache, and all who wake later wait for it: so it
    calls next to nothing, and what others look at it tells now and then, or when nothing comes."""
    common, clock_ns = slot.common, time.monotonic_ns
    noted: list[int] = []
    while common[STEP] < end_step:
        for _ in range(_RECEIVED_UNTOLD if common[STEP] < end_step - 1 else 1):  # all, when the producer has stopped
            stamps = receive(patience_s)[1]
            if not stamps:
                break
            now_ns = clock_ns()
            for stamp_ns in stamps:
                noted.append(stamp_ns)
                noted.append(now_ns - stamp_ns)
        slot.add_delays(noted)
        noted.clear()


def _at_full_speed(publisher: Publisher, slot: Slot, step: int, waits_for: Sequence[Slot]) -> None:
    messages = [message(time.monotonic_ns())] * _MESSAGES_AT_ONCE
    slot.confirm(0)  # the time of nothing yet: what follows is counted from here
    while slot.step <= step:
        publisher.send(messages)
        slot.confirm(publisher.confirmed_bytes())
        while waits_for and slot.bytes > min(one.reached for one in waits_for) + _HELD_BYTES and slot.step <= step:
            time.sleep(_HELD_S)
            slot.confirm(publisher.confirmed_bytes())


def _at_pace(publisher: Publisher, slot: Slot, step: int, interval_s: float) -> None:
    """A message that the last one's sending held up counts from when it was due, and is sent even if that is over; one
    that this process overslept does not, nor do those that should have been sent meanwhile: no system is to blame for
    them."""
    interval_ns = round(1e9 * interval_s)
    due_ns, end_ns = time.monotonic_ns(), 0
    while not end_ns or due_ns < end_ns:
        if not end_ns and slot.step > step:
            end_ns = time.monotonic_ns()
            continue
        stamp_ns = due_ns
        if (left_ns := due_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
            stamp_ns = time.monotonic_ns()
            if stamp_ns > due_ns + interval_ns:
                due_ns = stamp_ns
        publisher.send([message(stamp_ns)])
        slot.add_delays([stamp_ns, 0])
        due_ns += interval_ns


def _ended(pid: int, end_s: float) -> bool:
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.005)
    return True


def _threads(pid: int) -> list[int]:
    """None of a process that has just ended."""
    return [int(os.path.basename(task)) for task in glob(f"/proc/{pid}/task/*")]


def _write(handle: int, text: str) -> None:
    os.write(handle, text.encode()[: select.PIPE_BUF])
