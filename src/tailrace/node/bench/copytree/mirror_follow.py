"""A process that follows a Kafka topic and tells when it had how many messages: `COUNT TIME` a line, by the machine's
clock."""

import sys
import time
from typing import Any

from ..fanout.peers.install import Installer

_AT_ONCE = 2000
_WAIT_S = 0.002
_ASK_S, _LOOK_S = 30.0, 0.05


def main(servers: str, topic: str, peers_folder: str) -> None:
    installer = Installer(peers_folder, fetch=False, progress=lambda line: None)
    library: Any = installer.module("confluent_kafka", "confluent-kafka")
    consumer = library.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "follower",
            "enable.auto.commit": False,
            "log_level": 2,
        }
    )
    print("ready", flush=True)
    while topic not in consumer.list_topics(timeout=_ASK_S).topics:  # the mirror makes it
        time.sleep(_LOOK_S)
    consumer.assign([library.TopicPartition(topic, 0, 0)])
    count = 0
    while True:
        found = [one for one in consumer.consume(_AT_ONCE, _WAIT_S) if not one.error()]
        if found:
            count += len(found)
            print(count, f"{time.monotonic():.6f}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
