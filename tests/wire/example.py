"""A backend that is small enough to see through: it keeps what it was told, and can be made to hold calls back.

Run as a program it serves at the given address, says where, and holds mutations whose frame is b"hold", and lists.
"""

import sys
import threading
from collections.abc import Iterator, Sequence

from tailrace.wire import (
    HASH_BYTES,
    Answer,
    AttachReply,
    DigestReply,
    Engine,
    FetchPart,
    ListPart,
    LookupReply,
    MutateReply,
    Shared,
    StatsReply,
    TouchReply,
    serve,
)

INSTANCE, CONFIG_ID = (1 << 64) - 3, 5
SUMMARY = (1 << 63, (1 << 32) - 1, 9)
SHARED = Shared(home=2, backends=3, partitions=(1 << 64) - 1)
RECORDS = b"".join(number.to_bytes(32, "little") for number in range(100_000))


class ExampleBackend:
    def __init__(self, instance: int = INSTANCE) -> None:
        self.instance = instance
        self.values: dict[bytes, Answer] = {b"key": Answer(b"value", (1, 2, 3), 4), b"empty": Answer(b"", (4, 5, 6), 0)}
        self.touched: list[bytes] = []
        self.mutated: list[bytes] = []
        self.reached = threading.Event()  # a held call is in the service
        self.go_on = threading.Event()
        self.streams_open = 0
        self.problem: Exception | None = None
        self.list_ends_at = len(RECORDS)
        self.list_holds = False  # after its first part

    def attach(self, client: str, wants_engine: bool) -> AttachReply:
        return AttachReply(
            instance=self.instance,
            config_id=CONFIG_ID,
            cache="prices",
            backend=2,
            host=f"for {client}",
            folder="/dev/shm/x",
            engine=Engine(host="here", port=7101, ticket=bytes(range(32))) if wants_engine else None,
            time_us=1_700_000_000_000_000,
            mode="R=3.2",
        )

    def mutate(self, instance: int, config_id: int, frame: memoryview) -> MutateReply:
        self.mutated.append(bytes(frame))
        if bytes(frame) == b"hold":
            self.reached.set()
            self.go_on.wait()
        if self.problem is not None:
            raise self.problem
        outcomes = bytes(len(frame) % 251 for _ in range(3)) if instance == self.instance else b""
        return MutateReply(instance=self.instance, config_id=config_id, outcomes=outcomes, floor=SUMMARY)

    def lookup(self, instance: int, keys: Sequence[bytes], now_s: int) -> LookupReply:
        answers = [self.values.get(key) for key in keys] if instance == self.instance else []
        return LookupReply(instance=self.instance, config_id=now_s, answers=answers)

    def touch(self, hashes: bytes) -> TouchReply:
        self.touched += [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
        return TouchReply(instance=self.instance, config_id=CONFIG_ID)

    def digest(self, shared: Shared) -> DigestReply:
        return DigestReply(instance=self.instance, config_id=CONFIG_ID, digests=bytes([shared.home]) * 512)

    def list_hashes(self, shared: Shared) -> Iterator[ListPart]:
        assert shared == SHARED
        self.streams_open += 1
        try:
            for at in range(0, self.list_ends_at, 1 << 16):
                if at > 0 and self.list_holds:
                    self.go_on.wait()
                if self.problem is not None:
                    raise self.problem
                yield ListPart(
                    instance=self.instance,
                    config_id=CONFIG_ID,
                    records=RECORDS[at : at + (1 << 16)],
                    tombstones=bytes(64) if at == 0 else b"",
                    summary=SUMMARY,
                    complete=at + (1 << 16) >= len(RECORDS),
                )
        finally:
            self.streams_open -= 1

    def fetch(self, hashes: bytes) -> Iterator[FetchPart]:
        for at in range(0, len(hashes), HASH_BYTES):
            frame = hashes[at : at + HASH_BYTES] * 1000
            yield FetchPart(instance=self.instance, config_id=CONFIG_ID, frame=frame)

    def stats(self) -> StatsReply:
        counters = {"hits": 1 << 62, "balance": -1}
        return StatsReply(instance=self.instance, config_id=CONFIG_ID, counters=counters)


if __name__ == "__main__":
    backend = ExampleBackend()
    backend.list_holds = True
    with serve(backend, [sys.argv[1]]) as server:
        print(server.addresses[0], flush=True)
        backend.reached.wait()
        print("reached", flush=True)
        sys.stdin.read()
        backend.go_on.set()
