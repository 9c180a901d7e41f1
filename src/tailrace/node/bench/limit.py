"""What no cache can beat: copying the same values in the same memory, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

from .system import System


class Memcpy(System):
    """Values in random order, joined in C into one buffer, which is freed again and so stays warm.

    Nothing is looked up or checked and no object is made per value. A plain loop of memcpy in C over the same working
    set is no faster. A copy has no calls, so the limit is the same for every batch: it always joins this many.
    """

    name = "memcpy"
    can_set = False
    batch = 64

    def __init__(self) -> None:
        self._items: dict[bytes, bytes] = {}

    def load(self, items: Mapping[bytes, bytes]) -> None:
        # Copies of its own: what others read does not warm the processor's cache for it.
        self._items.update((key, bytes(bytearray(value))) for key, value in items.items())

    def prepare_get(self, keys: Sequence[bytes], value_bytes: int) -> list[bytes]:
        return [self._items[key] for key in keys]

    def get_many(self, request: list[bytes]) -> bytes:
        return b"".join(request)

    def values(self, answer: bytes) -> list[bytes | None]:
        size = len(answer) // self.batch
        return [answer[at : at + size] for at in range(0, len(answer), size)]

    def prepare_set(self, items: Mapping[bytes, bytes]) -> Any:
        raise NotImplementedError

    def set_many(self, request: Any) -> None:
        raise NotImplementedError

    def server_cpu_s(self) -> float:
        return 0.0

    def close(self) -> None:
        self._items.clear()
