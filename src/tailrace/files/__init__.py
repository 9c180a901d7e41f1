"""The durable layer: append-only files that are the only truth. Bytes only; it knows no message format."""

from .interface import Appender, Claim, FileLength, Files, View
from .posix import PosixFiles

__all__ = ["Appender", "Claim", "FileLength", "Files", "PosixFiles", "View"]
