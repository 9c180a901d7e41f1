"""What the state store has to do for a pipeline: calls for each unit, and what is left of them when they are done.

Both must not depend on how much was done before, so a long history is compared with a short one.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

from ....coordination import Coordination, Operation, Outcome, Requirement, SqliteCoordination
from ....pipeline import Pipeline, parquet, stream
from ...world import open_world
from ..report import Figure
from . import app
from .files import remove

_MESSAGE_BYTES = 100
_TIMES = 4  # the long history is so much longer

FIGURES = [
    Figure("state_calls_per_unit", "calls", "of the state store, for a unit from its making to its output"),
    Figure("state_calls_growth", "ratio", f"the same in a pipeline that did {_TIMES} times as many units before", 1.25),
    Figure("state_bytes", "bytes", "that the state store holds when all is done"),
    Figure("state_bytes_growth", "ratio", f"the same after {_TIMES} times as many units", 1.1),
]


class Counted:
    """A store that counts calls on their way to another one."""

    def __init__(self, store: Coordination) -> None:
        self._store, self.calls = store, 0

    def transact(
        self, requires: Sequence[Requirement], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Outcome:
        self.calls += 1
        return self._store.transact(requires, then, otherwise)

    def get(self, key: str) -> Any:
        self.calls += 1
        return self._store.get(key)

    def range(self, prefix: str) -> Any:
        self.calls += 1
        return self._store.range(prefix)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def measure(folder: str, *, units: int, progress: Callable[[str], None]) -> dict[str, list[float]]:
    """`units` at a time, for several times. Spark has no part in this: who does a unit is nothing to the store."""
    root, out, state = (os.path.join(folder, name) for name in ("state-world", "state-out", "state-store.db"))
    remove(root, out, state)
    pipeline = Pipeline(
        "bench", source=stream("lines"), transform=app.nothing, sink=parquet(out), unit_bytes=_MESSAGE_BYTES, poll_s=0.2
    )
    calls, sizes = list[float](), list[float]()
    with open_world(root) as world, SqliteCoordination(state) as store:
        world.create_stream("lines", shards=2, cached=False)
        for _ in range(_TIMES + 1):
            with world.producer("lines") as producer:
                producer.send_many([b"." * _MESSAGE_BYTES] * units)
            counted: Any = Counted(store)
            runner = pipeline.runner(root, [counted], worker=pipeline.worker(root, "inline"))
            runner.run(until_done=True)
            calls.append(counted.calls / int(runner.figures()["units"]))
            entries = store.range("pipelines/bench/").entries
            sizes.append(float(sum(len(entry.key) + len(entry.value) for entry in entries)))
    progress(
        f"state store: {calls[0]:.1f} calls for a unit, then {calls[-1]:.1f}; "
        f"{sizes[0]:.0f} bytes, then {sizes[-1]:.0f}"
    )
    return {
        "state_calls_per_unit": [calls[-1]],
        "state_calls_growth": [calls[-1] / calls[0]],
        "state_bytes": [sizes[-1]],
        "state_bytes_growth": [sizes[-1] / sizes[0]],
    }
