"""Who may do what with a pipeline whose state is in etcd: users by their certificates, roles by prefixes of keys."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import tailrace
from etcd_cluster import EtcdCluster, require_etcd
from tailrace.coordination import Coordination, EtcdCoordination
from tailrace.env import SystemClock
from tailrace.errors import CoordinationError
from tailrace.files import PosixFiles
from tailrace.pipeline import Pipeline, parquet, stream
from tailrace.pipeline.logs import StreamLogs
from tailrace.pipeline.office import Office

PREFIX = "/world/"


@pytest.fixture(scope="module")
def members() -> Iterator[EtcdCluster]:
    """With the users `operator` (all of ad-stats), `viewer` (looks at it) and `stranger` (all of another pipeline)."""
    require_etcd()
    made = EtcdCluster(members=1)
    made.control("user", "add", "root", "--no-password")
    made.control("user", "grant-role", "root", "root")
    for user, kind, pipeline in (
        ("operator", "readwrite", "ad-stats"),
        ("viewer", "read", "ad-stats"),
        ("stranger", "readwrite", "other"),
    ):
        made.control("role", "add", user)
        made.control("role", "grant-permission", user, "--prefix=true", kind, f"{PREFIX}pipelines/{pipeline}/")
        made.control("user", "add", user, "--no-password")
        made.control("user", "grant-role", user, user)
    made.control("auth", "enable")
    yield made
    made.stop()


def store(members: EtcdCluster, user: str) -> Coordination:
    tls = members.authority.issue(f"spiffe://test/{user}", file=user, common_name=user)
    return EtcdCoordination(members.config(tls=tls, prefix=PREFIX))


def test_a_pipeline_runs_and_is_looked_at_and_changed_by_those_who_may(members: EtcdCluster, tmp_path: Path) -> None:
    with tailrace.open(tmp_path / "w") as world, world.producer("clicks") as producer:
        producer.send_many([b"%d" % number for number in range(500)])
    root, logs = str(tmp_path / "w"), StreamLogs(PosixFiles(tmp_path / "w"), SystemClock())
    pipeline = Pipeline(
        "ad-stats",
        source=stream("clicks"),
        transform=lambda table: table,
        sink=parquet(tmp_path / "out"),
        unit_bytes=200,
    )
    with store(members, "operator") as its:
        runner = pipeline.runner(root, [its], worker=pipeline.worker(root, "inline"))
        runner.run(until_done=True)
        assert runner.figures()["messages"] == 500
    with store(members, "viewer") as its:
        office = Office("ad-stats", [its], logs, SystemClock())
        assert office.status()["usage"]["total"]["messages"] == 500
        for change in (
            lambda: office.state.drain(True),
            lambda: office.state.declare("eu", out=True),
            lambda: office.state.register("eu", 1.0, 10.0),
            lambda: office.state.clear(),
            lambda: office.state.forget(),
        ):
            with pytest.raises(CoordinationError, match="ask for a grant") as refused:
                change()
            assert refused.value.took_effect is False
        told = office.status()
        assert (told["draining"], told["usage"]["total"]["messages"]) == (False, 500)
    with store(members, "stranger") as its, pytest.raises(CoordinationError, match="ask for a grant"):
        Office("ad-stats", [its], logs, SystemClock())
    with store(members, "operator") as its:
        office = Office("ad-stats", [its], logs, SystemClock())
        office.state.drain(True)
        assert office.status()["draining"]
