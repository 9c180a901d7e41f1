"""Where outputs go: Parquet files, tables, streams; and what a sink of your own must do."""

from .interface import Sink
from .parquet import ParquetFolder, parquet
from .streams import StreamSink, into_stream
from .tables import PostgresTable, SqliteTable, postgres_table, sqlite_table

__all__ = [
    "ParquetFolder",
    "PostgresTable",
    "Sink",
    "SqliteTable",
    "StreamSink",
    "into_stream",
    "parquet",
    "postgres_table",
    "sqlite_table",
]
