"""A process that follows a stream and tells when each position was there: `END TIME` a line, by the machine's clock."""

import signal
import sys
import time

from ....errors import TailraceError
from ...world import open_world


def main(folder: str, stream: str) -> None:
    with open_world(folder) as world, world.consumer(stream, start="latest") as consumer:
        signal.signal(signal.SIGTERM, lambda *_: consumer.close())
        print("ready", flush=True)
        try:
            for batch in consumer:
                print(batch.end, f"{time.monotonic():.6f}", flush=True)
        except TailraceError as problem:
            print("problem", problem, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
