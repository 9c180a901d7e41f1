"""A stream as keys and values: snapshots for a quick start, updates from there on.

# > loaded 1000 keys, applied 0 updates
# > heard: sku-7 is 9.99
# > heard: sku-8 is gone
# > 999 keys, sku-7 at 9.99
# > files deleted: True
"""

import tailrace

with tailrace.open("view-world") as world:
    world.create_stream("prices", shards=2, file_bytes=4096, retention=tailrace.Retention(keeps_snapshots=1))

    with world.producer("prices", buffer_s=0.001) as producer:
        for cents in range(100, 110):
            for sku in range(1000):
                producer.send(b"%.2f" % (cents / 100), key=b"sku-%d" % sku)
            producer.flush()

        world.snapshot("prices")  # some process does this now and then: `tailrace streams snapshot prices`

        with world.view("prices") as view:
            print(f"loaded {len(view)} keys, applied {view.updates} updates")

            def heard(key: bytes, value: bytes | None) -> None:
                print(f"heard: {key.decode()} is {'gone' if value is None else value.decode()}")

            view.on_change(heard)
            producer.send(b"9.99", key=b"sku-7")
            producer.send(None, key=b"sku-8")
            producer.flush()
            view.wait_for(producer)
            print(f"{len(view)} keys, sku-7 at {view[b'sku-7'].decode()}")

    print(f"files deleted: {any(shard.segments for shard in world.trim('prices'))}")
