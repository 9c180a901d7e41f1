"""Three sites under a steady load, and what their outages cost: who does the work, and how late it is.

normal    all three are well
full      one is killed, and its outage is declared: the others have its work at once
partial   one hangs over its work and is heard of all the same: only the ETAs find that out
frozen    one is stopped altogether, and nobody says so: its lease runs out, or an ETA does
… and between them it comes back.

A message's delay is from when it was sent until its output could be seen. Outputs say which site made them, and of
messages of which time. Every message must be there once at the end, or there are no figures.
"""

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ....coordination import Coordination, SqliteCoordination
from ....env import SystemClock
from ....pipeline.state import State
from ...world import open_world
from ..peers.server import PeerMissing
from ..report import Figure
from .etcd import EtcdMembers

SITES = ("a", "b", "c")
_MEMBERS = 5
_VICTIM = "b"
_BURSTS_PER_S = 10
_MESSAGES = 500  # in each of them, of 100 bytes
_DEADLINE_S = 120.0
_LOOK_S = 0.05
_SETTLED_S = 1.5  # of a phase: what was sent before is still under way

FIGURES = [
    Figure("even_load", "ratio", "messages of the site that did least against the one that did most, all well", 0.5),
    Figure("normal_p90_s", "s", "sent to visible, p90, three sites"),
    Figure("full_outage_p90_vs_normal", "ratio", "the same while a site is out, and was declared so", 1.5),
    Figure("partial_outage_p90_vs_normal", "ratio", "while a site hangs and nobody says so"),
    Figure("frozen_p90_vs_normal", "ratio", "while a site is stopped and nobody says so"),
]


@dataclass(frozen=True, slots=True)
class Seen:
    """Some messages of about one moment, in an output."""

    site: str
    sent_us: int
    count: int
    visible_us: int


@dataclass(frozen=True, slots=True)
class Phase:
    name: str
    begin_us: int
    end_us: int


