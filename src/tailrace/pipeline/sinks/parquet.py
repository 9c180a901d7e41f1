"""A folder of Parquet files, one for each unit, named by it: no manifest is needed, and any reader of folders works.

    part-UNIT.parquet      rows, and in the footer the input ranges
    _none-UNIT.parquet     a unit that gave no output at all; readers skip names with an underscore
    _staging/              outputs whose units are not committed, or not published yet

A file appears by link(2), whole, under a name that only this unit can have.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ...errors import ConfigError, FileProblem
from ..staging import Footer, durable_copy, sync_folder


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    folder: str

    @property
    def place(self) -> str:
        return f"Parquet files in {self.folder}"

    def staging_folder(self, default: str) -> str:
        return os.path.join(self.folder, "_staging")

    def prepare(self) -> None:
        try:
            os.makedirs(self.folder, exist_ok=True)
        except OSError as seen:
            raise ConfigError(f"the folder {self.folder} for the output cannot be made: {seen}") from seen

    def has(self, footer: Footer) -> bool:
        return any(os.path.exists(path) for path in self._paths(footer.unit))

    def publish(self, footer: Footer, staged: str) -> None:
        import pyarrow.parquet as pq

        if self.has(footer):
            return
        empty = not pq.read_schema(staged).names
        final = self._paths(footer.unit)[empty]
        try:
            try:
                os.link(staged, final)
            except FileExistsError:
                return
            except OSError:  # a copy on another file system
                draft = os.path.join(self.folder, f"_staging/{os.path.basename(staged)}.here")
                durable_copy(staged, draft)
                with suppress(FileExistsError):
                    os.link(draft, final)
                os.unlink(draft)
            sync_folder(self.folder)
        except OSError as seen:
            raise FileProblem(f"{final} cannot be published from {staged}: {seen}; it is tried again") from seen

    def close(self) -> None: ...

    def outputs(self) -> Iterator[Footer]:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                if name.startswith(("part-", "_none-")) and name.endswith(".parquet"):
                    yield Footer.read(os.path.join(self.folder, name))

    def _paths(self, unit: str) -> tuple[str, str]:
        return tuple(os.path.join(self.folder, f"{kind}-{unit}.parquet") for kind in ("part", "_none"))  # type: ignore[return-value]


def parquet(folder: str | os.PathLike[str]) -> ParquetFolder:
    """A folder of Parquet files: `parquet("out/ad-stats")`."""
    return ParquetFolder(os.path.abspath(os.fspath(folder)))
