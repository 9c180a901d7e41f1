"""Four clusters on two continents, with an ocean between them: produced in one, consumed in all. Then the one through
which Europe gets its copies is killed: the trees lead around it, its consumers read elsewhere, and all ends well."""

import hashlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ....copytree import WorldState, load
from ....errors import PeerFailed
from ....streams import Delays
from ...deployed import open_store, publish
from ...world_file import read_world_file
from ..chapter import Chapter, Notes, Told
from ..view import Row, View
from .cast import Cast
from .wide_area import WideArea

if TYPE_CHECKING:
    from rich.console import Group

STREAM, SHARDS, _RATE = "orders", 2, 2_000
SOURCE, HUB, BEHIND = "us-east", "eu-west", "eu-north"
_CONTINENTS = {SOURCE: "America", "us-west": "America", HUB: "Europe", BEHIND: "Europe"}
_DEADLINE_S = 120.0
_WORLD = f"""
name = "demo"

[clusters.{SOURCE}]
continent = "america"
sizes = {{ cache = 0 }}
[clusters.us-west]
continent = "america"
sizes = {{ cache = 0 }}
[clusters.{HUB}]
continent = "europe"
sizes = {{ cache = 0 }}
[clusters.{BEHIND}]
continent = "europe"
sizes = {{ cache = 0 }}

[tariffs.world]
price_per_gb = 0.08
latency_s = 0.055

[[links]]
between = ["{SOURCE}", "us-west"]
price_per_gb = 0.02
latency_s = 0.030
[[links]]
between = ["{SOURCE}", "{HUB}"]
price_per_gb = 0.05
latency_s = 0.040
[[links]]
between = ["{HUB}", "{BEHIND}"]
price_per_gb = 0.01
latency_s = 0.012

[streams.{STREAM}]
source = "{SOURCE}"
[streams.{STREAM}.settings]
shards = {SHARDS}
file_bytes = 262144
"""


@dataclass(slots=True)
class Site:
    """A cluster as it is seen."""

    name: str
    state: str = "starting"
    copies_from: str = ""
    latency_s: float = 0.0


@dataclass(slots=True)
class Map:
    sites: list[Site]
    rows: list[Row]  # of the consumers, by the names of their clusters
    notes: list[str]
    elapsed_s: float = 0.0
    flushed: int = 0

    def line(self) -> str:
        parts = [f"{self.elapsed_s:5.1f} s", f"flushed {self.flushed:,}"]
        for site in self.sites:
            row = self._row(site.name)
            words = [] if site.state == "up" else [site.state]
            if row is not None and row.cluster not in ("", site.name):
                words.append(f"read in {row.cluster}")
            seen = "" if row is None else f" {row.total:,}"
            aside = f" ({', '.join(words)})" if words else ""
            parts.append(f"{site.name}{seen}{aside}")
        return "  ".join(parts)

    def render(self) -> "Group":
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        title = f"{self.elapsed_s:.1f} s: {self.flushed:,} messages flushed in {SOURCE}"
        table = Table(title=title, title_justify="left")
        for heading in ("cluster", "continent", "state", "copies from", "one way", "consumer reads in"):
            table.add_column(heading)
        for heading in ("messages", "messages/s", "delay p50", "delay p99"):
            table.add_column(heading, justify="right")
        for site in self.sites:
            row = self._row(site.name)
            style = "" if site.state == "up" else "bold red" if "killed" in site.state else "dim"
            seen = ["", "", "", "", ""]
            if row is not None:
                delays = ["", ""] if row.p50_ms is None else [f"{row.p50_ms:.0f} ms", f"{row.p99_ms:.0f} ms"]
                seen = [row.cluster, f"{row.total:,}", f"{row.rate:,.0f}", *delays]
            way = f"{site.latency_s * 1000:.0f} ms" if site.copies_from else "produced here"
            table.add_row(site.name, _CONTINENTS[site.name], site.state, site.copies_from, way, *seen, style=style)
        return Group(table, *(Text(note) for note in self.notes))

    def _row(self, cluster: str) -> Row | None:
        return next((row for row in self.rows if row.name == cluster), None)


@dataclass(slots=True)
class Outcome:
    problems: list[str]
    seconds: float
    flushed: int
    delivered: int
    rerouted_s: float
    moved_s: float
    home_s: float
    delays_ms: dict[str, tuple[float, float]] = field(default_factory=dict)  # p50 and p99 of all, by cluster
    bytes_compared: int = 0


