"""Named checkpoints: how far a consumer has come, in the coordination store. One key for each shard.

A checkpoint is declared when a consumer first takes its name, so that retention can wait for it from the first message.
"""

from collections.abc import Mapping

from ..coordination import Absent, Coordination, Delete, Put
from ..errors import CoordinationError
from ..model import check_name

Incarnation = tuple[str, str]  # a stream's name, and which of those that ever bore it

_OPERATIONS = 500  # a stream may have more shards than a transaction takes


class Checkpoints:
    def __init__(self, coordination: Coordination) -> None:
        self._coordination = coordination

    def load(self, stream: Incarnation, name: str) -> dict[int, int]:
        """{shard: position}, for the shards that were declared or committed."""
        prefix = f"{_prefix(stream)}{check_name(name, 'checkpoint')}/"
        entries = self._coordination.range(prefix).entries
        return {int(entry.key[len(prefix) :]): _position(entry.key, entry.value) for entry in entries}

    def load_all(self, stream: Incarnation) -> dict[str, dict[int, int]]:
        """{name: {shard: position}}."""
        prefix = _prefix(stream)
        result: dict[str, dict[int, int]] = {}
        for entry in self._coordination.range(prefix).entries:
            name, shard = entry.key[len(prefix) :].split("/")
            result.setdefault(name, {})[int(shard)] = _position(entry.key, entry.value)
        return result

    def declare(self, stream: Incarnation, name: str, positions: Mapping[int, int]) -> None:
        """Set positions for shards that have none yet."""
        for shard, position in positions.items():
            key = _key(stream, name, shard)
            self._coordination.transact([Absent(key)], [Put(key, str(position).encode())])

    def commit(self, positions: Mapping[tuple[Incarnation, int], int], name: str) -> None:
        """Set the positions of {(stream, shard): position}; durable on return."""
        puts = [Put(_key(stream, name, shard), str(at).encode()) for (stream, shard), at in positions.items()]
        for first in range(0, len(puts), _OPERATIONS):
            self._coordination.transact([], puts[first : first + _OPERATIONS])

    def forget(self, stream: Incarnation, name: str) -> None:
        self._delete(f"{_prefix(stream)}{check_name(name, 'checkpoint')}/")

    def forget_all(self, stream: str) -> None:
        """Of every incarnation of a stream."""
        self._delete(f"checkpoints/{stream}/")

    def _delete(self, prefix: str) -> None:
        keys = [Delete(entry.key) for entry in self._coordination.range(prefix).entries]
        for first in range(0, len(keys), _OPERATIONS):
            self._coordination.transact([], keys[first : first + _OPERATIONS])


def _prefix(stream: Incarnation) -> str:
    return f"checkpoints/{stream[0]}/{stream[1]}/"


def _key(stream: Incarnation, name: str, shard: int) -> str:
    return f"{_prefix(stream)}{check_name(name, 'checkpoint')}/{shard:05d}"


def _position(key: str, value: bytes) -> int:
    try:
        return int(value)
    except ValueError:
        raise CoordinationError(
            f"the checkpoint {key} holds {value[:40]!r}, not a position; delete or commit it"
        ) from None
