"""The cache beside memcached and Redis, and beside plain copies of memory, in one run on one machine.

What is compared: one client thread calls for batches of keys, one call after the other, and gets a bytes object for
each key. A rate is keys per second of that thread, on the clock. CPU time is client's and server's together, per key.

How it stays fair: all systems take turns in short slices, ratios are made within a repeat, figures are medians over the
repeats. A peer is represented by the quickest of its clients, transports and thread counts: a first round, which warms
up memory and is not counted, tries all of them; the best go on into every repeat, and there the best one counts. Who
stands for a peer is a client that people use: a library, or the peer's own load generator. Beside them an ideal client
is shown, which knows the shape of every answer and checks nothing, and the limits: copies in memory, and as many bytes
through a TCP connection with nothing behind it.

The headline is a GET of 4 KiB values in batches of 64. Every other combination has its own figures and ratios.
"""

import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

from ...errors import ConfigError
from .limit import Loopback, Memcpy
from .ours import Backends, Ours
from .peers import Generator, Memcached, PeerFailed, PeerMissing, Redis, Wire
from .peers.generators import memaslap, redis_benchmark
from .report import result
from .score import OTHERS, OTHERS_MAX, Figures, Score, case_figures, headline
from .slices import Case, Measured, Slices, side_by_side
from .system import System, machine_cpu_s

Progress = Callable[[str], None]
Peer = Memcached | Redis
_S = TypeVar("_S", bound=System)

_SIZES = {"4k": 4096, "100b": 100}
_SET_BATCH = 64
CASES = [
    *(Case("get", size, value_bytes, batch) for size, value_bytes in _SIZES.items() for batch in (64, 16, 1)),
    *(Case("set", size, value_bytes, _SET_BATCH) for size, value_bytes in _SIZES.items()),
]
_FINALISTS = 2


@dataclass(frozen=True, slots=True)
class _Amounts:
    keys: int
    slices: Slices
    generators: bool


_FULL = _Amounts(keys=10_000, slices=Slices(), generators=True)
_QUICK = _Amounts(keys=640, slices=Slices(count=1, seconds=0.003, calls_timed=20), generators=False)


def run(repeats: int = 5, progress: Progress = lambda line: None, quick: bool = False) -> dict[str, Any]:
    """`quick` shrinks every amount: good only to see that it runs."""
    amounts = _QUICK if quick else _FULL
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="tailrace-bench-"))
        contest = _Contest(amounts, folder, stack, progress)
        contest.qualify()
        runs = []
        for repeat in range(repeats):
            progress(f"repeat {repeat + 1} of {repeats}")
            runs.append(contest.repeat())
        told = contest.told()
    settings = {"keys": amounts.keys, "quick": quick}
    measured = result(list(runs[0]), [{figure.name: run[figure] for figure in run} for run in runs], settings)
    if (others := measured["summary"][OTHERS.name]) > OTHERS_MAX:
        progress(
            f"others took {others:.0%} of this machine meanwhile: figures are low, and ratios blurred, "
            "most of all with systems that need two cores; run it again when it is quiet"
        )
    return {
        **measured,
        "missing": contest.missing,
        "tried": contest.tried,
        "counted": contest.counted,
        "ours": told,
    }


def _items(size: str, value_bytes: int, count: int) -> dict[bytes, bytes]:
    # The same in every run: figures of two runs differ by the machine, not by the bytes.
    content = random.Random(value_bytes)
    return {b"%b:%08d" % (size.encode(), number): content.randbytes(value_bytes) for number in range(count)}


def _closing(stack: ExitStack, system: _S) -> _S:
    stack.callback(system.close)
    return system


