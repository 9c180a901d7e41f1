"""How a message file lies in the data cache: in chunks of one size, each under a key of its own. Pure.

A chunk is always written from its start, and a longer one takes the place of a shorter one. So whatever a consumer
finds are the right bytes for their places in the file, however little it is (A14).
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from typing_extensions import Buffer

#: With key and header the larger three fill whole pages of the cache. The largest two go through a connection in one
#: segment of 64 KiB and in two, without another one for their last few bytes.
CHUNK_SIZES = (4096, 16320, 61376, 126912)
KEY_BYTES = 16


class ChunkCache(Protocol):
    """The data cache: chunks by key."""

    def get_parts(
        self,
        prefix: bytes,
        first: int,
        count: int,
        buffer: Buffer,
        stride: int,
        *,
        relaxed: bool = False,
        only: list[int] | None = None,
    ) -> list[int]: ...

    def set_many(self, items: Mapping[bytes, Buffer] | Iterable[tuple[bytes, Buffer]]) -> object: ...


def file_key(incarnation: str, shard: int, name: str, chunk_bytes: int) -> bytes:
    """What the keys of a file's chunks begin with. The stream's incarnation is in it: a name may be used again. So is
    the size: chunks of another one lie elsewhere in the file."""
    return hashlib.blake2b(f"{incarnation}/{shard}/{name}/{chunk_bytes}".encode(), digest_size=KEY_BYTES).digest()


def chunk_key(file: bytes, number: int) -> bytes:
    return file + number.to_bytes(4, "little")


def chunk_size_for(flush_bytes: int) -> int:
    """The largest of which a flush fills several: what is written twice is then a small part (A23)."""
    for size in reversed(CHUNK_SIZES):
        if 4 * size <= flush_bytes:
            return size
    return CHUNK_SIZES[0]


class ChunkedFile:
    """The chunks of a file that grows at its end. Remembers the last one as long as it is not full."""

    def __init__(self, key: bytes, chunk_bytes: int) -> None:
        self.key, self.chunk_bytes = key, chunk_bytes
        self.length = 0
        self._partial = b""

    def append(self, content: memoryview) -> Iterator[tuple[bytes, Buffer]]:
        """(key, value) of every chunk that the content makes or makes longer. Whole chunks are parts of the content."""
        number, size = self.length // self.chunk_bytes, self.chunk_bytes
        self.length += len(content)
        if self._partial:
            missing = size - len(self._partial)
            chunk = self._partial + content[:missing]
            yield chunk_key(self.key, number), chunk
            if len(chunk) < size:
                self._partial = chunk
                return
            content, number = content[missing:], number + 1
        whole = len(content) // size
        for at in range(whole):
            yield chunk_key(self.key, number + at), content[at * size : (at + 1) * size]
        self._partial = bytes(content[whole * size :])
        if self._partial:
            yield chunk_key(self.key, number + whole), self._partial


@dataclass(frozen=True, slots=True)
class Part:
    """A run of bytes of one file, as its chunks see it."""

    first: int  # number of the first chunk
    count: int
    skip: int  # bytes of the first chunk before the run

    @classmethod
    def of(cls, offset: int, size: int, chunk_bytes: int) -> "Part":
        first = offset // chunk_bytes
        return cls(first, (offset + size - 1) // chunk_bytes - first + 1, offset - first * chunk_bytes)

    def complete(self, got: list[int], size: int, chunk_bytes: int) -> bool:
        """Whether chunks of these sizes have all of the run."""
        last = self.skip + size - (self.count - 1) * chunk_bytes
        return got.count(chunk_bytes) + (last <= got[-1] < chunk_bytes) == self.count

    def wanted(self, size: int, chunk_bytes: int) -> list[int]:
        """How many bytes of each chunk are needed, from its start."""
        last = self.skip + size - (self.count - 1) * chunk_bytes
        return [chunk_bytes] * (self.count - 1) + [last]


def short_ones(sizes: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Which chunks have less than is wanted of them, or are not there at all."""
    return [number for number, (size, need) in enumerate(zip(sizes, wanted, strict=True)) if size < need]
