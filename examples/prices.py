"""Produce a few prices, follow them as messages and as Arrow.

# > 3 prices, newest of sku-1: b'9.49'
# > rows by shard: 3
"""

import tailrace

with tailrace.open("prices-world") as world:
    with world.producer("prices", shards=4) as producer:
        producer.send(b"9.99", key=b"sku-1")
        producer.send(b"12.50", key=b"sku-2")
        producer.send(b"9.49", key=b"sku-1")

    newest: dict[bytes | None, bytes | None] = {}
    count = 0
    for batch in world.consumer("prices", start="earliest", follow=False):
        for message in batch:
            newest[message.key] = message.value
            count += 1
    print(f"{count} prices, newest of sku-1: {newest[b'sku-1']!r}")

    rows = sum(batch.to_arrow().num_rows for batch in world.consumer("prices", start="earliest", follow=False))
    print(f"rows by shard: {rows}")
