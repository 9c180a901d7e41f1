"""The note that a stream here is a copy: where it is produced. It keeps producers away from it, since bytes that came
into being in two places could never be told apart again."""

import json

from ..errors import FileMissing, NameRefused
from ..model import check_name
from .interface import Files

_VERSION = 1


def read_origin(files: Files, stream: str) -> str | None:
    """Where a stream is produced, if what lies here is a copy; None: it is produced here."""
    try:
        table = json.loads(files.read(f"streams/{check_name(stream, 'stream')}/copy.json"))
        return check_name(table["origin"], "cluster")
    except FileMissing:
        return None
    except (ValueError, KeyError, TypeError, NameRefused):
        return "an unknown cluster"  # a note that cannot be read is still a note


def write_origin(files: Files, stream: str, origin: str) -> None:
    note = json.dumps({"version": _VERSION, "origin": origin}) + "\n"
    files.publish(f"streams/{stream}/copy.json", note.encode())
