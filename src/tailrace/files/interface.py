"""What a durable layer must do. One contract suite (tests/contract/test_files.py) holds every implementation to it.

Paths are relative, with `/` between names that begin with a letter, a digit or `_`; anything else is refused.

Invariants:
- Bytes become readable only once they are flushed: nobody acts on a byte that a crash could take back.
- A file's flushed length only grows, and the bytes below it never change.
- The newest appender of a file wins: every older one fails with Fenced and can no longer make a byte readable.
- The newest claim of a folder wins: older ones fail with Fenced and make no more files in it, and their
  appenders are shut out.
- What fails half-way leaves nothing that a later open trips on.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from ..env.disk import Buffer

#: Of a file whose newest bytes lie in a cache, what its appender keeps in memory as well. The memory that the rest
#: gives back is what the next bytes are written to: fresh memory is dear, above all in virtual machines.
WARM_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class FileLength:
    """How far a file goes.

    flushed_bytes: an appender confirmed these; if they are bad now, the disk broke them.
    readable_bytes: read up to here. Larger than flushed only when the appender's machine went down before it could
        say how far it had come: what survived is there, and its tail may be torn.
    appending: an appender holds it, so more may come and no later file has begun.
    """

    flushed_bytes: int
    readable_bytes: int
    appending: bool


class Appender(Protocol):
    """The one handle that may grow a file. Safe to use from several threads."""

    @property
    def path(self) -> str: ...

    @property
    def length(self) -> int:
        """Bytes appended, flushed or not."""
        ...

    def append(self, offset: int, buffers: Sequence[Buffer]) -> int:
        """Append at `offset`, which must be the length; the new length. On an error the length stays as it was, so the
        same append can be tried again."""
        ...

    def flush_with(
        self,
        offset: int,
        content: Buffer,
        other: "Appender",
        other_offset: int,
        other_content: Buffer,
        *,
        passing: bool,
        notice: object | None = None,
    ) -> None:
        """Append here and to another file, and bring both to the disk together; the other one becomes readable
        behind this one. `passing`: what is appended here is read from elsewhere, as what is forgotten is. `notice`: a
        capsule of something to be said the moment both are there. Free to do nothing, or the first of the two alone:
        their lengths tell, and append() and sync() do what is left; then nothing was said. An error is one of sync():
        the appenders are of no more use."""
        ...

    def sync(self) -> int:
        """Flush all that was appended; how far that is. Callers at the same time share one flush. After an error the
        appender is of no more use: what the disk kept of the unflushed bytes is unknown."""
        ...

    def forget(self, end: int) -> None:
        """What lies before `end` is read from elsewhere: of what is flushed, nothing need stay in memory. Free to do
        nothing."""
        ...

    def seal(self) -> None:
        """Nothing more will come: sync, and let go. The file is then as long as its flushed length."""
        ...

    def close(self) -> None:
        """Let go without sealing; unflushed bytes are forgotten. A newer appender can go on."""
        ...


class View(Protocol):
    """A file opened for reading. One that lies here stays readable after it is deleted; from afar it is FileMissing."""

    def length(self) -> FileLength: ...

    def read_into(self, offset: int, buffer: memoryview) -> int:
        """Fill the buffer; how many bytes were there. Fewer than asked means: not yet."""
        ...

    def expect(self, offset: int, size: int) -> None:
        """These bytes are read next, and perhaps none behind them. Free to do nothing."""
        ...

    def is_mappable(self) -> bool:
        """Whether `mapped` may give anything, ever: the file lies on this machine."""
        ...

    def mapped(self, offset: int, size: int) -> memoryview | None:
        """These bytes without a copy, or None where that cannot be: then read. They are flushed, and in memory. Should
        the kernel drop them, because memory is short, and the disk fail when somebody looks at them again, the kernel
        ends the process (SIGBUS)."""
        ...

    def close(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Claim(Protocol):
    """The right to make files in a folder, until somebody newer claims it."""

    @property
    def revoked(self) -> Sequence[str]:
        """Files whose appenders this claim shut out. Their lengths are as they were left."""
        ...

    def create(self, name: str) -> Appender:
        """Make a file and be its appender."""
        ...

    def check(self) -> None:
        """Raise Fenced if somebody newer has claimed the folder."""
        ...

    def hold(self) -> AbstractContextManager[None]:
        """While it is entered nobody else can claim the folder, so that something elsewhere can be done under the
        claim. Keep it short: they wait. Fenced if somebody newer has claimed it already."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    def claim(self, folder: str) -> Claim: ...

    def append(self, path: str, *, at_most: int | None = None) -> Appender:
        """Be the appender of an existing file, instead of whoever was. If it has more bytes than `at_most`, the rest is
        cut off: for those who can bring it again, and do not trust what a machine left when it went down."""
        ...

    def settle(self, path: str) -> None:
        """Nobody will append any more: all bytes of the file count as flushed."""
        ...

    def view(self, path: str) -> View: ...

    def read(self, path: str) -> bytes:
        """All of a small file."""
        ...

    def publish(self, path: str, content: Buffer, *, replace: bool = True) -> bool:
        """Put a whole file in place, durably and at once; False if it was there and not to be replaced."""
        ...

    def move(self, source: str, target: str) -> None:
        """Give a settled file another name, durably and at once. FileMissing if it is not there (any more)."""
        ...

    def forget_drafts(self, folder: str, stale: Callable[[str], bool]) -> int:
        """Delete what publications that were cut short left in a folder, where `stale` says so of the name that was to
        be published; how many. One that is still under way fails with FileMissing, so be sure that none is."""
        ...

    def delete(self, path: str) -> None: ...

    def make_folder(self, path: str) -> None:
        """With those above it; nothing happens if it is there."""
        ...

    def delete_folder(self, path: str) -> None:
        """With all in it."""
        ...

    def list(self, folder: str) -> list[str]:
        """Names, sorted. A folder that is not there has none."""
        ...