def measure(folder: str, *, phase_s: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Phases in order, with what each site did in it and how late; and the summary of FIGURES."""
    with ExitStack() as stack:
        state = _state(folder, stack, progress)
        watch = _Watch(os.path.join(folder, "out"))
        stack.callback(watch.close)
        marks, sent = _play(folder, state, watch, phase_s, progress)
        outputs = watch.outputs()
    if (counted := sum(one.count for one in outputs)) != sent:
        raise RuntimeError(f"{counted} messages were counted, and {sent} were sent: the pipeline is wrong")
    told = phases(outputs, marks)
    return {"state": state.what, "messages": sent, "phases": told, "summary": summary(told)}


def phases(outputs: Iterable[Seen], marks: Sequence[Phase]) -> list[dict[str, Any]]:
    """Of each phase: what sites brought out in it, and the delays of messages that were sent in it. The first moments
    do not count for what was brought out: they belong to the phase before."""
    outputs, told = list(outputs), []
    for phase in marks:
        settled_us = phase.begin_us + min(round(_SETTLED_S * 1e6), (phase.end_us - phase.begin_us) // 4)
        done = dict.fromkeys(SITES, 0)
        for one in outputs:
            if settled_us <= one.visible_us < phase.end_us:
                done[one.site] += one.count
        span_s = (phase.end_us - settled_us) / 1e6
        delays = [
            (one.visible_us - one.sent_us, one.count) for one in outputs if phase.begin_us <= one.sent_us < phase.end_us
        ]
        told.append(
            {
                "phase": phase.name,
                "seconds": round((phase.end_us - phase.begin_us) / 1e6, 2),
                "messages_per_s": {site: round(count / span_s, 1) for site, count in done.items()},
                "delay_p50_s": percentile(delays, 50),
                "delay_p90_s": percentile(delays, 90),
                "delay_max_s": percentile(delays, 100),
            }
        )
    return told


def percentile(delays_us: Iterable[tuple[int, int]], percent: int) -> float | None:
    """Of delays with how many messages had them; in seconds."""
    ordered = sorted(delays_us)
    wanted = math.ceil(sum(count for _, count in ordered) * percent / 100)
    for delay_us, count in ordered:
        wanted -= count
        if wanted <= 0:
            return round(delay_us / 1e6, 4)
    return None


def summary(told: Sequence[dict[str, Any]]) -> dict[str, float]:
    by_name = {one["phase"]: one for one in told}
    normal = by_name["normal"]
    rates = normal["messages_per_s"].values()
    p90_s = normal["delay_p90_s"]
    return {
        "even_load": min(rates) / max(rates) if max(rates) else 0.0,
        "normal_p90_s": p90_s,
        **{
            name: by_name[phase]["delay_p90_s"] / p90_s
            for name, phase in (
                ("full_outage_p90_vs_normal", "full outage"),
                ("partial_outage_p90_vs_normal", "partial outage"),
                ("frozen_p90_vs_normal", "frozen"),
            )
        },
    }


# ---- the world


@dataclass(frozen=True, slots=True)
class _Store:
    """Where the pipeline's state is."""

    what: str
    client: Coordination


def _state(folder: str, stack: ExitStack, progress: Callable[[str], None]) -> _Store:
    os.makedirs(os.path.join(folder, "world"))
    try:
        members = EtcdMembers(folder, _MEMBERS)
    except PeerMissing as seen:
        progress(f"outages: {seen}; the state is in a SQLite file instead")
        path = os.path.join(folder, "world", "coordination.db")
        return _Store("a SQLite file", stack.enter_context(SqliteCoordination(path)))
    from ....coordination import EtcdCoordination

    stack.callback(members.close)
    with open(os.path.join(folder, "world", "tailrace.toml"), "w") as file:
        file.write(f"[coordination]\netcd = {members.endpoints}\n")
    client = stack.enter_context(EtcdCoordination(members.config))
    return _Store(f"{_MEMBERS} members of etcd on this machine, without fsync", client)


def _play(
    folder: str, state: _Store, watch: "_Watch", phase_s: float, progress: Callable[[str], None]
) -> tuple[list[Phase], int]:
    """All phases, one after the other, and how many messages were sent."""
    children: dict[str, subprocess.Popen[bytes]] = {}
    pipeline = State("bench", [state.client], SystemClock())
    hang = os.path.join(folder, f"hang-{_VICTIM}")

    def start(site: str) -> None:
        children[site] = _start(folder, site)

    def kill() -> None:
        children[_VICTIM].kill()
        children[_VICTIM].wait()
        pipeline.declare(_VICTIM, out=True)

    def revive() -> None:
        pipeline.declare(_VICTIM, out=False)
        start(_VICTIM)

    acts: list[tuple[str, Callable[[], None]]] = [
        ("normal", lambda: None),
        ("full outage", kill),
        ("back after it", revive),
        ("partial outage", lambda: open(hang, "w").close()),
        ("back again", lambda: os.unlink(hang)),
        ("frozen", lambda: children[_VICTIM].send_signal(signal.SIGSTOP)),
        ("thawed", lambda: children[_VICTIM].send_signal(signal.SIGCONT)),
    ]
    load = _Load(os.path.join(folder, "world"))
    marks: list[Phase] = []
    try:
        for site in SITES:
            start(site)
        _until(lambda: len(pipeline.members().runners) == len(SITES), "the sites to begin")
        load.start()
        _until(lambda: len(watch.visible_us) > 2 * len(SITES), "outputs")
        for name, act in acts:
            progress(f"outages: {name}")
            act()
            begin_us = time.time_ns() // 1000
            load.check(2 * phase_s if name == "normal" else phase_s)  # what all else is compared with
            marks.append(Phase(name, begin_us, time.time_ns() // 1000))
        sent = load.end()
        _until(lambda: sum(one.count for one in watch.outputs()) >= sent, "all to be counted")
        return marks, sent
    finally:
        load.end()
        for child in children.values():
            child.send_signal(signal.SIGCONT)
            child.kill()
            child.wait()


def _start(folder: str, site: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tailrace", "pipeline", "run", "tailrace.node.bench.spark.app:outages"]
    command += ["--site", site, "--engine", "inline", "--world", os.path.join(folder, "world")]
    env = {**os.environ, "TAILRACE_BENCH_OUT": os.path.join(folder, "out"), "TAILRACE_BENCH_SITE": site}
    env["TAILRACE_BENCH_GATE"] = os.path.join(folder, f"hang-{site}")
    with open(os.path.join(folder, f"site-{site}.log"), "ab") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log)


class _Load:
    """Messages at a constant rate, whatever becomes of them, from a thread of its own."""

    def __init__(self, world: str) -> None:
        self._world, self._over, self._sent = world, threading.Event(), 0
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        with open_world(world) as opened:
            opened.create_stream("lines", shards=2, cached=False)

    def start(self) -> None:
        self._thread.start()

    def check(self, seconds: float) -> None:
        """Go on for so long."""
        self._over.wait(seconds)
        if self._problem is not None:
            raise self._problem

    def end(self) -> int:
        """How many there were."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        if self._problem is not None:
            raise self._problem
        return self._sent

    def _run(self) -> None:
        values = [b"campaign-0001" + b"." * 87] * _MESSAGES
        try:
            with open_world(self._world) as world, world.producer("lines", buffer_s=1 / _BURSTS_PER_S) as producer:
                began_s = time.monotonic()
                for burst in itertools.count(1):
                    producer.send_many(values, shard=burst % 2)
                    self._sent += len(values)
                    if self._over.wait(max(0.0, began_s + burst / _BURSTS_PER_S - time.monotonic())):
                        return
        except BaseException as problem:
            self._problem = problem


class _Watch:
    """Notes when each output could be seen, from a thread of its own; reads them when it is asked."""

    def __init__(self, folder: str) -> None:
        self._folder, self.visible_us = folder, dict[str, int]()
        self._read: dict[str, list[Seen]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def outputs(self) -> list[Seen]:
        import pyarrow.parquet as pq

        for name, visible_us in list(self.visible_us.items()):
            if name not in self._read:
                rows = pq.read_table(os.path.join(self._folder, name), partitioning=None).to_pylist()
                self._read[name] = [Seen(row["site"], row["sent_us"], row["n"], visible_us) for row in rows]
        return [one for some in self._read.values() for one in some]

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(_LOOK_S):
            if os.path.isdir(self._folder):
                now_us = time.time_ns() // 1000
                for name in os.listdir(self._folder):
                    if name.startswith("part-") and name not in self.visible_us:
                        # Its inode changed when it was linked, and perhaps later: both times are on the safe side.
                        changed_us = os.stat(os.path.join(self._folder, name)).st_ctime_ns // 1000
                        self.visible_us[name] = min(now_us, changed_us)


def _until(holds: Callable[[], bool], what: str) -> None:
    end_s, pause = time.monotonic() + _DEADLINE_S, threading.Event()
    while not holds():
        if time.monotonic() > end_s:
            raise RuntimeError(f"waited {_DEADLINE_S:g} s in vain for {what}")
        pause.wait(_LOOK_S)
