"""Sizes, durations and rates as people type and read them. Pure; a ValueError says what would have been right."""

import re

_NUMBER = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*([A-Za-z]*)")
_LARGEST = (1 << 63) - 1

_SIZES: dict[str, int] = {
    "": 1,
    "b": 1,
    **{f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", start=1)},
    **{f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", start=1)},
}

_DURATIONS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def parse_size(text: str) -> int:
    """Bytes.

    >>> parse_size("4096"), parse_size("10GB"), parse_size("256MiB"), parse_size("1.5 KiB")
    (4096, 10000000000, 268435456, 1536)
    >>> parse_size("12 parsecs")
    Traceback (most recent call last):
    ValueError: '12 parsecs' is not a size; use for example 4096, 10GB or 256MiB
    """
    match = _NUMBER.fullmatch(text.strip())
    unit = _SIZES.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size; use for example 4096, 10GB or 256MiB")
    count = round(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit
    if count > _LARGEST:
        raise ValueError(f"{text!r} is more than any disk holds; use at most {_LARGEST}")
    return count


def parse_duration(text: str) -> float:
    """Seconds.

    >>> parse_duration("100ms"), parse_duration("30s"), parse_duration("2h"), parse_duration("7d"), parse_duration("0")
    (0.1, 30.0, 7200.0, 604800.0, 0.0)
    >>> parse_duration("30")
    Traceback (most recent call last):
    ValueError: '30' is not a duration; use a number and a unit, for example 100ms, 30s, 5m, 2h or 7d
    """
    match = _NUMBER.fullmatch(text.strip())
    unit_s = _DURATIONS_S.get(match[2].lower()) if match else None
    if match is None or (unit_s is None and (match[2] or float(match[1]))):
        raise ValueError(f"{text!r} is not a duration; use a number and a unit, for example 100ms, 30s, 5m, 2h or 7d")
    return float(match[1]) * (unit_s or 0.0)


def parse_rate(text: str) -> float:
    """Bytes per second.

    >>> parse_rate("10MiB/s"), parse_rate("500kB")
    (10485760.0, 500000.0)
    >>> parse_rate("fast")
    Traceback (most recent call last):
    ValueError: 'fast' is not a rate; use for example 10MiB/s
    """
    try:
        count = parse_size(text.strip().removesuffix("/s"))
    except ValueError:
        count = 0
    if count == 0:
        raise ValueError(f"{text!r} is not a rate; use for example 10MiB/s")
    return float(count)


def show_size(count_bytes: float) -> str:
    """
    >>> show_size(0), show_size(1023), show_size(1536), show_size(10 << 30)
    ('0 B', '1023 B', '1.5 KiB', '10.0 GiB')
    """
    if abs(count_bytes) < 1024:
        return f"{count_bytes:.0f} B"
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        count_bytes /= 1024
        if abs(count_bytes) < 1024:
            return f"{count_bytes:.1f} {unit}"
    return f"{count_bytes / 1024:.1f} PiB"


def show_duration(seconds: float) -> str:
    """
    >>> show_duration(0.0123), show_duration(5.25), show_duration(90), show_duration(7200), show_duration(864000)
    ('12 ms', '5.2 s', '90.0 s', '2.0 h', '10.0 d')
    """
    if abs(seconds) < 1:
        return f"{seconds * 1e3:.0f} ms"
    for limit_s, unit_s, unit in ((120, 1, "s"), (3600, 60, "min"), (172800, 3600, "h")):
        if abs(seconds) < limit_s:
            return f"{seconds / unit_s:.1f} {unit}"
    return f"{seconds / 86400:.1f} d"


def unescape(text: str) -> bytes:
    r"""The bytes of a text that was typed with \t, \n, \0, \\ or \xNN in it, since a shell passes those on as they are.

    >>> unescape(r"\t"), unescape("\t"), unescape(r"\x1f"), unescape("::")
    (b'\t', b'\t', b'\x1f', b'::')
    >>> unescape(r"\q")
    Traceback (most recent call last):
    ValueError: '\\q' has an escape that is none of \t \n \r \0 \\ \xNN
    """
    plain = {"t": b"\t", "n": b"\n", "r": b"\r", "0": b"\0", "\\": b"\\"}

    def replaced(match: "re.Match[bytes]") -> bytes:
        code = match[1].decode(errors="replace")
        if code in plain:
            return plain[code]
        if len(code) == 3:
            return bytes([int(code[1:], 16)])
        raise ValueError(f"{text!r} has an escape that is none of \\t \\n \\r \\0 \\\\ \\xNN")

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", replaced, text.encode(errors="surrogateescape"), flags=re.DOTALL)
