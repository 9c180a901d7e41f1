"""What every message from outside must be before anyone believes it: ours, and within bounds."""

from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from ..errors import NameRefused, WireRefused
from ..model import check_name

M = TypeVar("M", bound=Message)


def parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except DecodeError:
        raise WireRefused(f"{len(data)} bytes that are no {kind.__name__}") from None


def require(holds: bool, what: str) -> None:
    if not holds:
        raise WireRefused(f"{what}: no version of Tailrace sends that")


def named(text: str, what: str) -> str:
    try:
        return check_name(text, what)
    except NameRefused as refused:
        raise WireRefused(str(refused)) from None
