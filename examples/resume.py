"""A consumer that goes on where it stopped, and retention that waits for it.

# > first visit: 100 messages
# > second visit: 50 messages
# > files deleted: True
"""

import tailrace

with tailrace.open("resume-world") as world:
    world.create_stream("orders", file_bytes=100, retention=tailrace.Retention(size_bytes=500, waits_for=("billing",)))

    def produce(count: int) -> None:
        with world.producer("orders", buffer_s=0.001) as producer:
            for number in range(count):
                producer.send(b"order %d" % number)
                if number % 10 == 0:
                    producer.flush()

    def visit() -> int:
        """One run of a job that may die at any time: commit only what is done."""
        seen = 0
        with world.consumer("orders", start="earliest", checkpoint="billing", follow=False) as consumer:
            for batch in consumer:
                seen += len(batch)
                consumer.commit()
        return seen

    produce(100)
    print(f"first visit: {visit()} messages")
    produce(50)
    print(f"second visit: {visit()} messages")
    print(f"files deleted: {any(shard.segments for shard in world.trim('orders'))}")
