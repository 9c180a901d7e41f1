"""Processes that the tests kill: they produce or consume in a loop and tell on standard output what they know."""

import itertools
import sys
from typing import Any

import tailrace


def say(*words: Any) -> None:
    print(*words, flush=True)


def produce(folder: str, stream: str) -> None:
    """Numbered messages, flushed in groups of varying size; says a number only when all below it are durable."""
    with tailrace.open(folder) as world, world.producer(stream, shards=1, buffer_s=0.002) as producer:
        number = world.stream_status(stream)[0].messages
        say("from", number)
        for group in itertools.cycle([1, 7, 50, 400]):
            for _ in range(group):
                producer.send(b"%d " % number + b"." * (number % 300))
                number += 1
            producer.flush()
            say("durable", number)


def consume(folder: str, stream: str) -> None:
    """Reads on from the checkpoint; says what it saw before it commits."""
    with (
        tailrace.open(folder) as world,
        world.consumer(stream, start="earliest", checkpoint="reader", batch_bytes=4096) as consumer,
    ):
        for batch in consumer:
            numbers = [int(message.value.split(b" ")[0]) for message in batch if message.value]
            say("saw", numbers[0], numbers[-1] + 1, len(numbers))
            consumer.commit()


def hold(folder: str, stream: str) -> None:
    """A producer that sends one message for each line it is given, and says how that went."""
    with tailrace.open(folder) as world:
        producer = world.producer(stream, shards=1)
        say("ready")
        for line in sys.stdin:
            try:
                producer.send(line.rstrip("\n").encode())
                producer.flush()
                say("durable")
            except tailrace.TailraceError as problem:
                say(type(problem).__name__, problem.took_effect, problem)


if __name__ == "__main__":
    {"produce": produce, "consume": consume, "hold": hold}[sys.argv[1]](*sys.argv[2:])
