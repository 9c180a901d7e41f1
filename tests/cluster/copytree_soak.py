"""A world of five clusters as real processes, each in a network namespace of its own, with a wide area between them.
From a seed, processes are killed and stopped, links are cut (both ways or one), slowed and made to lose packets, whole
clusters are cut off. Consumers in every cluster check every message all the while; some as on hosts that have no other
cluster's folder, so that they move over the network. Then peace: in the end every cluster has the same bytes under the
same names, ends at the same positions, and reads from its cache again.

    python tests/cluster/copytree_soak.py --for 30m --seed 7            20 processes and two producers
    python tests/cluster/copytree_soak.py --for 15 --seed 7 --together  one process a cluster

Needs the rights of root. What is done to whom and when comes from the seed; what the machine makes of it does not.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "wire"))
from certificates import Authority

import tailrace
from tailrace.config import TlsConfig, WorldConfig
from tailrace.errors import FileMissing
from tailrace.files import PosixFiles
from tailrace.model.message_file import TRACKS
from tailrace.model.segment import segments_of
from tailrace.node.deployed import open_store, publish
from tailrace.node.hosts import world_folder
from tailrace.node.neighbours import Neighbours
from tailrace.node.supervision import ProcessPlan, Supervisor
from tailrace.node.world_file import read_world_file
from tailrace.testing import WideArea

CLUSTERS = ("a", "b", "c", "d", "e")
# a > b > c > d is three hops, as is the way around b. Other links there are none.
LINKS = {("a", "b"): 0.01, ("b", "c"): 0.01, ("c", "d"): 0.01, ("b", "e"): 0.01, ("a", "e"): 0.08, ("c", "e"): 0.08}
STREAMS = {"s": "a", "t": "d"}
SHARDS = 2
GUESTS = ("c", "e")  # clusters with a consumer that has no other cluster's folder
ROLES = ("cache", "writer", "reader", "scheduler")
DELAY_S = 0.02
SETTLE_S = 120.0
STALL_S = 10.0  # what is later than this is told

WORLD = "\n".join(
    [
        *(f"[clusters.{name}]" for name in CLUSTERS),
        *(
            f'[[links]]\nbetween = ["{one}", "{other}"]\nprice_per_gb = {price}'
            for (one, other), price in LINKS.items()
        ),
        *(f'[streams.{stream}]\nsource = "{source}"' for stream, source in STREAMS.items()),
        *(f"[streams.{stream}.settings]\nshards = {SHARDS}\nfile_bytes = 500000" for stream in STREAMS),
        "",
    ]
)


def message(stream: str, shard: int, number: int) -> bytes:
    return f"{stream}/{shard}/{number} ".encode() + b"." * (number * 7 % 700)


def produce(folder: str, stream: str, pause_s: str) -> None:
    """Numbered messages in each shard, a few each time, until it is killed."""
    with tailrace.open(folder) as world, world.producer(stream, shards=SHARDS, buffer_s=0.01) as producer:
        numbers = [status.messages for status in world.stream_status(stream)]
        for group in cycle([1, 2, 20, 5]):
            for shard in range(SHARDS):
                producer.send_many([message(stream, shard, numbers[shard] + n) for n in range(group)], shard=shard)
                numbers[shard] += group
            producer.flush()
            time.sleep(float(pause_s))


class Following:
    """A consumer in one cluster that checks every message; a wrong one ends it."""

    def __init__(self, folder: str, config: WorldConfig | None = None) -> None:
        self._world = tailrace.open(folder, config=config)
        self._consumer = self._world.consumer(*STREAMS, start="earliest")
        self.seen = {(stream, shard): 0 for stream in STREAMS for shard in range(SHARDS)}
        self.latest_s = 0.0  # from the producer's clock to ours, at its worst
        self.stalls: list[str] = []
        self.watched = False  # it is at the head, and from now on should stay there
        self.problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for batch in self._consumer:
                place = batch.stream, batch.shard
                for found in batch:
                    expected = message(*place, self.seen[place])
                    assert found.value == expected, f"{place}: {found.value!r} instead of {expected!r}"
                    self.seen[place] += 1
                late_s = time.time() - (batch.first_time_us or 0) / 1e6
                self.latest_s = max(self.latest_s, late_s)
                if late_s > STALL_S and self.watched:
                    self.stalls.append(f"{batch.stream}/{batch.shard} was {late_s:.1f} s late")
        except BaseException as problem:
            self.problem = problem

    @property
    def clusters(self) -> dict[str, str]:
        return dict(self._consumer.clusters)

    def hot_bytes(self) -> int:
        layers = self._world._find_layers()
        return 0 if layers is None else layers.bytes_from["relaxed"]

    def close(self) -> None:
        self._consumer.close()
        self._thread.join()
        self._world.close()


def follow_from_afar(folder: str, certificate: str, key: str, roots: str) -> None:
    """Tell now and then what was seen, and where, until nobody listens."""
    Neighbours._folder = lambda self, cluster: None  # type: ignore[method-assign]
    one = Following(folder, WorldConfig(tls=TlsConfig(certificate=certificate, key=key, roots=roots)))
    over, moves, clusters = threading.Event(), 0, one.clusters
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    while not over.wait(0.1):
        before, clusters = clusters, one.clusters
        moves += clusters != before
        problem = "" if one.problem is None else repr(one.problem)
        told = {"seen": list(one.seen.values()), "moves": moves, "clusters": clusters, "problem": problem}
        print(json.dumps(told), flush=True)
    one.close()


class Guest:
    """A consumer in a process of its own, on the network of its cluster."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)
        self.told: dict[str, Any] = {"seen": [], "moves": 0, "problem": ""}
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.told = json.loads(line)

    @property
    def problem(self) -> str:
        ended = self._process.poll()
        return self.told["problem"] or ("" if ended is None else f"it ended with exit code {ended}")

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._thread.join()


