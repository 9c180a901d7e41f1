"""Outputs that wait to be seen: a file for each unit and attempt, whole and durable before the unit is committed.

A staged file's name carries the unit and the runner that made it, so no two attempts ever meet, and what dead runners
left can be told apart and removed. Its footer says which input it was made of (U39).

With copies, each file is also put into other folders before the commit: a site that goes down between the commit and
the publication then takes nothing with it (U17).
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..errors import Corrupt, FileProblem, TailraceError
from .published import Stretch
from .ranges import ByteRange, decode, encode

if TYPE_CHECKING:
    import pyarrow

_FOOTER = b"tailrace"
VERSION = 1


class StagedMissing(TailraceError):
    """A committed output cannot be found, neither staged nor published. It did not become visible."""


@dataclass(frozen=True, slots=True)
class Footer:
    pipeline: str
    unit: str
    ranges: tuple[ByteRange, ...]
    born: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  # the incarnation of each stream, where it is known
    stretches: tuple[Stretch, ...] = ()  # instead of ranges, of a sink that keeps no note for each unit

    def encode(self) -> bytes:
        table = {"version": VERSION, "pipeline": self.pipeline, "unit": self.unit, "ranges": encode(self.ranges)}
        return json.dumps(table, separators=(",", ":")).encode()

    @classmethod
    def read(cls, path: str) -> "Footer":
        import pyarrow.parquet as pq

        try:
            metadata = pq.read_schema(path).metadata or {}
            table = json.loads(metadata[_FOOTER])
            if table["version"] != VERSION:
                raise ValueError(f"version {table['version']}")
            return cls(table["pipeline"], table["unit"], decode(table["ranges"]))
        except (KeyError, ValueError, TypeError) as wrong:
            raise Corrupt(f"{path} is no output of a pipeline: {wrong!r}") from None


@dataclass(frozen=True, slots=True)
class Staging:
    folder: str
    copies: tuple[str, ...] = ()  # more folders

    def prepare(self) -> None:
        for folder in (self.folder, *self.copies):
            try:
                os.makedirs(folder, exist_ok=True)
            except OSError as seen:
                raise FileProblem(f"the folder {folder} for staged outputs cannot be made: {seen}") from seen

    def write(self, name: str, table: "pyarrow.Table", footer: Footer) -> dict[str, Any]:
        """The receipt. When it is there, the file is durable, in all places."""
        import pyarrow.parquet as pq

        metadata = {**(table.schema.metadata or {}), _FOOTER: footer.encode()}
        path = os.path.join(self.folder, name)
        try:
            with open(path, "wb") as file:
                pq.write_table(table.replace_schema_metadata(metadata), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
            for copy in self.copies:
                durable_copy(path, os.path.join(copy, name))
            for folder in (self.folder, *self.copies):
                sync_folder(folder)
        except OSError as seen:
            self.discard(name)
            raise FileProblem(f"the output of {footer.unit} cannot be staged at {path}: {seen}") from seen
        return {
            "name": name,
            "folder": self.folder,
            "rows": table.num_rows,
            "columns": table.num_columns,
            "bytes": size,
        }

    def find(self, receipt: Mapping[str, Any]) -> str:
        """Where it lies, here or as a copy."""
        for folder in dict.fromkeys((receipt["folder"], self.folder, *self.copies)):
            path: str = os.path.join(folder, receipt["name"])
            if os.path.exists(path):
                return path
        raise StagedMissing(
            f"the staged output {receipt['name']} is not in {', '.join((receipt['folder'], *self.copies))}"
        )

    def discard(self, name: str, folders: Iterable[str] = ()) -> None:
        for folder in dict.fromkeys((self.folder, *self.copies, *folders)):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))

    def names(self) -> list[str]:
        found: set[str] = set()
        for folder in (self.folder, *self.copies):
            with suppress(OSError):
                found.update(name for name in os.listdir(folder) if name.endswith(".parquet"))
        return sorted(found)


def staged_name(unit: str, runner: str, attempt: int) -> str:
    """
    >>> runner_of(staged_name("clicks-00000-00000000000000000000-ab", "f00d", 7))
    'f00d'
    """
    return f"{unit}.{runner}.{attempt}.parquet"


def runner_of(name: str) -> str:
    return name.split(".")[-3] if name.count(".") >= 3 else ""


def durable_copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    with open(target, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_table(path: str) -> "pyarrow.Table":
    import pyarrow.parquet as pq

    return pq.read_table(path, partitioning=None)


def footers(paths: Sequence[str]) -> Iterable[Footer]:
    return (Footer.read(path) for path in paths)
