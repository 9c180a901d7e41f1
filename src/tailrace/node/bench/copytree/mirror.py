"""The peer: two Kafka brokers and MirrorMaker 2 between them, as its manual says to run it, on this machine.

A backlog lies in the near broker before the mirror starts: what it carries is counted from its first byte to its last
at the far one. Then messages at a constant rate; followers at both brokers say when they had each. Nobody waits for the
disk: that is how Kafka is run.
"""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..fanout.peers.install import Installer
from ..fanout.peers.kafka import VERSION, Kafka, _java
from ..peers.server import Address, PeerFailed, Server
from .world import Follower, Process, wait_for

_TOPIC, _BACKLOG = "bench", "backlog"
_START_S = 180.0  # three Java programs, one after the other
_TICK_S = 0.01
_MB = 1e6
_FOLLOW = "tailrace.node.bench.copytree.mirror_follow"


class _Broker(Kafka):
    @property
    def servers(self) -> str:
        return str(self._common["bootstrap.servers"])

    def producer(self) -> Any:
        bounds = {"queue.buffering.max.kbytes": 256 << 10, "batch.size": 1_000_000, "message.max.bytes": 2_000_000}
        return self._library.Producer({**self._common, **bounds, "linger.ms": 0, "acks": "1"})


def measure(
    folder: str, peers_folder: str, *, backlog_bytes: int, seconds: float, progress: Callable[[str], None], fetch: bool
) -> dict[str, float]:
    """PeerMissing: it cannot be had; PeerFailed: it did not do its work in time."""
    installer = Installer(peers_folder, fetch=fetch, progress=progress)
    jars = installer.jars("org.apache.kafka", "connect-mirror", VERSION)
    progress(f"Kafka and MirrorMaker {VERSION}: a backlog of {backlog_bytes >> 20} MiB, then a constant rate")
    brokers: list[_Broker] = []
    running: list[Server | Process] = []
    try:
        for name in ("near", "far"):
            os.makedirs(place := os.path.join(folder, name))
            brokers.append(_Broker(place, installer))
        near, far = brokers
        for topic in (_TOPIC, _BACKLOG):
            near.make(topic, synced=False)
        count = _fill(near, backlog_bytes)
        mirror = Server(lambda: _mirror(folder, installer, jars, near, far), os.path.join(folder, "mirror.log"))
        running.append(mirror)
        carried = Follower(far.servers, _BACKLOG, peers_folder, module=_FOLLOW)
        running.append(carried)
        first_s = wait_for(lambda: carried.position() > 0, "MirrorMaker to begin", _START_S)
        cpu_s, already = _cpu_s(mirror, near, far), carried.position()
        end_s = wait_for(lambda: carried.position() >= count, "MirrorMaker to copy the backlog", _START_S)
        cpu_s = _cpu_s(mirror, near, far) - cpu_s
        copied = (count - already) * (backlog_bytes / count)
        first, last = (Follower(one.servers, _TOPIC, peers_folder, module=_FOLLOW) for one in brokers)
        running += [first, last]
        return {
            **_hop(near, first, last, seconds),
            "pair_mb_per_s": copied / max(end_s - first_s, 1e-9) / _MB,
            "cpu_s_per_gb": cpu_s / (copied / 1e9),
        }
    finally:
        for one in (*reversed(running), *brokers):
            one.close()


def _fill(broker: _Broker, size: int) -> int:
    producer, message = broker.producer(), os.urandom(16 << 10)
    count = size // len(message)
    for _ in range(count):
        while True:
            try:
                producer.produce(_BACKLOG, message)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(_START_S):
        raise PeerFailed(f"Kafka: the backlog did not arrive in {_START_S:g} s")
    return count


def _hop(near: _Broker, first: Follower, last: Follower, seconds: float) -> dict[str, float]:
    """Until the mirror has found the topic, then for so long."""
    producer, message = near.producer(), os.urandom(1024)
    sent = 0

    def send(count: int) -> None:
        nonlocal sent
        producer.produce_batch(_TOPIC, [{"value": message} for _ in range(count)])
        producer.poll(0)
        sent += count

    def pour(limit_s: float, until: Callable[[], bool] = lambda: False) -> None:
        begin_s, done, tick = time.monotonic(), 0.0, 0
        while (now_s := time.monotonic()) < begin_s + limit_s and not until():
            due = (now_s - begin_s) * 20 * _MB
            send(max(1, round((due - done) / len(message))))
            done = max(done, due)
            tick += 1
            time.sleep(max(0.0, begin_s + tick * _TICK_S - time.monotonic()))

    send(1)
    wait_for(lambda: last.position() > 0, "the mirror to find the topic", _START_S)
    pour(2.0)
    begin = sent
    pour(seconds)
    producer.flush(_START_S)
    wait_for(lambda: min(first.position(), last.position()) >= sent, "the last messages", _START_S)
    numbers = range(begin, sent, max(1, (sent - begin) // 5000))
    added_ms = sorted((last.when(number + 1) - first.when(number + 1)) * 1000 for number in numbers)
    return {
        "hop_p50_ms": added_ms[len(added_ms) // 2],
        "hop_p99_ms": added_ms[len(added_ms) * 99 // 100],
        "hop_load_mb_per_s": (sent - begin) * len(message) / seconds / _MB,
    }


def _mirror(
    folder: str, installer: Installer, jars: Sequence[str], near: _Broker, far: _Broker
) -> tuple[Sequence[str], Sequence[Address]]:
    settings = {
        "clusters": "near, far",
        "near.bootstrap.servers": near.servers,
        "far.bootstrap.servers": far.servers,
        "near->far.enabled": "true",
        "near->far.topics": f"{_TOPIC}, {_BACKLOG}",
        "far->near.enabled": "false",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        "replication.factor": "1",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
        "sync.topic.acls.enabled": "false",
        "refresh.topics.interval.seconds": "5",
        **{
            f"{name}.replication.factor": "1"
            for name in (
                "checkpoints.topic",
                "heartbeats.topic",
                "offset-syncs.topic",
                "offset.storage",
                "status.storage",
                "config.storage",
            )
        },
    }
    path = os.path.join(folder, "mirror.properties")
    with open(path, "w") as file:
        file.writelines(f"{name}={value}\n" for name, value in settings.items())
    program = "org.apache.kafka.connect.mirror.MirrorMaker"
    return [_java(installer), "-Xms256m", "-Xmx1g", "-cp", ":".join(jars), program, path], []


def _cpu_s(mirror: Server, *brokers: _Broker) -> float:
    return mirror.cpu_s() + sum(broker.server_cpu_s() for broker in brokers)
