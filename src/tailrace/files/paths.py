"""Paths of the durable layer: relative, of plain names. Anything else is refused before it touches a disk."""

import re

from ..errors import NameRefused

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,239}")


def is_name(name: str) -> bool:
    return _PART.fullmatch(name) is not None


def check_path(path: str) -> str:
    """The path itself, or NameRefused."""
    if not all(is_name(part) for part in path.split("/")):
        raise NameRefused(
            f"{path!r} is not a path of the durable layer: use names of letters, digits and . _ - between "
            "slashes, none of them beginning with a dot. Nothing was done"
        )
    return path
