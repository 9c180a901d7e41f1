"""The durable layer: append-only files that are the only truth. Bytes only; it knows no message format."""

from .interface import WARM_BYTES, Appender, Claim, FileLength, Files, View
from .posix import PosixFiles

__all__ = ["WARM_BYTES", "Appender", "Claim", "FileLength", "Files", "PosixFiles", "View"]
