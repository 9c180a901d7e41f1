"""A table in SQLite or PostgreSQL. The rows of a unit and the note that they are there are one transaction.

    tailrace_published (pipeline, name, account)   a row for each pipeline and table: all that was published there

With a key, rows of the same key are added up: the table then holds totals, not the partial sums of each unit.
"""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError, TailraceError
from ..published import Stretch, add, decode, encode, has_all
from ..staging import Footer, read_table

if TYPE_CHECKING:
    import pyarrow

_ACCOUNTS = "tailrace_published"


class SinkProblem(TailraceError):
    """The database refused. Nothing of the unit is visible; it is tried again."""


@dataclass(frozen=True, slots=True)
class _Dialect:
    mark: str  # of a parameter
    lock: str  # behind a SELECT: keep others from what it found
    kinds: tuple[str, str, str, str, str]  # whole numbers, numbers, truth, bytes, everything else


_SQLITE = _Dialect("?", "", ("INTEGER", "REAL", "INTEGER", "BLOB", "TEXT"))
_POSTGRES = _Dialect("%s", " FOR UPDATE", ("BIGINT", "DOUBLE PRECISION", "BOOLEAN", "BYTEA", "TEXT"))


@dataclass(frozen=True, slots=True)
class _Table(ABC):
    table: str
    key: tuple[str, ...] = ()

    _dialect = _SQLITE

    def staging_folder(self, default: str) -> str:
        return default

    def prepare(self) -> None:
        with closing(self._connect()) as db:
            self._run(
                db,
                f"CREATE TABLE IF NOT EXISTS {_ACCOUNTS} "
                "(pipeline TEXT, name TEXT, account TEXT, PRIMARY KEY (pipeline, name))",
            )
            db.commit()

    def has(self, footer: Footer) -> bool:
        with closing(self._connect()) as db:
            return has_all(self._account(db, footer.pipeline), footer.ranges, footer.born)

    def publish(self, footer: Footer, staged: str) -> None:
        rows = read_table(staged)
        mark = self._dialect.mark
        with closing(self._connect()) as db:
            self._begin(db)
            # The row must be there to be locked: whoever publishes for this pipeline at the same time waits here.
            here = (footer.pipeline, self.table)
            self._run(
                db, f"INSERT INTO {_ACCOUNTS} VALUES ({mark}, {mark}, {mark}) ON CONFLICT DO NOTHING", (*here, "")
            )
            known = self._account(db, footer.pipeline, locked=True)
            if not has_all(known, footer.ranges, footer.born):
                self._insert(db, rows)
                account = encode(add(known, footer.ranges, footer.born))
                change = f"UPDATE {_ACCOUNTS} SET account = {mark} WHERE pipeline = {mark} AND name = {mark}"
                self._run(db, change, (account, *here))
            db.commit()

    def close(self) -> None:
        """A table holds nothing open between two calls."""
        return

    def outputs(self) -> Iterator[Footer]:
        with closing(self._connect()) as db:
            mark = self._dialect.mark
            found = self._run(db, f"SELECT pipeline FROM {_ACCOUNTS} WHERE name = {mark}", (self.table,)).fetchall()
            for (pipeline,) in found:
                if stretches := self._account(db, pipeline):
                    yield Footer(pipeline, "", (), {}, stretches)

    def _account(self, db: Any, pipeline: str, *, locked: bool = False) -> tuple[Stretch, ...]:
        mark = self._dialect.mark
        query = f"SELECT account FROM {_ACCOUNTS} WHERE pipeline = {mark} AND name = {mark}"
        rows = self._run(db, query + (self._dialect.lock if locked else ""), (pipeline, self.table)).fetchall()
        return decode(rows[0][0]) if rows and rows[0][0] else ()

    def _insert(self, db: Any, rows: "pyarrow.Table") -> None:
        if not rows.num_columns:
            return
        names = rows.column_names
        missing = [name for name in self.key if name not in names]
        if missing:
            raise ConfigError(f"the output has the columns {', '.join(names)}, but not the key {', '.join(missing)}")
        self._make_table(db, rows.schema)
        columns = ", ".join(map(_quoted, names))
        marks = ", ".join([self._dialect.mark] * len(names))
        insert = f"INSERT INTO {_quoted(self.table)} AS t ({columns}) VALUES ({marks})"
        if self.key:
            sums = [
                f"{_quoted(name)} = t.{_quoted(name)} + excluded.{_quoted(name)}"
                for name in names
                if name not in self.key
            ]
            action = f"UPDATE SET {', '.join(sums)}" if sums else "NOTHING"
            insert += f" ON CONFLICT ({', '.join(map(_quoted, self.key))}) DO {action}"
        with closing(db.cursor()) as cursor:
            self._many(cursor, insert, list(zip(*(column.to_pylist() for column in rows.columns), strict=True)))

    def _make_table(self, db: Any, schema: "pyarrow.Schema") -> None:
        columns = [f"{_quoted(field.name)} {self._kind(field.type)}" for field in schema]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(_quoted, self.key))})")
        self._run(db, f"CREATE TABLE IF NOT EXISTS {_quoted(self.table)} ({', '.join(columns)})")

    def _kind(self, kind: "pyarrow.DataType") -> str:
        import pyarrow.types as t

        whole, number, truth, content, text = self._dialect.kinds
        if t.is_boolean(kind):
            return truth
        if t.is_integer(kind):
            return whole
        if t.is_floating(kind) or t.is_decimal(kind):
            return number
        if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind):
            return content
        return text

    def _begin(self, db: Any) -> None:
        """Where a transaction does not begin by itself."""
        return

    @abstractmethod
    def _connect(self) -> Any: ...

    def _run(self, db: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        cursor = db.cursor()
        cursor.execute(statement, values)
        return cursor

    def _many(self, cursor: Any, statement: str, rows: list[tuple[Any, ...]]) -> None:
        cursor.executemany(statement, rows)


@dataclass(frozen=True, slots=True)
class SqliteTable(_Table):
    path: str = ""

    @property
    def place(self) -> str:
        return f"the table {self.table} in {self.path}"

    def _connect(self) -> Any:
        try:
            return sqlite3.connect(self.path, timeout=30.0, isolation_level=None)
        except sqlite3.Error as seen:
            raise SinkProblem(f"{self.path} cannot be opened: {seen}") from seen

    def _begin(self, db: Any) -> None:
        self._run(db, "BEGIN IMMEDIATE")

    def _run(self, db: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        try:
            return db.execute(statement, values)
        except sqlite3.Error as seen:
            raise SinkProblem(f"{self.path}: {seen}") from seen

    def _many(self, cursor: Any, statement: str, rows: list[tuple[Any, ...]]) -> None:
        try:
            cursor.executemany(statement, rows)
        except sqlite3.Error as seen:
            raise SinkProblem(f"{self.path}: {seen}") from seen


@dataclass(frozen=True, slots=True)
class PostgresTable(_Table):
    dsn: str = ""

    _dialect = _POSTGRES

    @property
    def place(self) -> str:
        return f"the table {self.table} in PostgreSQL"

    def _connect(self) -> Any:
        try:
            import psycopg2
        except ImportError as missing:
            raise ConfigError("a PostgreSQL sink needs psycopg2: pip install 'tailrace[postgres]'") from missing
        try:
            return psycopg2.connect(self.dsn)
        except psycopg2.Error as seen:
            raise SinkProblem(f"PostgreSQL cannot be reached: {seen}") from seen

    def _run(self, db: Any, statement: str, values: Sequence[Any] = ()) -> Any:
        import psycopg2

        try:
            cursor = db.cursor()
            cursor.execute(statement, values or None)
            return cursor
        except psycopg2.Error as seen:
            raise SinkProblem(f"PostgreSQL refused: {seen}") from seen

    def _many(self, cursor: Any, statement: str, rows: list[tuple[Any, ...]]) -> None:
        import psycopg2
        from psycopg2.extras import execute_batch

        try:
            execute_batch(cursor, statement, rows, page_size=1000)
        except psycopg2.Error as seen:
            raise SinkProblem(f"PostgreSQL refused: {seen}") from seen


def sqlite_table(path: str, table: str, *, key: Sequence[str] = ()) -> SqliteTable:
    """A table in a SQLite file. `key`: add up the rows of each key."""
    import os

    return SqliteTable(table, tuple(key), os.path.abspath(path))


def postgres_table(dsn: str, table: str, *, key: Sequence[str] = ()) -> PostgresTable:
    """A table in PostgreSQL, as in postgres_table("dbname=stats", "clicks", key=["campaign"])."""
    return PostgresTable(table, tuple(key), dsn)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
