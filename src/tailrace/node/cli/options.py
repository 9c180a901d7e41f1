"""The options that commands share, so that each is spelled and explained in one way everywhere."""

from collections.abc import Callable
from typing import Annotated, TypeVar

import typer

from .start import parse_start
from .units import parse_duration, parse_rate, parse_size, unescape

T = TypeVar("T")


def _parser(parse: Callable[[str], T]) -> Callable[[str], T]:
    def parsed(text: str) -> T:
        try:
            return parse(text)
        except ValueError as wrong:
            raise typer.BadParameter(str(wrong)) from None

    return parsed


def _parse_count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a whole number")
    return int(text)


size, duration, rate = _parser(parse_size), _parser(parse_duration), _parser(parse_rate)
count = _parser(_parse_count)
separator, position_or_time = _parser(unescape), _parser(parse_start)


def or_none(parse: Callable[[str], T]) -> Callable[[str], T | str]:
    """The word `none` stays as it is: it takes a setting away."""
    return lambda text: text if text == "none" else parse(text)


def examples(*lines: str) -> str:
    """An epilog that keeps its lines apart."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


WorldFolder = Annotated[
    str, typer.Option("--world", "-w", metavar="DIR", envvar="TAILRACE_WORLD", help="The world's folder.")
]
CertificateKey = Annotated[
    str | None, typer.Option("--key", metavar="FILE", help="The certificate's key.", show_default=False)
]
Roots = Annotated[
    str | None, typer.Option("--roots", metavar="FILE", help="Whose certificates are believed.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Write the result, or the error, to stdout as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", envvar="TAILRACE_DEBUG", help="Show a traceback with errors.")]
StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream's name.")]

DEFAULT_WORLD = "./tailrace-data"
