"""Names from outside: refused before they touch a path."""

import re

from ..errors import ConfigError, NameRefused

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, what: str) -> str:
    """The name itself, or NameRefused.

    >>> check_name("prices", "stream")
    'prices'
    >>> check_name("../etc", "stream")
    Traceback (most recent call last):
    tailrace.errors.NameRefused: '../etc' is not a stream name: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a \
letter or digit. Nothing was done
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    shown = repr(name) if len(repr(name)) <= 80 else repr(name)[:77] + "…"
    raise NameRefused(
        f"{shown} is not a {what} name: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or digit. "
        "Nothing was done"
    )


def refuse_bad_name(name: str, what: str) -> None:
    """For names in a configuration: what is wrong with them is what is wrong with it."""
    try:
        check_name(name, what)
    except NameRefused as refused:
        raise ConfigError(str(refused)) from None
