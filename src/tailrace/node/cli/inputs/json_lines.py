"""JSON lines: each line is checked to be JSON; the key and the value are fields of it, or the value is the line."""

import base64
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

from .lines import BLANK
from .rows import Parse, Value


def json_fields(key: str | None, value: str | None) -> Parse:
    """
    >>> json_fields("sku", None)(b'{"sku": "a", "price": 9.99}')
    (b'{"sku": "a", "price": 9.99}', b'a')
    >>> json_fields("sku", "price")(b'{"sku": "a", "price": 9.99}')
    (b'9.99', b'a')
    """

    def parse(line: bytes) -> tuple[Value, Value]:
        line = line.removesuffix(b"\r")
        if not line or line.isspace():
            raise BLANK
        try:
            row = _loads(line)
            found = None if key is None else to_bytes(_field(row, key))
            return (line if value is None else to_bytes(_field(row, value))), found
        except RecursionError:
            raise ValueError("JSON nested too deep") from None

    return parse


def to_bytes(value: Any) -> bytes | None:
    """Text as it is, {"base64": …} decoded, null as nothing, everything else as JSON.

    >>> to_bytes("a"), to_bytes({"base64": "/w=="}), to_bytes(None), to_bytes([1, 2])
    (b'a', b'\\xff', None, b'[1,2]')
    """
    if value is None:
        return None
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()  # a lone surrogate is a ValueError: no bytes mean it
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        return base64.b64decode(value["base64"], validate=True)
    return to_json(value)


def to_json(value: Any) -> bytes:
    """Compact JSON; what JSON has no form for becomes text."""
    return _ENCODER.encode(value).encode()


def _loads(line: bytes) -> Any:
    try:
        return json.loads(line.decode())
    except ValueError as wrong:
        raise ValueError(f"not JSON: {wrong}") from None


def _field(row: Any, name: str) -> Any:
    if not isinstance(row, dict):
        raise ValueError(f"not an object, so it has no field {name!r}")
    if name not in row:
        raise ValueError(f"there is no field {name!r} in it")
    return row[name]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal):
        return str(value)
    raise ValueError(f"{type(value).__name__} has no form in JSON")


_ENCODER = json.JSONEncoder(default=_plain, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
