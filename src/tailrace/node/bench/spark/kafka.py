"""Spark's Kafka source: its connector, fetched by Maven, and a real broker with the same messages."""

from collections.abc import Sequence
from typing import Any

from ..fanout.peers.install import Installer
from ..fanout.peers.kafka import Kafka
from ..peers.server import PeerFailed, PeerMissing

# Of the connector and of its part for tokens: what belongs to our Spark; or else older ones, which run there too.
# Without what they say they need: Spark has the rest, and their list names a repository that not everybody reaches.
_VERSIONS = [("4.3.0", "4.3.0"), ("4.2.0", "4.0.0")]
_ASK_S = 60.0
_SEND_AT_ONCE = 10_000


def connector_jars(installer: Installer) -> list[str]:
    problems = []
    for connector, tokens in _VERSIONS:
        parts = [
            ("org.apache.spark", "spark-sql-kafka-0-10_2.13", connector),
            ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", tokens),
            ("org.apache.kafka", "kafka-clients", "3.9.1"),
            ("org.apache.commons", "commons-pool2", "2.12.0"),
        ]
        try:
            return installer.jars_alone("spark-kafka", parts)
        except PeerMissing as seen:
            problems.append(str(seen))
    raise PeerMissing("; ".join(problems))


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
