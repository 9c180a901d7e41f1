"""Which process of a cluster is asked: whoever answers, without being told who that is."""

from collections.abc import Iterator

import pytest

from tailrace.errors import Busy, Denied, Unreachable, WireProblem
from tailrace.node.any_door import BUSY_S, AnyDoor
from tailrace.testing import ManualClock


class Peer:
    def __init__(self, name: str) -> None:
        self.name, self.closed, self.asked = name, False, 0
        self.problems: list[WireProblem] = []

    def who(self) -> str:
        self.asked += 1
        if self.problems:
            raise self.problems.pop()
        return self.name

    def close(self) -> None:
        self.closed = True


class Cluster:
    def __init__(self) -> None:
        self.addresses = ["one", "two", "three"]
        self.peers: dict[str, Peer] = {}
        self.clock = ManualClock()
        self.door = AnyDoor("far", lambda: self.addresses, self.dial, self.clock)

    def dial(self, address: str) -> Peer:
        self.peers[address] = Peer(address)
        return self.peers[address]

    def ask(self) -> str:
        return self.door.ask(Peer.who)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.door.close()


def test_the_first_one_is_asked_until_it_does_not_answer(cluster: Cluster) -> None:
    assert [cluster.ask(), cluster.ask()] == ["one", "one"]
    cluster.peers["one"].problems = [Unreachable("gone")]
    assert [cluster.ask(), cluster.ask()] == ["two", "two"]
    cluster.peers["two"].problems = [Denied("who are you?")]
    assert cluster.ask() == "three"
    cluster.peers["three"].problems = [Unreachable("gone")]
    assert cluster.ask() == "one"  # who failed first is tried first


def test_when_nobody_answers_the_first_problem_is_told(cluster: Cluster) -> None:
    cluster.ask()
    for name, peer in cluster.peers.items():
        peer.problems = [Unreachable(f"{name} is gone")]
    with pytest.raises(Unreachable, match="one is gone"):
        cluster.ask()
    assert cluster.ask() == "one"


def test_who_is_busy_is_asked_again_but_not_forever(cluster: Cluster) -> None:
    cluster.addresses = ["one", "two"]
    cluster.ask()
    cluster.peers["one"].problems = [Busy("too many")] * 3
    cluster.peers["two"].problems = [Unreachable("gone")] * 3
    assert cluster.ask() == "one"
    begun_s = cluster.clock.monotonic_s()
    cluster.peers["one"].problems = [Busy("too many")] * 1000
    cluster.peers["two"].problems = [Unreachable("gone")] * 1000
    with pytest.raises(Busy):
        cluster.ask()
    assert cluster.clock.monotonic_s() - begun_s <= BUSY_S
    assert cluster.peers["one"].asked < 30


def test_processes_come_and_go(cluster: Cluster) -> None:
    cluster.ask()
    gone = cluster.peers["one"]
    cluster.addresses = ["four"]
    assert cluster.ask() == "four"
    assert gone.closed
    cluster.addresses = []
    with pytest.raises(Unreachable, match="is it up"):
        cluster.ask()


def test_after_close_nobody_is_called(cluster: Cluster) -> None:
    cluster.ask()
    cluster.door.close()
    assert all(peer.closed for peer in cluster.peers.values())
    with pytest.raises(Unreachable):
        cluster.ask()
