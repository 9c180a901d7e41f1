"""A wide area on one machine: network namespaces of their own for sites, real TCP between them, and delay, loss and
cuts on each way as one asks for.

Not every kernel can delay packets, so a process of ours does: it holds a network device in each namespace and hands
packets on when their time has come. When that process ends, so do the devices and the namespaces: nothing is left
behind, whatever is killed. Needs the rights of root, and nothing on disk.

    with WideArea(["tokyo", "zurich"], delay_s=0.12) as wide:
        subprocess.Popen([*wide.entering("zurich"), "curl", f"http://{wide.address('tokyo')}:8000"])
        wide.cut("tokyo", "zurich")
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Self

from ..errors import ConfigError
from .wide_area_relay import address_of


class WideArea:
    """`delay_s`: each way, for all ways that are not told otherwise. Ways are directed; most calls name both ends and
    mean both ways."""

    def __init__(self, sites: Sequence[str], *, delay_s: float = 0.0, seed: int = 0) -> None:
        self._numbers = {site: number for number, site in enumerate(sites, start=1)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tailrace.testing.wide_area_relay", str(len(sites)), str(delay_s), str(seed)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            _, told = self._process.communicate()
            raise ConfigError(f"no wide area can be made here: {told.strip().splitlines()[-1] if told else 'no word'}")
        self._namespaces: list[int] = json.loads(line)

    @staticmethod
    def problem() -> str:
        """Why none can be made here; empty: it can."""
        try:
            WideArea(["probe"]).close()
        except ConfigError as refused:
            return str(refused)
        return ""

    def address(self, site: str) -> str:
        return address_of(self._numbers[site])

    def entering(self, site: str) -> list[str]:
        """What to put before a command so that it runs there. Files and shared memory are those of the machine."""
        namespace = self._namespaces[self._numbers[site] - 1]
        return ["nsenter", f"--net=/proc/{self._process.pid}/fd/{namespace}"]

    # ---- what is wrong with a way

    def cut(self, one: str, other: str, *, both: bool = True) -> None:
        """Packets vanish; nobody is told."""
        self._set(one, other, both, cut=True)

    def heal(self, one: str, other: str) -> None:
        self._set(one, other, True, cut=False, loss=0.0, delay_s=None)

    def slow(self, one: str, other: str, delay_s: float) -> None:
        self._set(one, other, True, delay_s=delay_s)

    def lose(self, one: str, other: str, share: float) -> None:
        """So many of all packets, at random."""
        self._set(one, other, True, loss=share)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _set(self, one: str, other: str, both: bool, **terms: Any) -> None:
        assert self._process.stdin is not None
        ends = self._numbers[one], self._numbers[other]
        for way in (ends, ends[::-1]) if both else (ends,):
            self._process.stdin.write(json.dumps({"way": way, **terms}) + "\n")
        self._process.stdin.flush()