@dataclass(frozen=True)
class Fault:
    at_s: float
    kind: str
    what: tuple[str, ...]
    for_s: float

    def __str__(self) -> str:
        lasting = f" for {self.for_s:.1f} s" if self.for_s else ""
        return f"{self.at_s:7.1f} s  {self.kind} {' '.join(self.what)}{lasting}"


KINDS = ("kill", "kill", "kill", "producer", "freeze", "cut", "cut", "one-way", "slow", "lossy", "isolate")


def faults(seed: int, until_s: float, every_s: float, processes: list[str]) -> Iterator[Fault]:
    """What is done to whom, and when."""
    random = Random(seed)
    at_s = random.expovariate(1 / every_s)
    while at_s < until_s:
        kind = random.choice(KINDS)
        for_s = min(random.uniform(0.5, 8.0), max(0.5, until_s - at_s))
        if kind in ("kill", "freeze"):
            what: tuple[str, ...] = (random.choice(processes),)
        elif kind == "producer":
            what = (random.choice(list(STREAMS)),)
        elif kind == "isolate":
            what = (random.choice(CLUSTERS),)
        else:
            what = tuple(random.sample(random.choice(list(LINKS)), 2))
        yield Fault(at_s, kind, what, 0.0 if kind in ("kill", "producer") else for_s)
        at_s += random.expovariate(1 / every_s)


