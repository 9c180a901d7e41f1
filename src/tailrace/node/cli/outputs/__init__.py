"""Where `tailrace consume` puts what it has read: text to stdout or a file, or a Parquet file."""

from .interface import Output
from .parquet import ParquetOutput
from .text import TextOutput

__all__ = ["Output", "ParquetOutput", "TextOutput"]
