"""`tailrace up` for real: coordination on SQLite and on etcd, a world that changes while it runs, certificates."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from up_world import Up

import tailrace
from conftest import wait_until
from etcd_cluster import EtcdCluster, require_etcd
from tailrace.config import CoordinationConfig, TlsConfig
from tailrace.copytree import load
from tailrace.errors import Denied, TailraceError, Unreachable
from tailrace.node.cluster_registry import ClusterRegistry
from tailrace.node.deployed import open_store
from tailrace.node.world_file import parse_world_file, read_world_file, write_world_file
from tailrace.wire import CopyPeer, Report
from wire.certificates import Authority

BEGIN = """
[tariffs.world]
price_per_gb = 0.01
[clusters.a]
sizes = { cache = 0 }
[clusters.b]
sizes = { cache = 0 }
[streams.s]
source = "a"
destinations = ["b"]
"""
LATER = (
    BEGIN.replace('["b"]', '["*"]').replace("[streams.s]\n", "[streams.s]\njoining_bytes_per_s = 5e6\n")
    + """
[clusters.c]
sizes = { cache = 0 }
fan_out_max = 7
[streams.t]
source = "b"
"""
)


@pytest.fixture(params=["sqlite", "etcd"])
def coordination(request: pytest.FixtureRequest) -> Iterator[CoordinationConfig]:
    if request.param == "sqlite":
        yield CoordinationConfig()
        return
    require_etcd()
    etcd = EtcdCluster(members=1)
    try:
        yield etcd.config()
    finally:
        etcd.stop()


def written(text: str, coordination: CoordinationConfig) -> str:
    return write_world_file(dataclasses.replace(parse_world_file(text), coordination=coordination))


def send(folder: Path, stream: str, value: bytes) -> None:
    with tailrace.open(folder) as world, world.producer(stream) as producer:
        producer.send(value)


def arrives(folder: Path, stream: str, values: list[bytes]) -> bool:
    with tailrace.open(folder) as world:
        if stream not in world.streams():
            return False
        with world.consumer(stream, start="earliest", follow=False) as consumer:
            return [message.value for batch in consumer for message in batch] == values


def test_a_world_takes_streams_destinations_clusters_and_limits_while_it_runs(
    tmp_path: Path, coordination: CoordinationConfig
) -> None:
    with Up(tmp_path, written(BEGIN, coordination), "--together") as up:
        wait_until(lambda: len(up.processes) == 2, "the processes")
        pids = {name: one["pid"] for name, one in up.processes.items()}
        send(tmp_path / "a", "s", b"1")
        wait_until(lambda: arrives(tmp_path / "b", "s", [b"1"]), "the copy in b")
        up.path.write_text(written(LATER, coordination))
        wait_until(lambda: arrives(tmp_path / "c", "s", [b"1"]), "the copy in the new cluster")
        send(tmp_path / "b", "t", b"2")
        for name in "ac":
            wait_until(lambda name=name: arrives(tmp_path / name, "t", [b"2"]), f"the new stream in {name}")  # type: ignore[misc]
        with open_store(str(up.path), read_world_file(up.path)) as store:
            state = load(store)
        assert state.world.cluster("c").fan_out_max == 7
        assert state.world.demand("s").joining_bytes_per_s == 5e6
        assert {name: one["pid"] for name, one in up.processes.items() if name in pids} == pids  # nobody was restarted
        # A cluster that leaves: its process ends, the others go on.
        up.path.write_text(written(BEGIN, coordination))
        wait_until(lambda: set(up.processes) == set(pids), "the process of c to end")
        send(tmp_path / "a", "s", b"3")
        wait_until(lambda: arrives(tmp_path / "b", "s", [b"1", b"3"]), "the next message in b")
    assert (tmp_path / "coordination.db").exists() == (not coordination.etcd)


TLS = """
[tls]
certificate = "certs/{cluster}.pem"
key = "certs/{cluster}.key"
roots = "certs/{cluster}-roots.pem"
""" + BEGIN.replace('["b"]', '["b", "stranger"]')


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """a and b trust one authority; the stranger has another, and trusts it alone."""
    folder = tmp_path / "certs"
    folder.mkdir()
    ours, others = Authority(folder, "ours"), Authority(folder, "others")
    for name, authority in (("a", ours), ("b", ours), ("stranger", others)):
        authority.issue(f"spiffe://test/{name}", "127.0.0.1", "localhost", file=name)
        (folder / f"{name}-roots.pem").write_bytes(authority.roots.read_bytes())
    return folder


def test_clusters_that_trust_each_other_copy_and_strangers_are_told_why_not(tmp_path: Path, certificates: Path) -> None:
    world = TLS + "[clusters.stranger]\nsizes = { cache = 0 }\n"
    with Up(tmp_path, world, "--together") as up:
        wait_until(lambda: len(up.processes) == 3, "the processes")
        send(tmp_path / "a", "s", b"1")
        wait_until(lambda: arrives(tmp_path / "b", "s", [b"1"]), "the copy, over TLS")
        with open_store(str(up.path), read_world_file(up.path)) as store:
            doors = ClusterRegistry(store).doors("b", "writer")
        (address,) = doors.values()
        assert address.startswith("127.0.0.1:")
        log = tmp_path / "logs" / "a-node-0.log"
        wait_until(lambda: "stranger cannot be sent to" in log.read_text(), "the complaint")
        assert "look at tls.roots and the certificates" in log.read_text()
        assert not (tmp_path / "stranger" / "streams" / "s").exists()
        file = read_world_file(up.path)
        assert ask(address, None) == (Unreachable, True)  # plaintext: nobody answers; it asks whether both use TLS
        assert ask(address, file.tls_of("stranger", str(tmp_path))) == (Denied, False)


def ask(address: str, tls: TlsConfig | None) -> tuple[type[TailraceError], bool]:
    """What a caller with these certificates is told."""
    with CopyPeer(address, tls=tls) as peer, pytest.raises(TailraceError) as caught:
        for _ in peer.work(iter([Report(reader="r", running=())])):
            pass
    return caught.type, "do both ends use TLS" in str(caught.value)


def test_certificates_that_are_not_there_are_named_before_anything_starts(tmp_path: Path) -> None:
    up = Up(tmp_path, TLS.replace(', "stranger"', ""))
    assert up.process.wait(60) == 2
    up._thread.join()
    assert up.process.stdout is not None
    up.process.stdout.close()
    assert not (tmp_path / "logs").exists() or not list((tmp_path / "logs").iterdir())


def test_a_file_with_certificates_is_written_as_it_was_read() -> None:
    file = parse_world_file(TLS.replace(', "stranger"', ""))
    assert parse_world_file(write_world_file(file)) == file
    found = file.tls_of("a", "/w")
    assert found is not None
    assert found.certificate == "/w/certs/a.pem"
