"""When a consumer leaves its cluster: by a clock that obeys, on files that are copied by hand."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

import tailrace
from tailrace.copytree import WorldState
from tailrace.copytree.routing import ClusterReported
from tailrace.errors import FileProblem
from tailrace.files import Files, PosixFiles
from tailrace.model import Cluster, CopyTree, Demand, Hop, Tariff, WorldMap
from tailrace.node.membership import Membership
from tailrace.node.neighbours import Moving, Neighbours
from tailrace.streams import ShardTail
from tailrace.testing import ManualClock

PLACE = ("s", 0)
STEP_S = 0.3


def state(*well: str) -> WorldState:
    """Those who say that they are well; the others say nothing."""
    world = WorldMap(
        clusters=(Cluster(name="a"), Cluster(name="b")),
        tariffs=(Tariff(scope="world"),),
        demands=(Demand(stream="s", source="a"),),
    )
    tree = CopyTree(stream="s", source="a", hops=(Hop(upstream="a", downstream="b"),))
    return WorldState(world, trees={"s": tree}, reports={name: ClusterReported(name) for name in well})


@dataclass
class Known:
    """Neighbours that are told, not found."""

    root: Path
    state: WorldState
    membership: Membership

    def files(self, cluster: str) -> Files | None:
        folder = self.root / cluster
        return PosixFiles(str(folder)) if folder.is_dir() else None


class Scene:
    """b is a copy of a, and a consumer of b has read all of it."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, ManualClock()
        self.produce()
        self.copy()
        self.known = Known(root, state("a", "b"), Membership("b", "world.toml"))
        home = PosixFiles(str(root / "b"))
        self.tail = self.at_home("s", 0, self.end("b"))
        self.moving = Moving(cast(Neighbours, self.known), home, self.at_home, [PLACE], self.clock, in_place=False)

    def at_home(self, stream: str, shard: int, position: int) -> ShardTail:
        return ShardTail(PosixFiles(str(self.root / "b")), self.clock, stream, shard, position)

    def produce(self) -> None:
        with tailrace.open(self.root / "a") as world, world.producer("s") as producer:
            producer.send(b"x" * 1000)

    def copy(self) -> None:
        shutil.copytree(self.root / "a" / "streams", self.root / "b" / "streams", dirs_exist_ok=True)

    def end(self, cluster: str) -> int:
        with tailrace.open(self.root / cluster) as world:
            return world.stream_status("s")[0].end

    def read(self) -> None:
        while self.tail.poll(1 << 20) is not None:
            pass

    def run(self, seconds: float) -> str:
        """Where it reads after so long."""
        for _ in range(round(seconds / STEP_S)):
            self.clock.advance(STEP_S)
            if self.moving.is_due():
                for tail in self.moving.look({PLACE: self.tail.position}).values():
                    self.tail.close()
                    self.tail = tail
            self.read()
        return self.moving.clusters()["s"]


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    made.tail.close()


def test_a_cluster_that_says_nothing_but_lacks_nothing_is_not_left(scene: Scene) -> None:
    scene.known.state = state("a")
    assert scene.run(30.0) == "b"


def test_nor_is_one_that_is_behind_and_says_that_it_is_well(scene: Scene) -> None:
    scene.produce()
    assert scene.run(30.0) == "b"


def test_one_that_lacks_something_is_left_after_a_while_and_come_back_to(scene: Scene) -> None:
    scene.known.state = state("a")
    scene.produce()
    assert scene.run(1.5) == "b"
    assert scene.run(3.0) == "a"
    assert scene.tail.position == scene.end("a") > scene.end("b")  # it has read what home lacks
    scene.known.state = state("a", "b")
    assert scene.run(20.0) == "a"  # home says that it is well, and is behind
    scene.copy()
    assert scene.run(3.0) == "a"
    assert scene.run(6.0) == "b"
    before = scene.tail.position
    scene.produce()
    scene.copy()
    scene.run(1.0)
    assert scene.tail.position == scene.end("a") > before


def test_files_that_cannot_be_read_are_left_at_once_if_there_are_others(scene: Scene) -> None:
    assert scene.moving.failed(PLACE, FileProblem("gone"))
    assert scene.run(STEP_S) == "a"
    shutil.rmtree(scene.root / "a")
    assert scene.run(STEP_S) == "b"


def test_with_nowhere_to_go_the_problem_is_the_consumers(scene: Scene) -> None:
    scene.known.state = state("b")
    assert not scene.moving.failed(PLACE, FileProblem("gone"))