class Soak:
    def __init__(self, folder: str, seed: int, *, together: bool, say: Callable[[str], None]) -> None:
        self.folder, self._say = folder, say
        self.path = path = os.path.join(folder, "world.toml")
        Path(path).write_text(WORLD)
        self.wide = WideArea(CLUSTERS, delay_s=DELAY_S, seed=seed)
        authority = Authority(Path(folder))
        self._tls = authority.issue("checker", file="checker")
        plans = []
        for cluster in CLUSTERS:
            address = self.wide.address(cluster)
            tls = authority.issue(address, "127.0.0.1", file=f"node-{cluster}")
            secrets = ["--certificate", str(tls.certificate), "--key", str(tls.key), "--roots", str(tls.roots)]
            for number, role in enumerate(["reader,writer,scheduler"] if together else ROLES):
                door = ["--listen", f"{address}:{7500 + number}", *secrets] if role != "cache" else []
                command = ["node", "--roles", role, "--world-file", path, "--cluster", cluster, *door]
                name = f"{cluster}-{'node' if together else role}"
                plans.append(
                    ProcessPlan(name, (*self.wide.entering(cluster), sys.executable, "-m", "tailrace", *command))
                )
        self.processes = [plan.name for plan in plans]
        self._environment = environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        logs = os.path.join(folder, "logs")
        file = read_world_file(path)
        with open_store(path, file) as store:
            publish(path, file, store)
        me = str(Path(__file__))
        self._nodes = Supervisor(plans, logs=logs, environment=environment)
        self._producers = Supervisor(
            [
                ProcessPlan(f"producer-{stream}", (sys.executable, me, "--produce", self.of(source), stream, "0.05"))
                for stream, source in STREAMS.items()
            ],
            logs=logs,
            environment=environment,
        )
        self.following: dict[str, Following] = {}
        self.guests: dict[str, Guest] = {}
        self.counts: Counter[str] = Counter()
        self._healing: list[tuple[float, Callable[[], object]]] = []
        self._making = True
        self._begin_s = time.monotonic()

    def of(self, cluster: str) -> str:
        return os.path.join(self.folder, cluster)

    # ---- what goes on

    def step(self) -> None:
        """Keep everybody running, undo what is to be undone, and look whether a consumer has met a wrong message."""
        self._nodes.step()
        if self._making:
            self._producers.step()
        now_s = time.monotonic()
        for due in [one for one in self._healing if one[0] <= now_s]:
            self._healing.remove(due)
            due[1]()
        for cluster in CLUSTERS:
            if cluster not in self.following and all(
                os.path.exists(os.path.join(self.of(cluster), "streams", stream, "stream.json")) for stream in STREAMS
            ):
                self.following[cluster] = Following(self.of(cluster))
                if cluster in GUESTS:
                    self.guests[cluster] = Guest(self._guest_command(cluster), self._environment)
        for cluster, one in self.following.items():
            stalls, one.stalls = one.stalls, []
            for stall in stalls:
                self._say(f"{time.monotonic() - self._begin_s:7.1f} s  in {cluster}, {stall}")
            if one.problem is not None:
                raise AssertionError(f"the consumer in {cluster}: {one.problem!r}") from one.problem
        for cluster, guest in self.guests.items():
            assert not guest.problem, f"the consumer in {cluster} that has no other folder: {guest.problem}"

    def wait(self, holds: Callable[[], bool], what: str, deadline_s: float = SETTLE_S) -> None:
        end_s = time.monotonic() + deadline_s
        while not holds():
            self.step()
            assert time.monotonic() < end_s, f"waited {deadline_s:g} s in vain for {what}: {self.describe()}"
            time.sleep(0.02)

    def break_things(self, seed: int, seconds: float, every_s: float) -> None:
        self._begin_s = begin_s = time.monotonic()
        for one in self.following.values():
            one.latest_s, one.watched = 0.0, True
        for fault in faults(seed, seconds, every_s, self.processes):
            while time.monotonic() < begin_s + fault.at_s:
                self.step()
                time.sleep(0.02)
            self._say(str(fault))
            self._do(fault)
        while time.monotonic() < begin_s + seconds:
            self.step()
            time.sleep(0.02)

    def make_peace(self) -> None:
        for _, undo in self._healing:
            undo()
        self._healing = []
        for way in LINKS:
            self.wide.heal(*way)

    def check(self) -> dict[str, Any]:
        """Everything arrives, hot and durable; then producers stop, and all clusters are alike."""
        begin_s = time.monotonic()
        self.wait(lambda: len(self.following) == len(CLUSTERS), "every stream to be in every cluster")
        cold = {cluster: one.hot_bytes() for cluster, one in self.following.items()}
        self.wait(
            lambda: all(one.hot_bytes() > cold[cluster] for cluster, one in self.following.items()),
            "the caches of all clusters to be used again",
        )
        self._making = False
        self._producers.stop()
        goal = {place: self._messages(*place) for place in next(iter(self.following.values())).seen}
        self.wait(lambda: all(one.seen == goal for one in self.following.values()), f"the last messages, {goal}")
        self.wait(
            lambda: all(guest.told["seen"] == list(goal.values()) for guest in self.guests.values()),
            f"the last messages, {goal}, at those who have no other folder",
        )
        origin: dict[str, bytes] = {}
        for stream, source in STREAMS.items():
            origin |= self.files(source, stream)
        for cluster in CLUSTERS:
            # Its cache, or another cluster, may have shown the last messages before its files have them.
            self.wait(partial(self._is_as_long, cluster, origin), f"the files of {cluster}")
            found = self.files(cluster)
            others = [name for name, content in origin.items() if found[name] != content]
            assert not others, f"{cluster} has other bytes in {others}"
        for way in ("folders", "calls"):
            told = self._verify_across(way)
            assert (told["equal"], told["complete"]) == (True, True), (way, told)
            assert not any(sum(one["behind_bytes"].values()) for one in told["streams"].values()), (way, told)
        positions = {cluster: self._positions(cluster) for cluster in CLUSTERS}
        assert len({str(one) for one in positions.values()}) == 1, positions
        return {
            "messages": sum(goal.values()),
            "bytes": sum(map(len, origin.values())),
            "files": len(origin),
            "settled_s": round(time.monotonic() - begin_s, 1),
            "latest_s": {cluster: round(one.latest_s, 2) for cluster, one in sorted(self.following.items())},
            "moves": {cluster: guest.told["moves"] for cluster, guest in sorted(self.guests.items())},
            "restarts": sum(one.restarts for one in (*self._nodes.status(), *self._producers.status())),
            "faults": dict(sorted(self.counts.items())),
        }

    def describe(self) -> str:
        seen = {cluster: list(one.seen.values()) for cluster, one in self.following.items()}
        hot = {cluster: one.hot_bytes() for cluster, one in self.following.items()}
        guests = {cluster: guest.told for cluster, guest in self.guests.items()}
        states = {one.name: one.state for one in self._nodes.status() if one.state != "running"}
        return f"seen {seen}, hot {hot}, {guests}, not running {states}; logs in {self.folder}/logs"

    def close(self) -> None:
        self.make_peace()
        self._producers.stop()
        for one in (*self.guests.values(), *self.following.values()):
            one.close()
        self._nodes.stop()
        self.wide.close()
        for cluster in CLUSTERS:
            shutil.rmtree(world_folder(self.of(cluster)), ignore_errors=True)

    # ---- faults

    def _do(self, fault: Fault) -> None:
        wide, what = self.wide, fault.what
        self.counts[fault.kind] += 1
        match fault.kind:
            case "kill" | "freeze" | "producer":
                name = what[0] if fault.kind != "producer" else f"producer-{what[0]}"
                pids = {one.name: one.pid for one in (*self._nodes.status(), *self._producers.status())}
                if (pid := pids[name]) is None:
                    return
                if fault.kind != "freeze":
                    os.kill(pid, signal.SIGKILL)
                    return
                os.kill(pid, signal.SIGSTOP)
                self._heal_later(fault.for_s, lambda: _let_go_on(pid))
            case "cut":
                wide.cut(*what)
                self._heal_later(fault.for_s, lambda: wide.heal(*what))
            case "one-way":
                wide.cut(*what, both=False)
                self._heal_later(fault.for_s, lambda: wide.heal(*what))
            case "slow":
                wide.slow(*what, 0.3)
                self._heal_later(fault.for_s, lambda: wide.heal(*what))
            case "lossy":
                wide.lose(*what, 0.1)
                self._heal_later(fault.for_s, lambda: wide.heal(*what))
            case "isolate":
                ways = [way for way in LINKS if what[0] in way]
                for way in ways:
                    wide.cut(*way)
                self._heal_later(fault.for_s, lambda: [wide.heal(*way) for way in ways])

    def _heal_later(self, seconds: float, undo: Callable[[], object]) -> None:
        self._healing.append((time.monotonic() + seconds, undo))

    # ---- what there is

    def _guest_command(self, cluster: str) -> list[str]:
        me, tls = str(Path(__file__)), self._tls
        secrets = [tls.certificate, tls.key, tls.roots]
        return [*self.wide.entering(cluster), sys.executable, me, "--follow-from-afar", self.of(cluster), *secrets]

    def _verify_across(self, way: str) -> dict[str, Any]:
        """As a user would find out, in one of the clusters."""
        secrets = ["--certificate", self._tls.certificate, "--key", self._tls.key, "--roots", self._tls.roots]
        command = [sys.executable, "-m", "tailrace", "verify", "--across", self.path, "--through", way, "--json"]
        done = subprocess.run(
            [*self.wide.entering("e"), *command, *secrets], capture_output=True, text=True, env=self._environment
        )
        assert done.stdout, done.stderr
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def _messages(self, stream: str, shard: int) -> int:
        with tailrace.open(self.of(STREAMS[stream])) as world:
            return world.stream_status(stream)[shard].messages

    def _positions(self, cluster: str) -> list[Any]:
        with tailrace.open(self.of(cluster)) as world:
            return [world.stream_status(stream) for stream in STREAMS]

    def _is_as_long(self, cluster: str, origin: dict[str, bytes]) -> bool:
        found = self.files(cluster)
        return {name: len(found[name]) for name in found} == {name: len(origin[name]) for name in origin}

    def files(self, cluster: str, *streams: str) -> dict[str, bytes]:
        """Names and bytes of all message files, as far as the next one's base says; of all streams, or of these."""
        files, found = PosixFiles(self.of(cluster)), {}
        for stream in streams or STREAMS:
            for shard in range(SHARDS):
                folder = f"streams/{stream}/{shard:05d}"
                segments = segments_of(files.list(folder))
                for segment, later in zip(segments, [*segments[1:], None], strict=True):
                    if later is not None and later.index_base == segment.index_base:
                        continue  # nothing was ever acknowledged in it
                    for track in TRACKS:
                        content = _content(files, f"{folder}/{segment.name(track)}")
                        end = None if later is None else later.base(track) - segment.base(track)
                        found[f"{stream}/{shard}/{segment.name(track)}"] = content[:end]
        return found


