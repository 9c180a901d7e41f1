"""Spark's Kafka source: its connector, fetched by Maven, and a real broker with the same messages."""

import os
from collections.abc import Sequence
from typing import Any

from ..fanout.peers.install import Installer
from ..fanout.peers.kafka import Kafka
from ..peers.server import PeerFailed

_CONNECTOR = ("org.apache.spark", "spark-sql-kafka-0-10_2.13")
_ASK_S = 60.0
_SEND_AT_ONCE = 10_000


def connector_jars(installer: Installer, spark_version: str, spark_jars: str) -> list[str]:
    """Those that Spark does not have already."""
    have = {_artifact(name) for name in os.listdir(spark_jars)}
    return [
        path for path in installer.jars(*_CONNECTOR, spark_version) if _artifact(os.path.basename(path)) not in have
    ]


def _artifact(jar: str) -> str:
    """
    >>> _artifact("kafka-clients-4.1.0.jar")
    'kafka-clients'
    """
    words = jar.removesuffix(".jar").split("-")
    return "-".join(word for word in words if not word[:1].isdigit())


class Broker(Kafka):
    @property
    def servers(self) -> str:
        return str(self._common["bootstrap.servers"])

    def fill(self, topic: str, values: Sequence[bytes], partitions: int) -> None:
        library: Any = self._library
        admin = library.admin.AdminClient(self._common)
        new = library.admin.NewTopic(topic, num_partitions=partitions, replication_factor=1)
        admin.create_topics([new], request_timeout=_ASK_S)[topic].result(_ASK_S)
        producer = library.Producer({**self._common, "linger.ms": 50, "batch.size": 1_000_000, "acks": "1"})
        for at in range(0, len(values), _SEND_AT_ONCE):
            left: list[dict[str, Any]] = [{"value": value} for value in values[at : at + _SEND_AT_ONCE]]
            while left:
                producer.produce_batch(topic, left)
                left = [{"value": one["value"]} for one in left if "_error" in one]
                producer.poll(0.01 if left else 0)
        if producer.flush(_ASK_S):
            raise PeerFailed(f"Kafka: not all of {len(values)} messages arrived in {_ASK_S:g} s")
