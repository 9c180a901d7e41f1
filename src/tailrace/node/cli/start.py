"""Where `tailrace consume` begins, as it is typed after --from."""

import re
from datetime import datetime
from typing import Literal, cast

Start = Literal["earliest", "latest"] | datetime | int

_POSITION_MAX = (1 << 63) - 1


def parse_start(text: str) -> Start:
    """
    >>> parse_start("latest"), parse_start("4096")
    ('latest', 4096)
    >>> parse_start("2026-03-01T12:00:00Z").isoformat()
    '2026-03-01T12:00:00+00:00'
    >>> parse_start("yesterday")
    Traceback (most recent call last):
    ValueError: 'yesterday' is none of earliest, latest, a time as in 2026-03-01T12:00:00Z, a position as in 4096
    """
    if text in ("earliest", "latest"):
        return cast(Literal["earliest", "latest"], text)
    try:
        if re.fullmatch(r"[0-9]+", text):
            if int(text) > _POSITION_MAX:
                raise ValueError("no shard is so long")
            return int(text)
        return datetime.fromisoformat(text).astimezone()  # without a zone: this machine's
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is none of earliest, latest, a time as in 2026-03-01T12:00:00Z, a position as in 4096"
        ) from None
