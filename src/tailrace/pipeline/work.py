"""One unit's work, wherever it runs: read its ranges, call the user's function, stage what it gives (U11).

Nothing here knows of sites, ETAs or commits: a task comes in, a receipt or a failure goes out.
"""

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..env import SystemClock
from ..errors import Corrupt, TailraceError
from ..files import Files, PosixFiles
from ..streams import arrow_schema, read_arrow
from .code import Code
from .failure import Failure
from .ranges import ByteRange
from .staging import Footer, Staging

if TYPE_CHECKING:
    import pyarrow

#: From the messages of a unit to its output: an Arrow table, a record batch, or None for no output.
Transform = Callable[..., Any]

_BAD_MESSAGES_MAX = 16  # in one unit; more say that the trouble is not in the data


@dataclass(frozen=True, slots=True)
class Job:
    """What all tasks of a pipeline have in common. Goes to other processes."""

    pipeline: str
    files_root: str
    transform: Code
    staging: Staging
    batch_bytes: int
    streams: int = 1  # with more than one, messages say which they come from
    memory_bytes: int | None = None  # that a process of our own may have for data; None: as much as there is


@dataclass(frozen=True, slots=True)
class Task:
    """`diagnose`: if it fails, find out where; that is worth the time once it has failed before."""

    unit: str
    ranges: tuple[ByteRange, ...]
    name: str  # of the staged file
    diagnose: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """The processor's time and ours, of one attempt. Of a process that died only ours is known."""

    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Done:
    unit: str
    receipt: dict[str, Any]
    messages: int
    input_bytes: int
    cost: Cost = Cost()


@dataclass(frozen=True, slots=True)
class Failed:
    unit: str
    failure: Failure
    cost: Cost = Cost()


Result = Done | Failed


class Performer:
    """Does tasks, one after the other, with the files open and the function loaded once."""

    def __init__(self, job: Job, transform: Transform | None = None, files: Files | None = None) -> None:
        self._job = job
        self._files = files or PosixFiles(job.files_root)
        self._transform: Transform = transform or job.transform.load()
        self._clock = SystemClock()
        importlib.import_module("pyarrow.parquet")  # now: the first unit is not to wait for it

    def perform(self, task: Task) -> Result:
        began_s, worked_s = time.perf_counter(), time.process_time()
        result = self._perform(task)
        return replace(result, cost=Cost(time.process_time() - worked_s, time.perf_counter() - began_s))

    def _perform(self, task: Task) -> Result:
        try:
            table, ends = self.read(task.ranges)
        except _Damaged as damaged:
            return Failed(task.unit, Failure(str(damaged.seen), (damaged.range,), certain=True))
        except TailraceError as problem:
            return Failed(task.unit, Failure(f"reading: {problem}"))
        try:
            output = self._transform(table)
            rows = as_table(output)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:
            return Failed(task.unit, self._failure(problem, table, ends, task))
        try:
            receipt = self._job.staging.write(task.name, rows, Footer(self._job.pipeline, task.unit, task.ranges))
        except Exception as problem:
            return Failed(task.unit, Failure(f"staging the output: {told(problem)}"))
        return Done(task.unit, receipt, table.num_rows, sum(one.size for one in task.ranges))

    def read(self, ranges: Sequence[ByteRange]) -> "tuple[pyarrow.Table, list[tuple[int, ByteRange]]]":
        """The messages of all ranges, and after how many rows each range ends."""
        import pyarrow as pa

        batches: list[pa.RecordBatch] = []
        names: list[str] = []
        ends: list[tuple[int, ByteRange]] = []
        rows = 0
        for one in ranges:
            try:
                for batch in read_arrow(
                    self._files,
                    self._clock,
                    one.stream,
                    one.shard,
                    one.begin,
                    one.end,
                    batch_bytes=self._job.batch_bytes,
                ):
                    batches.append(batch)
                    names.append(one.stream)
                    rows += batch.num_rows
            except Corrupt as seen:
                raise _Damaged(_damaged_range(one, seen), seen) from seen
            ends.append((rows, one))
        table = pa.Table.from_batches(batches, schema=arrow_schema())
        if self._job.streams > 1:
            said = [pa.array([name] * batch.num_rows, pa.string()) for name, batch in zip(names, batches, strict=True)]
            table = table.append_column("stream", pa.chunked_array(said, pa.string()))
        return table, ends

    def _failure(
        self, problem: BaseException, table: "pyarrow.Table", ends: Sequence[tuple[int, ByteRange]], task: Task
    ) -> Failure:
        if not task.diagnose:
            return Failure(told(problem))
        bad = bad_rows(lambda part: as_table(self._transform(part)), table)
        if bad is None:
            return Failure(f"{told(problem)}; most messages fail, not a few", everywhere=True)
        return Failure(told(problem), tuple(range_of(row, table, ends) for row in bad))


def bad_rows(transform: Transform, table: "pyarrow.Table", most: int = _BAD_MESSAGES_MAX) -> list[int] | None:
    """The messages that make the function fail on their own, found by halving; None if there are more than a few."""
    found: list[int] = []
    waiting = [(0, table.num_rows)]
    while waiting:
        begin, end = waiting.pop()
        try:
            transform(table.slice(begin, end - begin))
        except KeyboardInterrupt:
            raise
        except BaseException:
            if end - begin == 1:
                found.append(begin)
                if len(found) > most:
                    return None
            else:
                middle = (begin + end) // 2
                waiting += [(middle, end), (begin, middle)]
    return found


def range_of(row: int, table: "pyarrow.Table", ends: Sequence[tuple[int, ByteRange]]) -> ByteRange:
    """The bytes of one message: it ends where the next of its range begins, or where the range does."""
    upto, one = next((upto, one) for upto, one in ends if row < upto)
    positions = table.column("position")
    end = positions[row + 1].as_py() if row + 1 < upto else one.end
    return ByteRange(one.stream, one.shard, one.file, positions[row].as_py(), end)


def as_table(output: Any) -> "pyarrow.Table":
    import pyarrow as pa

    if output is None:
        return pa.table({})
    if isinstance(output, pa.Table):
        return output
    if isinstance(output, pa.RecordBatch):
        return pa.Table.from_batches([output])
    if isinstance(output, dict):
        return pa.table(output)
    raise TypeError(f"the transform gave {type(output).__name__}; give an Arrow table, a record batch, a dict or None")


def told(problem: BaseException) -> str:
    return f"{type(problem).__name__}: {problem}"[:500]


@dataclass(frozen=True)
class _Damaged(Exception):
    range: ByteRange
    seen: Corrupt = field(repr=False)


def _damaged_range(one: ByteRange, seen: Corrupt) -> ByteRange:
    """What cannot be read of a range. Without a place to go on from that is all of the rest."""
    begin = min(max(one.begin, seen.position if seen.position is not None else one.begin), one.end - 1)
    end = seen.resume_position if seen.resume_position is not None else one.end
    return ByteRange(one.stream, one.shard, one.file, begin, end if begin < end <= one.end else one.end)
