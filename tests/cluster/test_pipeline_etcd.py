"""A pipeline's state on a real etcd cluster: three sites at work, members and whole sites killed at any moment."""

import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from pipeline_sites import Sites

from conftest import wait_until
from etcd_cluster import EtcdCluster, require_etcd
from tailrace.config import CoordinationConfig
from tailrace.coordination import EtcdCoordination
from tailrace.errors import CoordinationError
from tailrace.pipeline.spark.place import WorldFolder
from tailrace.streams import Checkpoints


@pytest.fixture
def members() -> Iterator[EtcdCluster]:
    require_etcd()
    made = EtcdCluster(secure=False)
    yield made
    made.stop()


@pytest.fixture
def sites(tmp_path: Path, members: EtcdCluster) -> Iterator[Sites]:
    made = Sites(tmp_path, members.endpoints)
    yield made
    made.end()


def is_back(members: EtcdCluster, number: int) -> bool:
    try:
        with EtcdCoordination(members.config(etcd=(members.endpoints[number],), deadline_s=1.0)) as store:
            return store.revision() >= 0
    except CoordinationError:
        return False


def test_three_sites_count_every_message_once_though_members_and_a_site_die(sites: Sites, members: EtcdCluster) -> None:
    dice = random.Random(4)
    sites.produce(3000)
    shutil.copytree(sites.folder / "us", sites.folder / "asia")  # which gets no more than this
    children = {site: sites.start(site, "asia" if site == "asia" else "us") for site in ("us", "eu", "asia")}
    wait_until(lambda: sites.outputs() > 0, "the sites to begin", 120)
    for number in dice.sample(range(3), 2):
        target = sites.outputs() + dice.randint(1, 3)
        sites.produce(3000)
        members.signal(number, signal.SIGKILL)
        wait_until(lambda target=target: sites.outputs() >= target, "outputs with two members", 120)  # type: ignore[misc]
        members.start(number)
        wait_until(lambda number=number: is_back(members, number), "the member to be back", 120)  # type: ignore[misc]
    children["eu"].kill()  # a whole site …
    target = sites.outputs() + 2
    sites.produce(3000)
    wait_until(lambda: sites.outputs() >= target, "the others to go on", 120)
    children["eu"] = sites.start("eu")  # … and back
    wait_until(lambda: sites.counted() == sites.sent, "all to be counted", 120)
    told = sites.tell("status", "counts")
    assert (told["backlog_bytes"], told["bad_ranges"]) == (0, 0)
    for child in children.values():
        sites.stop(child)
    sites.check()


def test_a_query_tells_how_far_it_is_where_the_world_looks(tmp_path: Path, members: EtcdCluster) -> None:
    """A world on etcd: the checkpoint of a Spark query is there, and not in a file beside it."""
    (tmp_path / "tailrace.toml").write_text(f"[coordination]\netcd = {list(members.endpoints)}\n")
    folder = WorldFolder(str(tmp_path))
    folder.checkpoints.declare(("clicks", "1"), "query", {0: 7})
    with EtcdCoordination(CoordinationConfig(etcd=members.endpoints)) as store:
        assert Checkpoints(store).load_all(("clicks", "1")) == {"query": {0: 7}}
    assert not (tmp_path / "coordination.db").exists()
