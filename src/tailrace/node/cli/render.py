"""Messages as text: a line for people, JSON lines for programs, or the bare values. Pure.

What a terminal could take for a command is escaped in the lines for people; the other two forms lose nothing.
"""

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from json.encoder import encode_basestring  # the C function behind json.dumps(..., ensure_ascii=False)

from ...native import Message

_SHOWN_BYTES = 32  # how much of binary content a person sees
_SHOWN_CHARACTERS = 200  # … and of text that had to be escaped

Render = Callable[[Sequence[Message]], bytes]


def stamp(time_us: int) -> str:
    """
    >>> stamp(1_700_000_000_000_042)
    '2023-11-14T22:13:20.000042Z'
    """
    second, fraction_us = divmod(time_us, 1_000_000)
    return f"{_second(second)}.{fraction_us:06d}Z"


@lru_cache(maxsize=64)
def _second(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def jsonl(messages: Sequence[Message]) -> bytes:
    """
    >>> message = Message(stream="prices", shard=0, position=7, timestamp_us=0, key=None, value=b"9.99")
    >>> print(jsonl([message]).decode(), end="")
    {"stream":"prices","shard":0,"position":7,"timestamp":"1970-01-01T00:00:00.000000Z","key":null,"value":"9.99"}
    """
    lines, seen_us, written = [], None, ""
    for message in messages:
        if message.timestamp_us != seen_us:  # messages that were sent together have one time
            seen_us = message.timestamp_us
            written = stamp(seen_us)
        lines.append(
            f'{{"stream":"{message.stream}","shard":{message.shard},"position":{message.position},'
            f'"timestamp":"{written}","key":{json_text(message.key)},"value":{json_text(message.value)}}}\n'
        )
    return "".join(lines).encode()


def json_text(content: bytes | None) -> str:
    """
    >>> print(json_text(b"a"), json_text(None), json_text(b"\\xff"))
    "a" null {"base64":"/w=="}
    """
    if content is None:
        return "null"
    try:
        return encode_basestring(content.decode())
    except UnicodeDecodeError:
        return f'{{"base64":"{base64.b64encode(content).decode()}"}}'


def raw(messages: Sequence[Message]) -> bytes:
    """The values, each with a newline; a tombstone is an empty line."""
    return b"".join([(message.value or b"") + b"\n" for message in messages])


def human(messages: Sequence[Message], *, with_stream: bool = False) -> bytes:
    """One line a message: time, stream if there are several, shard, position, key, value."""
    lines = []
    for message in messages:
        place = f"{message.stream}/{message.shard}" if with_stream else str(message.shard)
        key = "-" if message.key is None else printable(message.key)
        value = "(no value)" if message.value is None else printable(message.value)
        lines.append(f"{stamp(message.timestamp_us)}  {place}  {message.position}  {key}  {value}\n")
    return "".join(lines).encode()


def printable(content: bytes) -> str:
    r"""
    >>> print(printable("naïve".encode()), printable(b"two\nlines"), printable(b"\xff\x00\x01"), printable(b""))
    naïve two\nlines 0xff0001 (3 bytes) ""
    """
    if not content:
        return '""'
    try:
        text = content.decode()
    except UnicodeDecodeError:
        cut = "…" if len(content) > _SHOWN_BYTES else ""
        return f"0x{content[:_SHOWN_BYTES].hex()}{cut} ({len(content)} bytes)"
    if text.isprintable():
        return text
    shown = repr(text[:_SHOWN_CHARACTERS])[1:-1]
    return shown if len(text) <= _SHOWN_CHARACTERS else f"{shown}… ({len(content)} bytes)"
