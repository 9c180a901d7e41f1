from collections.abc import Sequence
from enum import IntEnum
from os import PathLike
from typing import Literal, overload

from typing_extensions import Buffer

from ._core import Block

_Version = tuple[int, int, int]

KIND_SET: int
KIND_CAS: int
KIND_ERASE: int
TROUBLE_LINK: int
TROUBLE_VIEW: int
TROUBLE_CONFIG: int

def replicas_of(key: bytes, backends: int, copies: int) -> list[int]: ...
def pack(
    kind: int,
    keys: list[bytes],
    values: list[Buffer] | None,
    version: _Version,
    expected: list[_Version] | None,
    expiry_s: int,
    backends: int,
    copies: int,
    first_copy: int = 0,
    frame_bytes_max: int = 65536,
) -> list[tuple[int, Block, Sequence[int]]]: ...

class Delivery(IntEnum):
    TAKEN = 1
    WRONG = 2
    SHUT = 3
    MOVED = 4
    UNSENT = 5
    UNKNOWN = 6

class Couriers:
    def __init__(self, backends: int) -> None: ...
    def attach(self, backend: int, host: str, port: int, ticket: bytes, instance: int, deadline_s: float) -> None: ...
    def detach(self, backend: int) -> None: ...
    def attached(self, backend: int) -> bool: ...
    def deliver(
        self, frames: Sequence[tuple[int, Buffer, Sequence[int]]], deadline_s: float, spare: int = 0
    ) -> list[tuple[Delivery, bytes, _Version]]: ...

class Watcher:
    def __init__(self, keys: list[bytes], places: list[int], skip: tuple[int, int] = (0, 0)) -> None: ...
    def attach(self, backend: int, host: str, port: int, ticket: bytes, deadline_s: float) -> None: ...
    def wait(self, timeout_s: float) -> bool: ...
    def value(self, number: int) -> bytes | None: ...
    def stop(self) -> None: ...

class CellClient:
    @property
    def asks(self) -> list[int]: ...
    @property
    def unreachable(self) -> list[int]: ...
    @property
    def troubled(self) -> bool: ...
    def __init__(
        self,
        backends: int,
        copies: int,
        quorum: int,
        *,
        attempts_max: int = 32,
        data_bytes_max: int = 16384,
        hedge_s: float = 0.03,
        recording: bool = False,
    ) -> None: ...
    def attach_view(self, backend: int, folder: str | PathLike[str], config_id: int) -> None: ...
    def attach_link(
        self, backend: int, host: str, port: int, ticket: bytes, config_id: int, deadline_s: float
    ) -> None: ...
    def detach(self, backend: int) -> None: ...
    def suspect(self, backend: int, dead: bool) -> None: ...
    def ways(self) -> list[Literal["memory", "engine"] | None]: ...
    def instance_of(self, backend: int) -> int | None: ...
    def troubles(self) -> dict[int, int]: ...
    def get(self, key: bytes, now_s: int = 0, relaxed: bool = False, deadline_s: float = 1.0) -> bytes | None: ...
    @overload
    def get_many(
        self,
        keys: list[bytes],
        now_s: int = 0,
        *,
        relaxed: bool = False,
        deadline_s: float = 1.0,
        versions: Literal[False] = False,
    ) -> list[bytes | None]: ...
    @overload
    def get_many(
        self, keys: list[bytes], now_s: int = 0, *, relaxed: bool = False, deadline_s: float = 1.0, versions: bool
    ) -> list[bytes | None] | list[tuple[bytes, _Version] | None]: ...
    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        deadline_s: float = 1.0,
        only: list[int] | None = None,
    ) -> list[int]: ...
    def get_into(
        self, key: bytes, buffer: Buffer, now_s: int = 0, *, relaxed: bool = False, deadline_s: float = 1.0
    ) -> int | None: ...
    def touches(self) -> dict[int, bytes]: ...
    def stats(self) -> dict[str, int]: ...
