"""Two hosts that share nothing but the network and the world's store: consumers of a dead cluster read through the
processes of another, whose folder is not on their host."""

from collections.abc import Callable
from pathlib import Path

import pytest
from test_layers_kills import STREAM, Following
from test_moving_consumers import Node, all_end, consumer_of
from up_world import Trickle

import tailrace
from conftest import wait_until
from tailrace.node.deployed import open_store, publish
from tailrace.node.world_file import read_world_file
from wire.certificates import Authority

WORLD = """
[tariffs.world]
price_per_gb = 0.01
[clusters.a]
[clusters.b]
[tls]
certificate = "{certificates}/{{cluster}}.pem"
key = "{certificates}/{{cluster}}.key"
roots = "{certificates}/authority.pem"
[streams.s]
source = "a"
[streams.s.settings]
file_bytes = 300000
"""


@pytest.fixture
def hosts(tmp_path: Path) -> dict[str, Path]:
    """The folder of each host, with a world's file; only the store is common."""
    certificates = tmp_path / "certificates"
    certificates.mkdir()
    authority = Authority(certificates)
    found = {}
    for cluster in "ab":
        authority.issue("127.0.0.1", cluster, file=cluster)
        found[cluster] = tmp_path / f"host-{cluster}"
        found[cluster].mkdir()
        (found[cluster] / "world.toml").write_text(WORLD.format(certificates=certificates))
    path = found["a"] / "world.toml"
    file = read_world_file(path)
    with open_store(str(path), file) as store:
        publish(str(path), file, store)
    (found["b"] / "coordination.db").symlink_to(found["a"] / "coordination.db")
    (found["b"] / "a" / "streams").mkdir(parents=True)  # only called like the cluster: nobody has signed it
    return found


def test_consumers_go_on_through_the_network_and_come_home(hosts: dict[str, Path]) -> None:
    listen = ("--listen", "127.0.0.1:0")
    nodes = {name: Node(hosts[name] / "world.toml", name, *listen) for name in "ab"}
    nodes["another of a"] = Node(hosts["a"] / "world.toml", "a", *listen, "--number", "1")
    producing = Trickle(hosts["a"] / "a")
    following: list[Following] = []
    try:
        wait_until((hosts["b"] / "b" / "streams" / STREAM / "00000").exists, "the copy")
        following.append(Following(hosts["b"] / "b"))
        (one,) = following

        def holds(condition: Callable[[], object], what: str) -> None:
            wait_until(lambda: one.problem or condition(), what)
            assert one.problem is None, one.problem

        def goes_on() -> None:
            goal = producing.durable + 100
            holds(lambda: one.count >= goal, "the consumer to be at the head")

        goes_on()
        assert consumer_of(one).clusters == {STREAM: "b"}
        nodes.pop("b").kill()
        goes_on()  # what b has not
        assert consumer_of(one).clusters == {STREAM: "a"}
        nodes.pop("a").kill()  # of two processes that can be asked, one is left
        goes_on()
        nodes["a"] = Node(hosts["a"] / "world.toml", "a", *listen)
        nodes.pop("another of a").kill()
        goes_on()  # … and then the other one, at another address
        with tailrace.open(hosts["b"] / "b") as behind:
            assert behind.stream_status(STREAM)[0].messages < one.count
        nodes["b"] = Node(hosts["b"] / "world.toml", "b", *listen)
        holds(lambda: consumer_of(one).clusters == {STREAM: "b"}, "it to come home")
        goes_on()
    finally:
        end = all_end(producing, following, nodes)
    assert [one.count for one in following] == [end]  # each once, in order: it checks every number
    assert [path.name for path in (hosts["b"] / "a").rglob("*")] == ["streams"]
