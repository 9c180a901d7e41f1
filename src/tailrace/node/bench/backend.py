"""A process of the benchmark that serves one backend of a cache until its input ends."""

import sys

from ..caches import Doors
from ..world import open_world


def main(folder: str, cache: str, index: int) -> None:
    with open_world(folder) as world:
        world.serve_caches([cache], [index], Doors(engine="127.0.0.1:0"))
        print("serving", flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
