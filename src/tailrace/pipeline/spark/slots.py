"""Spark's slots as hands of a pipeline: one job whose tasks take units for as long as the pipeline runs (U9).

A job for each few units costs more than the units do: planning, serialising, starting. So there is one job, with a task
for each slot. A task connects to the runner, takes units, and sends receipts; nothing of the messages goes anywhere.
When there was nothing to do for a while the job ends, and the next unit begins another one.
Spark does what it is good at: it finds the machines, starts the processes, and starts them again when they die. A unit
that ends its process is known at once, since its connection breaks, and it alone.

The connection is a Unix socket where all is on one machine, else TCP to where executors reach the driver anyway. Both
sides prove that they know a key which came with the job, since what they send each other is loaded by pickle.
"""

import hmac
import os
import secrets
import selectors
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from ...errors import TailraceError
from ..work import Performer, Result, Task
from ..workers.crew import Hand
from ..workers.frames import End, receive, send, serve
from .place import settle_memory

if TYPE_CHECKING:
    import pyarrow

_HELLO_S = 10.0  # within which both sides must have proved themselves
_NONCE_BYTES = 16
_PROOF_BYTES = 32
_AGAIN_S = 1.0  # before a slot that could not connect is begun again
_WAIT_S = 120.0  # for a slot: starting an application's machines can take that long
_IDLE_S = 10.0  # slots with nothing to do for so long are let go, for others to use
_LOOK_S = 0.5
_STRANGERS_MAX = 64  # connections that have not proved themselves yet


class NoSlot(TailraceError):
    """Spark gave none, or ended the job. Nothing is lost: units are tried again, with a new job."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where slots connect to: a path, or a host and a port."""

    place: str | tuple[str, int]
    key: bytes

    def connect(self) -> socket.socket:
        if isinstance(self.place, str):
            made = socket.socket(socket.AF_UNIX)
            made.settimeout(_HELLO_S)
            made.connect(self.place)
        else:
            made = socket.create_connection(self.place, _HELLO_S)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(made, self.key, first=True)
        made.settimeout(None)
        return made


def greet(connection: socket.socket, key: bytes, *, first: bool) -> None:
    """Each proves to the other that it has the key. ConnectionError if one cannot."""
    mine = secrets.token_bytes(_NONCE_BYTES)
    connection.sendall(mine)
    theirs = _exactly(connection, _NONCE_BYTES)
    roles = (b"slot", b"runner") if first else (b"runner", b"slot")  # or one could answer the other with its own words
    connection.sendall(_proof(key, roles[0], theirs))
    if not hmac.compare_digest(_exactly(connection, _PROOF_BYTES), _proof(key, roles[1], mine)):
        raise ConnectionError("the other side does not know this pipeline's key")


def _proof(key: bytes, role: bytes, nonce: bytes) -> bytes:
    return hmac.digest(key, role + nonce, "sha256")