def _content(files: PosixFiles, name: str) -> bytes:
    try:
        with files.view(name) as view:
            content = bytearray(view.length().readable_bytes)
            return bytes(content[: view.read_into(0, memoryview(content))])
    except FileMissing:
        return b""


def _let_go_on(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)


def run(
    seed: int, seconds: float, *, together: bool, every_s: float = 1.5, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix="tailrace-soak-")
    soak = Soak(folder, seed, together=together, say=say)
    held = False
    try:
        soak.wait(lambda: len(soak.following) == len(CLUSTERS), "every stream to be in every cluster")
        say(f"{len(soak.processes)} processes run")
        soak.break_things(seed, seconds, every_s)
        say("peace")
        soak.make_peace()
        result = soak.check()
        held = True
        return {"seed": seed, "seconds": seconds, **result}
    finally:
        soak.close()
        if held:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            say(f"what is left is in {folder}")


def _seconds(text: str) -> float:
    return float(text.rstrip("smh")) * {"m": 60.0, "h": 3600.0}.get(text[-1], 1.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--for", dest="seconds", type=_seconds, default=60.0, help="as in 90s or 30m")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=1.5, help="seconds between faults, on average")
    parser.add_argument("--together", action="store_true", help="one process a cluster")
    parser.add_argument("--produce", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--follow-from-afar", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.follow_from_afar:
        follow_from_afar(*options.follow_from_afar)
        return 0
    if options.produce:
        produce(*options.produce)
        return 0
    told = run(
        options.seed,
        options.seconds,
        together=options.together,
        every_s=options.every,
        say=lambda line: print(line, flush=True),
    )
    print(json.dumps(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
