"""A cache backend for the benchmark: takes items from its input, then lets others read its memory until input ends."""

import pickle
import sys

from ...native.cell import Cell, Outcome


def main(folder: str, capacity_bytes: int) -> None:
    cell = Cell(folder, capacity_bytes, capacity_bytes, buckets=1 << 16)  # so wide that no bucket overflows
    clock = 0
    while True:
        try:
            items: dict[bytes, bytes] = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        clock += 1
        outcomes = cell.set_many([(key, value, (clock, 0, 0), 0) for key, value in items.items()])
        assert all(outcome == Outcome.APPLIED for outcome in outcomes), "the items do not fit"
        print(f"{len(items)} items", flush=True)
    cell.close()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