class Story:
    """Nobody is told anything but where its own cluster's files are: ways and refuges are found by themselves."""

    def __init__(self, folder: str, seconds: float, view: View) -> None:
        self._folder, self._seconds, self._view = folder, seconds, view
        view.every_s = 2.0
        self._path = os.path.join(folder, "world.toml")
        with open(self._path, "w", encoding="utf-8") as file:
            file.write(_WORLD)
        self._file = read_world_file(self._path)
        self._store = open_store(self._path, self._file)
        self._notes = Notes()
        self._cast = Cast(self._show)
        self._map = Map([Site(name) for name in _CONTINENTS], self._cast.rows, self._notes.lines)
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports: dict[str, tuple[int, int]] = {}  # a cluster's own, and that of the ocean before it
        self._looked_s = 0.0

    def tell(self) -> Outcome:
        wide_area = WideArea(self._latency_s)
        try:
            self._note(f"{', '.join(_CONTINENTS)} start; the stream {STREAM} is produced in {SOURCE}")
            publish(self._path, self._file, self._store)
            for name in _CONTINENTS:
                port = _free_port()
                self._ports[name] = port, wide_area.door(name, port)
                self._start_node(name)
            self._cast.start("producer", ["producer", self._at(SOURCE), STREAM, *_shards(), str(_RATE)])
            self._wait(lambda: all(map(self._has_stream, _CONTINENTS)), "the stream in every cluster")
            for name in _CONTINENTS:
                self._cast.start(name, ["consumer", self._at(name), STREAM, "demo"])
            self._wait(lambda: all(self._row(name).total for name in _CONTINENTS), "every consumer")
            # On a machine that is busy with other things nobody is ever quite at the head: the story goes on anyway.
            self._wait(lambda: max(self._behind().values()) < _RATE // 2, "the head", deadline_s=5.0, fatal=False)
            self._note(f"everybody has messages, by the tree {self._tree()}")
            for name in _CONTINENTS:
                self._cast.actors[name].delays = Delays()  # what they had to catch up with does not count
            self._watch(0.3 * self._seconds)
            delays = {name: self._percentiles(name) for name in _CONTINENTS}
            rerouted_s, moved_s = self._kill_the_hub()
            self._watch(0.3 * self._seconds)
            home_s = self._bring_it_back()
            self._note("the producer stops; the consumers read what is left")
            self._cast.stop(["producer"])
            names = list(_CONTINENTS)
            self._wait(lambda: not any(self._behind().values()), "the last messages", fatal=False)
            self._cast.stop(names)
            compared, different = self._compare()
            return Outcome(
                problems=self._cast.ledger.verdict(names) + different,
                seconds=self._notes.elapsed_s,
                flushed=self._cast.ledger.flushed_total(),
                delivered=sum(sum(seen.values()) for seen in self._cast.ledger.seen.values()),
                rerouted_s=rerouted_s,
                moved_s=moved_s,
                home_s=home_s,
                delays_ms=delays,
                bytes_compared=compared,
            )
        finally:
            self._cast.end_all()
            for node in self._nodes.values():
                node.terminate()
            for node in self._nodes.values():
                node.wait()
            wide_area.close()
            self._store.close()

    # ---- what happens

    def _kill_the_hub(self) -> tuple[float, float]:
        """Seconds until the stream comes to those behind it again, and until its own consumer reads elsewhere."""
        self._nodes[HUB].kill()
        self._nodes[HUB].wait()
        self._site(HUB).state = "killed -9"
        begin_s, seen = time.monotonic(), self._row(BEHIND).total
        self._note(f"kill -9 of {HUB}, through which Europe gets its copies")
        self._wait(lambda: load(self._store).trees[STREAM].upstream(BEHIND) not in (HUB, None), "another tree")
        self._wait(lambda: self._row(BEHIND).total > seen + _RATE // 10, f"messages in {BEHIND}")
        rerouted_s = time.monotonic() - begin_s
        self._note(f"{BEHIND} gets messages again after {rerouted_s:.1f} s: {self._tree()}")
        self._wait(lambda: self._row(HUB).cluster not in ("", HUB), f"the consumer of {HUB}")
        moved_s = time.monotonic() - begin_s
        self._note(f"the consumer of {HUB} reads in {self._row(HUB).cluster} now, from the same position on")
        return rerouted_s, moved_s

    def _bring_it_back(self) -> float:
        """Seconds until its consumer is home again."""
        begin_s = time.monotonic()
        self._start_node(HUB)
        self._note(f"{HUB} is started again, and catches up")
        self._wait(lambda: self._row(HUB).cluster == HUB, f"the consumer of {HUB} to come home")
        home_s = time.monotonic() - begin_s
        self._note(f"{HUB} is well, and its consumer is home after {home_s:.1f} s")
        return home_s

    def _start_node(self, name: str) -> None:
        port, ocean = self._ports[name]
        command = ["node", "--roles", "reader,writer,scheduler", "--world-file", self._path, "--cluster", name]
        doors = ["--listen", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{ocean}"]
        with open(os.path.join(self._folder, f"{name}.log"), "ab") as log:
            self._nodes[name] = subprocess.Popen(
                [sys.executable, "-m", "tailrace", *command, *doors], stdout=log, stderr=log, start_new_session=True
            )
        self._site(name).state = "starting"

    # ---- what is seen

    def _latency_s(self, cluster: str) -> float:
        state = load(self._store)
        upstream = state.trees[STREAM].upstream(cluster) if STREAM in state.trees else None
        link = None if upstream is None else state.world.link(upstream, cluster)
        return 0.0 if link is None else link.latency_s

    def _tree(self) -> str:
        tree = load(self._store).trees[STREAM]
        return ", ".join(f"{hop.upstream} > {hop.downstream}" for hop in tree.hops)

    def _look(self) -> None:
        state: WorldState = load(self._store)
        tree = state.trees.get(STREAM)
        for site in self._map.sites:
            if site.name in state.reports and site.state == "starting":
                site.state = "up"
            site.copies_from = "" if tree is None else tree.upstream(site.name) or ""
            link = state.world.link(site.copies_from, site.name) if site.copies_from else None
            site.latency_s = 0.0 if link is None else link.latency_s

    def _show(self) -> None:
        if time.monotonic() > self._looked_s + 0.2:
            self._looked_s = time.monotonic()
            self._look()
        self._map.elapsed_s, self._map.flushed = self._notes.elapsed_s, self._cast.ledger.flushed_total()
        self._view.show(self._map)

    def _note(self, text: str) -> None:
        self._notes.add(text)
        self._show()

    def _watch(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self._cast.listen(0.05)
            self._cast.check_alive()

    def _wait(
        self, holds: Callable[[], bool], what: str, *, deadline_s: float = _DEADLINE_S, fatal: bool = True
    ) -> None:
        end_s = time.monotonic() + deadline_s
        while not holds():
            if time.monotonic() > end_s:
                if not fatal:
                    return
                raise PeerFailed(f"the demo waited {deadline_s:g} s in vain for {what}; what was running was ended")
            self._cast.listen(0.05)
            self._cast.check_alive()
            for name, node in self._nodes.items():
                if node.poll() is not None and self._site(name).state != "killed -9":
                    raise PeerFailed(f"the process of {name} ended by itself with code {node.returncode}")

    # ---- the end

    def _compare(self) -> tuple[int, list[str]]:
        """How many bytes each cluster has, and where they differ from those of the source."""
        true = _digests(self._at(SOURCE))
        different = []
        for name in _CONTINENTS:
            found = _digests(self._at(name))
            end_s = time.monotonic() + _DEADLINE_S / 4
            while found != true and time.monotonic() < end_s:  # a copy of an empty last file may still be on its way
                time.sleep(0.05)
                found = _digests(self._at(name))
            different += [
                f"{name}: {file} differs" for file in sorted({*true, *found}) if true.get(file) != found.get(file)
            ]
        return sum(size for size, _ in true.values()), different

    def _percentiles(self, name: str) -> tuple[float, float]:
        delays = self._cast.actors[name].delays
        return delays.percentile_ms(50), delays.percentile_ms(99)

    def _behind(self) -> dict[str, int]:
        return self._cast.ledger.behind(list(_CONTINENTS))

    def _at(self, cluster: str) -> str:
        return os.path.join(self._folder, cluster)

    def _has_stream(self, cluster: str) -> bool:
        return os.path.exists(os.path.join(self._at(cluster), "streams", STREAM, f"{SHARDS - 1:05d}"))

    def _row(self, name: str) -> Row:
        return self._cast.actors[name].row

    def _site(self, name: str) -> Site:
        return next(site for site in self._map.sites if site.name == name)


def _digests(folder: str) -> dict[str, tuple[int, str]]:
    """Of every message file: its size and a digest of its bytes."""
    found = {}
    for shard in range(SHARDS):
        shard_folder = os.path.join(folder, "streams", STREAM, f"{shard:05d}")
        for name in os.listdir(shard_folder):
            if not name.startswith("."):
                with open(os.path.join(shard_folder, name), "rb") as file:
                    content = file.read()
                found[f"{shard:05d}/{name}"] = len(content), hashlib.sha256(content).hexdigest()
    return found


def _shards() -> list[str]:
    return [",".join(map(str, range(SHARDS)))]


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port


def tell(folder: str, seconds: float, view: View) -> Told:
    outcome = Story(folder, seconds, view).tell()
    delays = ", ".join(f"{name} {p50:.0f} ms" for name, (p50, _) in outcome.delays_ms.items())
    return Told(
        problems=outcome.problems,
        closing=[
            "",
            f"{outcome.flushed:,} messages flushed in {SOURCE}, {outcome.delivered:,} delivered in four clusters",
            f"from producer to consumer, p50: {delays}",
            f"{HUB} killed: {BEHIND} got messages by another way after {outcome.rerouted_s:.1f} s",
            f"the consumer of {HUB} read elsewhere after {outcome.moved_s:.1f} s, and was home {outcome.home_s:.1f} s "
            "after the restart",
            f"compared: {outcome.bytes_compared:,} bytes in each cluster",
        ],
        verdict="every message reached every cluster, in order, none missing; all files are equal byte by byte.",
        figures=asdict(outcome),
    )


CHAPTER = Chapter("clusters", "four clusters on two continents, an ocean between them, and the death of one", tell)