def _exactly(connection: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = connection.recv(size - len(found))
        if not part:
            raise ConnectionError("the connection ended before both sides had proved themselves")
        found += part
    return found


# ---- on the executors


def serve_slot(address: Address, load: Callable[[], Performer]) -> None:
    """All that a task of the job does."""
    settle_memory()
    try:
        connection = address.connect()
    except OSError:
        time.sleep(_AGAIN_S)  # Spark starts this task again at once
        raise
    with connection, connection.makefile("rb") as requests, connection.makefile("wb") as answers:
        serve(requests, answers, load)


def own_name(task: Task) -> Task:
    """Spark may run a task twice, even at once: each writes a file of its own, and only one comes into the receipt."""
    return replace(task, name=task.name.removesuffix(".parquet") + f"-{os.getpid()}-{os.urandom(3).hex()}.parquet")


# ---- in the runner


class Slots:
    """The job, and the connections of its tasks."""

    def __init__(self, spark: SparkSession, slots: int, load: Callable[[], Performer], host: str | None) -> None:
        """`host`: where executors reach this process; None if all of them are on this machine."""
        self.slots = slots
        self._spark, self._load = spark, load
        self._folder = tempfile.mkdtemp(prefix="tailrace-slots-")  # for nobody else's eyes
        self._listener = self._listen(host)
        place = self._listener.getsockname()
        key = secrets.token_bytes(32)
        self._address = Address(place if host is None else (host, place[1]), key)
        self._changed = threading.Condition()
        self._idle: deque[_Slot] = deque()
        self._job: threading.Thread | None = None
        self._used_s, self._trouble, self._closed = time.monotonic(), "", False
        self._at_work, self._dismissing = 0, False
        self._strangers = threading.BoundedSemaphore(_STRANGERS_MAX)
        threading.Thread(target=self._accept, name="tailrace slots", daemon=True).start()

    def _listen(self, host: str | None) -> socket.socket:
        if host is not None:
            return socket.create_server((host, 0))
        made = socket.socket(socket.AF_UNIX)
        made.bind(os.path.join(self._folder, "slots"))
        made.listen()
        return made

    def close(self) -> None:
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._dismiss()  # and those who do not hear of it end with the session
        shutil.rmtree(self._folder, ignore_errors=True)

    def rest(self) -> None:
        """Let the slots go, for others to use."""
        self._dismiss()
        if self._job is not None:
            self._job.join(_WAIT_S)

    def _dismiss(self) -> None:
        """All of them, also those that come later: Spark may be about to begin one again that has died."""
        with self._changed:
            self._dismissing = True
            while self._idle:
                self._idle.popleft().dismiss()

    def wait(self) -> None:
        """Until there is a slot with nothing to do; for that the job is begun, where it is not under way. NoSlot says
        why there is none."""
        end_s = time.monotonic() + _WAIT_S
        while not self.ready():
            if self._job is None or not self._job.is_alive():
                trouble, self._trouble = self._trouble, ""
                if trouble:
                    raise NoSlot(f"Spark ended the job that does the work: {trouble}")
                self._dismissing = False
                self._job = threading.Thread(target=self._run, name="tailrace spark job", daemon=True)
                self._job.start()
            if time.monotonic() > end_s:
                raise NoSlot(f"Spark gave no slot within {_WAIT_S:g} s; look whether its cluster has any to give")
            with self._changed:
                self._changed.wait_for(lambda: bool(self._idle), _LOOK_S)

    # ---- as a crew

    def ready(self) -> bool:
        with self._changed:
            for slot in [slot for slot in self._idle if slot.is_dead()]:
                self._idle.remove(slot)
                slot.end()
            self._used_s = time.monotonic()  # about to be used, so it is not let go now
            return bool(self._idle)

    def take(self) -> Hand:
        with self._changed:
            self._at_work += 1
            return self._idle.popleft()

    def give_back(self, hand: Hand) -> None:
        assert isinstance(hand, _Slot)
        with self._changed:
            self._at_work, self._used_s = self._at_work - 1, time.monotonic()
            if self._dismissing:
                hand.dismiss()
            else:
                self._idle.append(hand)

    def end(self, hand: Hand) -> str:
        assert isinstance(hand, _Slot)
        with self._changed:
            self._at_work -= 1
        hand.end()
        return "its process, a Python worker of Spark, died"

    # ---- the job

    def _run(self) -> None:
        address, load = self._address, self._load

        def work(batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
            yield from batches  # which are small, and are to be read before anything is done
            serve_slot(address, load)

        try:
            # A task for each slot. They begin when there is a core for them, and end with the pipeline.
            self._spark.range(0, self.slots, 1, self.slots).mapInArrow(work, "id bigint").collect()
        except Exception as problem:
            if not self._closed:
                self._trouble = cause(problem)

    def _accept(self) -> None:
        self._listener.settimeout(_LOOK_S)
        while not self._closed:
            self._let_go()
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            if not self._strangers.acquire(blocking=False):
                connection.close()
                continue
            threading.Thread(target=self._admit, args=(connection,), daemon=True).start()

    def _let_go(self) -> None:
        if not self._at_work and time.monotonic() - self._used_s > _IDLE_S:
            self._dismiss()

    def _admit(self, connection: socket.socket) -> None:
        try:
            connection.settimeout(_HELLO_S)
            greet(connection, self._address.key, first=False)
            connection.settimeout(None)
        except OSError:
            connection.close()
            return
        finally:
            self._strangers.release()
        with self._changed:
            if self._dismissing:
                _Slot(connection).dismiss()
                return
            self._used_s = time.monotonic()
            self._idle.append(_Slot(connection))
            self._changed.notify_all()


class _Slot:
    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._requests = connection.makefile("wb")
        self._answers = socket.SocketIO(connection, "r")  # without a buffer: see frames.unbuffered

    def fileno(self) -> int:
        return self._connection.fileno()

    def begin(self, task: Task) -> None:
        with suppress(OSError):  # it has died: the next result says so
            send(self._requests, own_name(task))

    def result(self) -> Result | None:
        found = receive(self._answers)  # type: ignore[arg-type]
        return found if isinstance(found, Result) else None

    def is_dead(self) -> bool:
        """Of one that has nothing to do, and so nothing to say."""
        with selectors.DefaultSelector() as ready:
            ready.register(self._connection, selectors.EVENT_READ)
            return bool(ready.select(0))

    def dismiss(self) -> None:
        with suppress(OSError):
            send(self._requests, End())
        self.end()

    def end(self) -> None:
        for one in (self._requests, self._answers, self._connection):
            with suppress(OSError):
                one.close()


def cause(problem: BaseException) -> str:
    """The line that says it, out of Spark's pages."""
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    if any("exited unexpectedly" in line for line in lines):
        return "its Python process died"
    telling = [line for line in lines if "Error" in line or "Exception" in line]
    return (telling or lines or [type(problem).__name__])[0][:400]
