"""A folder of Parquet files, one for each unit, named by it: any reader of folders works, since readers skip names with
an underscore.

    part-UNIT.parquet      rows, and in the footer the input ranges
    _nothing/NUMBER        the account of all units that gave no output (`published.py`); the highest number counts
    _pipeline              the pipeline that the folder belongs to; two would take each other's units for their own
    _staging/              outputs whose units are not committed, or not published yet

A file appears by link(2), whole, under a name that only this unit can have. An account appears as the next number, for
which there is one winner; who loses reads again.
"""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from ...errors import ConfigError, Corrupt, FileProblem
from ..published import Stretch, add, decode, encode, has_all
from ..staging import Footer, durable_copy, sync_folder

_TRIES = 1000  # against others who note something at the same moment: one of them wins each time


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

    def claim(self, pipeline: str) -> None:
        """The folder is this pipeline's, or ConfigError."""
        marker = os.path.join(self.folder, "_pipeline")
        if not os.path.exists(marker):
            first = next((footer.pipeline for footer in self._parts()), pipeline)
            _appear(marker, json.dumps({"version": 1, "pipeline": first}))
        try:
            with open(marker, encoding="utf-8") as file:
                owner = json.load(file)["pipeline"]
        except (OSError, ValueError, KeyError, TypeError) as wrong:
            raise ConfigError(f"{marker} does not say whose folder this is: {wrong!r}. Nothing has started") from None
        if owner != pipeline:
            raise ConfigError(
                f"{self.folder} holds the output of the pipeline {owner}; give {pipeline} a folder of its own. "
                "Nothing has started"
            )

    def has(self, footer: Footer) -> bool:
        return os.path.exists(self._path(footer.unit)) or has_all(self._account()[1], footer.ranges, footer.born)

    def publish(self, footer: Footer, staged: str) -> None:
        import pyarrow.parquet as pq

        if self.has(footer):
            return
        if not pq.read_schema(staged).names:
            self._note(footer)
            return
        final = self._path(footer.unit)
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
        yield from self._parts()
        number, stretches = self._account()
        if number:
            with open(os.path.join(self.folder, "_pipeline"), encoding="utf-8") as file:
                yield Footer(json.load(file)["pipeline"], "", (), {}, stretches)

    def _parts(self) -> Iterator[Footer]:
        with suppress(FileNotFoundError):
            for name in sorted(os.listdir(self.folder)):
                if name.startswith("part-") and name.endswith(".parquet"):
                    yield Footer.read(os.path.join(self.folder, name))

    # ---- the account of units without output

    @property
    def _accounts(self) -> str:
        return os.path.join(self.folder, "_nothing")

    def _numbers(self) -> list[int]:
        with suppress(FileNotFoundError):
            return sorted(int(name) for name in os.listdir(self._accounts) if name.isdigit())
        return []

    def _account(self) -> tuple[int, tuple[Stretch, ...]]:
        """The newest, and its number; 0 if there is none."""
        for _ in range(_TRIES):
            if not (numbers := self._numbers()):
                return 0, ()
            path = os.path.join(self._accounts, f"{numbers[-1]:020d}")
            try:
                with open(path, encoding="utf-8") as file:
                    return numbers[-1], decode(file.read())
            except FileNotFoundError:  # there is a newer one by now
                continue
            except ValueError as wrong:
                raise Corrupt(f"{path} {wrong}") from None
        raise FileProblem(f"{self._accounts} changes too fast to be read; it is tried again")

    def _note(self, footer: Footer) -> None:
        """That the unit was done and gave nothing."""
        self.claim(footer.pipeline)
        try:
            os.makedirs(self._accounts, exist_ok=True)
            for _ in range(_TRIES):
                number, known = self._account()
                if has_all(known, footer.ranges, footer.born):
                    return
                mine = os.path.join(self._accounts, f"{number + 1:020d}")
                if not _appear(mine, encode(add(known, footer.ranges, footer.born))):
                    continue
                # A number is free again once a higher one is there, so only the highest has been won.
                numbers = self._numbers()
                if numbers[-1] != number + 1:
                    with suppress(FileNotFoundError):
                        os.unlink(mine)
                    continue
                for old in numbers[:-1]:
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(self._accounts, f"{old:020d}"))
                return
        except OSError as seen:
            raise FileProblem(f"{self._accounts} cannot be written: {seen}; it is tried again") from seen
        raise FileProblem(f"{self._accounts} is written by too many at once; it is tried again")

    def _path(self, unit: str) -> str:
        return os.path.join(self.folder, f"part-{unit}.parquet")


def _appear(path: str, content: str) -> bool:
    """A small file, whole and durable, unless there is one."""
    draft = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        os.unlink(draft)
    sync_folder(os.path.dirname(path))
    return True


def parquet(folder: str | os.PathLike[str]) -> ParquetFolder:
    """A folder of Parquet files, for one pipeline: `parquet("out/ad-stats")`."""
    return ParquetFolder(os.path.abspath(os.fspath(folder)))
