"""A peer's server: found on the PATH, started for this benchmark alone, ended by its process id."""

import errno
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType

from ....errors import TailraceError
from ..system import process_cpu_s

#: A unix socket's path, or the host and port of a TCP socket.
Address = str | tuple[str, int]

_STARTS_MAX = 5
_START_S = 10.0


class PeerMissing(TailraceError):
    """The peer is not installed here."""


class PeerFailed(TailraceError):
    """The peer did not start, or answered what it should not."""


def located(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise PeerMissing(f"{program} is not on the PATH, so it is left out; to compare with it: apt install {package}")
    return path


def free_port(run: int = 1) -> int:
    """A port that nobody has right now; `run`: nor the next ones, so many in all. Somebody may take it before the
    server does: then the start is tried again."""
    while True:
        with ExitStack() as stack:
            first = stack.enter_context(socket.socket())
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                for further in range(1, run):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port + further))
            except OverflowError:  # there is no such port
                continue
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
                continue
            return port


def connect(address: Address) -> socket.socket:
    if isinstance(address, str):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        connection.connect(address)
        if not isinstance(address, str):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        connection.close()
        raise
    return connection


class Server:
    """`arrange` gives a command line and the addresses it listens on; it is asked again when a start failed."""

    def __init__(
        self,
        arrange: Callable[[], tuple[Sequence[str], Sequence[Address]]],
        log: str,
        *,
        start_s: float = _START_S,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment`: beside that of this process."""
        self._start_s = start_s
        for attempt in range(1, _STARTS_MAX + 1):
            command, self.addresses = arrange()
            # The server must not outlive a benchmark that is killed; setpriv (util-linux) asks the kernel for that.
            bound = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
            with open(log, "wb") as output:
                self._process = subprocess.Popen(
                    [*bound, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=os.environ | dict(environment or {}),
                    start_new_session=True,  # a Ctrl-C is for the benchmark, which then ends its servers
                )
            if self._listens():
                return
            self.close()
            if attempt == _STARTS_MAX:
                with open(log, errors="replace") as output:
                    said = output.read()[-500:].strip()
                raise PeerFailed(f"{' '.join(command)} did not start {_STARTS_MAX} times; it said: {said or 'nothing'}")

    def _listens(self) -> bool:
        end_s = time.monotonic() + self._start_s
        for address in self.addresses:
            while True:
                try:
                    connect(address).close()
                    break
                except OSError:
                    if self._process.poll() is not None or time.monotonic() > end_s:
                        return False
                    time.sleep(0.01)
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_s(self) -> float:
        return process_cpu_s(self.pid)

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def socket_path(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if len(os.fsencode(path)) > 100:
        raise PeerFailed(f"{path!r} is too long for a unix socket; set TMPDIR to a shorter folder")
    return path