class _Contest:
    """Everybody who takes part, loaded."""

    def __init__(self, amounts: _Amounts, folder: str, stack: ExitStack, progress: Progress) -> None:
        self._amounts, self._folder, self._progress = amounts, folder, progress
        self._items = {size: _items(size, value_bytes, amounts.keys) for size, value_bytes in _SIZES.items()}
        self.missing: list[str] = []
        self._peers: list[Peer] = []
        for kind in (Memcached, Redis):
            try:
                peer: Peer = kind(folder)
            except PeerMissing as seen:
                self.missing.append(str(seen))
                progress(str(seen))
                continue
            stack.callback(peer.close)
            self._peers.append(peer)
        if not self._peers:
            raise ConfigError(
                "there is nobody to compare with: neither memcached nor redis-server is on the PATH; "
                "apt install memcached redis-server"
            )
        # By the name that its figures carry. Two clients share one set of backends.
        self._ours: dict[str, Ours] = {}
        self._backends: list[Backends] = []
        bytes_each = sum(len(value) for items in self._items.values() for value in items.values())
        for suffix, mode, count in (("", "R=1", 1), ("_r32", "R=3.2", 3)):
            place = os.path.join(folder, f"world{suffix}")
            backends = Backends(place, mode, count, keys=amounts.keys * len(_SIZES), bytes_each=bytes_each)
            stack.callback(backends.close)
            self._backends.append(backends)
            self._ours[f"shm{suffix}"] = _closing(stack, Ours(backends, mode, "memory"))
            self._ours[f"tcp{suffix}"] = _closing(stack, Ours(backends, mode, "engine"))
        self._limits: dict[str, System] = {
            "memcpy": _closing(stack, Memcpy()),
            "loopback": _closing(stack, Loopback()),
        }
        self._clients = {peer.name: [_closing(stack, client) for client in peer.clients()] for peer in self._peers}
        progress("loading")
        loaders = [loader for peer in self._peers for loader in peer.loaders()]
        # Backends that are shared are loaded through one of their clients.
        for system in [*loaders, self._ours["shm"], self._ours["shm_r32"], *self._limits.values()]:
            for items in self._items.values():
                system.load(items)
        for loader in loaders:
            loader.close()
        self._finalists: dict[tuple[str, str], tuple[list[System], list[Generator]]] = {}
        #: By case and client: the rates of the first round.
        self.tried: dict[str, dict[str, float]] = {}
        #: By case and peer: whose rate counted, in the order of the repeats.
        self.counted: dict[str, dict[str, list[str]]] = {}

    def qualify(self) -> None:
        """Choose each peer's best clients in each case, and its best one through TCP. Ours is warmed up on the way."""
        for case in CASES:
            self._progress(f"trying every client, not counted: {case.name}")
            self.tried[case.name], self.counted[case.name] = {}, {}
            self._measured(case, list(self._own(case).values()))
            for peer in self._peers:
                clients = self._clients[peer.name]
                rates = {seen.name: seen.per_s for seen in self._measured(case, clients)}
                ranked = sorted(clients, key=lambda client: -rates[client.name])
                ideal = [client for client in ranked if isinstance(client, Wire)]
                used = [client for client in ranked if client not in ideal]
                finalists = [*ideal[:_FINALISTS], *used[:_FINALISTS]]
                if not any(client.through_tcp for client in used[:_FINALISTS]):
                    finalists.append(next(client for client in used or ideal if client.through_tcp))
                generators = []
                for generator in self._generators(peer, case):
                    try:
                        rates[generator.name] = generator.run()
                    except PeerFailed as seen:  # one of many clients, and hardly the best: go on without it
                        self._progress(str(seen))
                        continue
                    if rates[generator.name] > rates[(used or ideal)[0].name]:
                        generators.append(generator)
                self._finalists[case.name, peer.name] = finalists, generators
                self.tried[case.name] |= {name: round(rate) for name, rate in rates.items()}
                self.counted[case.name][peer.name] = []

    def _generators(self, peer: Peer, case: Case) -> Iterator[Generator]:
        if not self._amounts.generators or case.verb == "set":
            return
        if isinstance(peer, Redis):
            yield from redis_benchmark(peer.unix_path(), self._amounts.keys, case.value_bytes, case.batch)
        else:
            yield from memaslap(self._folder, peer.tcp_port(), self._amounts.keys, case.value_bytes, case.batch)

    def _own(self, case: Case) -> dict[str, System]:
        everybody = {**self._ours, **self._limits}
        return {name: system for name, system in everybody.items() if case.verb == "get" or system.can_set}

    def repeat(self) -> Figures:
        spent_s, (busy_s, all_s) = self._spent_s(), machine_cpu_s()
        figures: Figures = {}
        for case in CASES:
            figures |= self._case(case)
        busy, everything = (now - before for now, before in zip(machine_cpu_s(), (busy_s, all_s), strict=True))
        others = max(0.0, busy - (self._spent_s() - spent_s)) / everything
        return {**headline(figures), OTHERS: others, **figures}

    def told(self) -> dict[str, dict[str, int]]:
        """What our clients have counted: whether a read had to be repeated, or the backend to be asked."""
        return {name: system.stats() for name, system in self._ours.items()}

    def _spent_s(self) -> float:
        """CPU time of this benchmark with all servers, so far."""
        servers_s = sum(servers.cpu_s() for servers in [*self._peers, *self._backends])
        return time.process_time() + servers_s + sum(limit.server_cpu_s() for limit in self._limits.values())

    def _measured(self, case: Case, systems: Sequence[System]) -> list[Measured]:
        return side_by_side(case, systems, self._items[case.size], self._amounts.slices) if systems else []

    def _case(self, case: Case) -> Figures:
        own = self._own(case)
        clients: list[tuple[Peer, System]] = []
        for peer in self._peers:
            finalists, _ = self._finalists[case.name, peer.name]
            clients += [(peer, client) for client in finalists]
        seen = self._measured(case, [*own.values(), *(client for _, client in clients)])
        ours = dict(zip(own, seen, strict=False))
        limits = {name: ours.pop(name) for name in self._limits if name in ours}
        scores = []
        for peer in self._peers:
            score = Score(peer.name, library=any(not isinstance(client, Wire) for of, client in clients if of is peer))
            for (of, client), measured in zip(clients, seen[len(own) :], strict=True):
                if of is peer:
                    score.add(client, measured)
            for generator in self._finalists[case.name, peer.name][1]:
                score.add_rate(generator.name, generator.run())
            self.counted[case.name][peer.name].append(score.counted)
            scores.append(score)
        return case_figures(case, scores, ours, limits)
