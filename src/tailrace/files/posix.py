"""The durable layer on a POSIX file system: local disks, and cluster file systems that are mounted.

A file `name` has a fence `.name.fence` beside it while somebody may append (see `fence`). A folder's claim is the fence
`.owner.fence` in it. A file without a fence is settled: all its bytes are flushed.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from threading import Condition, Lock
from types import TracebackType
from typing import Self

from ..env import Clock, Disk, Randomness, SystemClock, SystemDisk, SystemRandomness
from ..env.disk import Buffer
from ..errors import Closed, Fenced, FileProblem, NameRefused, OffsetMismatch
from ..native import Pages
from ..native.fenced import Side
from .fence import Fence, FenceRecord, State, close_quietly, judge
from .interface import Appender, FileLength
from .paths import check_path, is_name
from .problems import explain, explained
from .swift import Swift, flush_together

_FENCE = ".fence"
_OWNER = ".owner.fence"
_GONE = ".gone."
_DRAFT = re.compile(r"\.(.+)\.[0-9a-f]{16}")
_FORGET_BYTES = 1 << 20  # at least this much in one call
# A file that grows fast has room made for it in large pieces, as much as it has: that spares the file system a quarter
# of its work, and files that stay small take no more than they need.
_RESERVE_FROM, _RESERVE_BYTES_MAX = 8 << 20, 64 << 20
_READ_MAX = 64 << 20  # `read` is for small files
# Of a file that is read in place, at once: thousands may read, and each map takes tables of pages.
_MAP_BYTES = 16 << 20


class PosixFiles:
    """All files below `root`, which is made if it is not there."""

    def __init__(
        self,
        root: str,
        *,
        disk: Disk | None = None,
        clock: Clock | None = None,
        randomness: Randomness | None = None,
        owner: str | None = None,
    ) -> None:
        self._root = os.path.abspath(root)
        self._disk: Disk = disk or SystemDisk()
        self._is_here = disk is None  # so appenders may go to it by themselves
        self._clock: Clock = clock or SystemClock()
        self._randomness: Randomness = randomness or SystemRandomness()
        self._pid = os.getpid()
        self._owner = owner or f"process {self._pid} on {socket.gethostname()}"
        self._make_folder(self._root)

    # ---- appending

    def claim(self, folder: str) -> "PosixClaim":
        self.make_folder(folder)
        path = self._path(folder)
        with explained("claim", path), self._taken(f"{path}/{_OWNER}") as fence:
            record = self._record(flushed_bytes=0)
            fence.write(record)
            # The older claim can make no new file from here on, so this finds every file it may still append to.
            revoked = [
                name[1 : -len(_FENCE)]
                for name in sorted(self._disk.list(path))
                if name.startswith(".") and name.endswith(_FENCE) and name != _OWNER
            ]
            for name in revoked:
                self._revoke(f"{path}/{name}")
        return PosixClaim(self, path, fence, record, revoked)

    def append(self, path: str, *, at_most: int | None = None) -> "PosixAppender":
        full = self._path(path)
        with explained("open for appending", full):
            handle = self._disk.open(full, write=True)
            with self._closing_on_error(handle), self._taken(_fence_of(full)) as fence:
                size = self._disk.size(handle)
                length = judge(fence.read(), size, self._disk.identity()).readable_bytes
                length = length if at_most is None else min(length, at_most)
                if size > length:  # bytes that nobody flushed, hence nobody saw; or that are not trusted
                    self._disk.truncate(handle, length)
                self._disk.sync(handle)
                record = self._record(flushed_bytes=length)
                fence.write(record)
        return PosixAppender(self, full, handle, fence, record)

    def settle(self, path: str) -> None:
        full = self._path(path)
        with explained("settle", full):
            with suppress(FileNotFoundError):
                handle = self._disk.open(full, write=True)
                try:
                    self._disk.truncate(handle, self._disk.size(handle))  # whoever died had perhaps reserved more
                finally:
                    close_quietly(self._disk, handle)
            with suppress(FileNotFoundError):
                self._disk.unlink(_fence_of(full))

    # ---- reading

    def view(self, path: str) -> "PosixView":
        full = self._path(path)
        with explained("open", full):
            return PosixView(self._disk, self._clock, full, self._disk.open(full, write=False))

    def read(self, path: str) -> bytes:
        full = self._path(path)
        with self.view(path) as view, explained("read", full):
            content = bytearray(view.length().readable_bytes)
            if len(content) > _READ_MAX:
                raise FileProblem(f"{full} has {len(content)} bytes; whole files are read only up to {_READ_MAX}")
            count = view.read_into(0, memoryview(content))
            return bytes(content[:count])

    def list(self, folder: str) -> list[str]:
        full = self._path(folder)
        with explained("list", full):
            try:
                return sorted(name for name in self._disk.list(full) if not name.startswith("."))
            except FileNotFoundError:
                return []

    # ---- whole files and folders

    def publish(self, path: str, content: Buffer, *, replace: bool = True) -> bool:
        full = self._path(path)
        folder, name = os.path.split(full)
        draft = f"{folder}/.{name}.{self._randomness.nonce():016x}"
        with explained("publish", full):
            handle = self._disk.create(draft)
            try:
                try:
                    self._disk.write(handle, 0, [content])
                    self._disk.sync(handle)
                finally:
                    close_quietly(self._disk, handle)
                if replace:
                    self._disk.rename(draft, full)
                else:
                    self._disk.link(draft, full)
                    self._disk.unlink(draft)
            except FileExistsError:
                self._disk.unlink(draft)
                return False
            except OSError:
                with suppress(OSError):
                    self._disk.unlink(draft)
                raise
            self._disk.sync_folder(folder)
        return True

    def move(self, source: str, target: str) -> None:
        old, new = self._path(source), self._path(target)
        with explained("move", old):
            self._disk.rename(old, new)
            self._disk.sync_folder(os.path.dirname(new))

    def forget_drafts(self, folder: str, stale: Callable[[str], bool]) -> int:
        full, count = self._path(folder), 0
        with explained("tidy up", full):
            for name in self._disk.list(full):
                if (draft := _DRAFT.fullmatch(name)) and stale(draft[1]):
                    with suppress(FileNotFoundError):
                        self._disk.unlink(f"{full}/{name}")
                        count += 1
        return count

    def delete(self, path: str) -> None:
        full = self._path(path)
        with explained("delete", full):
            self._disk.unlink(full)
            with suppress(FileNotFoundError):
                self._disk.unlink(_fence_of(full))
            self._disk.sync_folder(os.path.dirname(full))

    def make_folder(self, path: str) -> None:
        self._make_folder(self._path(path))

    def delete_folder(self, path: str) -> None:
        """Out of the way first, by one rename: a crash leaves a hidden folder, which the next deletion takes along."""
        full = self._path(path)
        parent, name = os.path.split(full)
        with explained("delete", full):
            self._disk.rename(full, f"{parent}/{_GONE}{name}.{self._randomness.nonce():016x}")
            self._disk.sync_folder(parent)
            for other in self._disk.list(parent):
                if other.startswith(_GONE):
                    self._delete_folder(f"{parent}/{other}")
            self._disk.sync_folder(parent)

    # ---- inside

    def _path(self, path: str) -> str:
        return f"{self._root}/{check_path(path)}"

    def _make_folder(self, full: str) -> None:
        with explained("make the folder", full):
            if self._disk.is_folder(full):
                return
            parent = os.path.dirname(full)
            if parent != full:
                self._make_folder(parent)
            try:
                self._disk.make_folder(full)
            except FileExistsError:
                if not self._disk.is_folder(full):
                    raise
            self._disk.sync_folder(parent)

    def _delete_folder(self, full: str) -> None:
        with suppress(FileNotFoundError):  # somebody else deletes it too
            for name in self._disk.list(full):
                inner = f"{full}/{name}"
                if self._disk.is_folder(inner):
                    self._delete_folder(inner)
                else:
                    with suppress(FileNotFoundError):
                        self._disk.unlink(inner)
            self._disk.remove_folder(full)

    def _record(self, flushed_bytes: int) -> FenceRecord:
        return FenceRecord(self._randomness.nonce(), flushed_bytes, State.APPENDING, self._disk.identity(), self._owner)

    def _revoke(self, full: str) -> None:
        """Shut the appender out, but leave the lengths as they are: how far it came is for others to judge.

        A fence from another machine is no longer believed: the disk may have moved here after a power loss, and then it
        is as old as if this machine had gone down.
        """
        if fence := Fence.open(self._disk, self._clock, _fence_of(full), write=True):
            try:
                with fence.locked():
                    if record := fence.read():
                        identity = replace(record.identity, host=self._disk.identity().host)
                        fence.write(
                            replace(record, nonce=self._randomness.nonce(), state=State.REVOKED, identity=identity)
                        )
            finally:
                fence.close()

    def _refuse_if_fenced(self, fence: Fence, mine: FenceRecord, path: str, tried: str) -> FenceRecord:
        """The fence as it is, if it is ours."""
        if os.getpid() != self._pid:
            raise Fenced(
                f"could not {tried} {path}: it was opened before this process was forked, and parent and child would "
                "overwrite each other. Open it after the fork, or start processes with spawn"
            )
        held = fence.read() if fence.linked() else None
        if held is not None and held.nonce == mine.nonce:
            return held
        raise Fenced(
            f"could not {tried} {path}: {self._who(held, path)}. What was not flushed before stays unwritten; open "
            "again to take it back"
        )

    def _who(self, held: FenceRecord | None, path: str) -> str:
        """Who shut us out: by the fence, or, if that is gone, by the folder's."""
        if held is None and (
            fence := Fence.open(self._disk, self._clock, f"{os.path.dirname(path)}/{_OWNER}", write=False)
        ):
            held = fence.read()
            fence.close()
        return f"{held.owner} owns it now" if held else "it was deleted"

    @contextmanager
    def _taken(self, path: str) -> Iterator[Fence]:
        """The fence at the path, made if need be, locked, and sure to be the one that others see. Stays open after."""
        while True:
            fence = Fence.open_or_create(self._disk, self._clock, path)
            try:
                with fence.locked():
                    if fence.linked():
                        yield fence
                        return
            except BaseException:
                fence.close()
                raise
            fence.close()  # it was settled while we waited for the lock

    @contextmanager
    def _closing_on_error(self, handle: int) -> Iterator[None]:
        try:
            yield
        except BaseException:
            close_quietly(self._disk, handle)
            raise

    def _create(self, full: str) -> "PosixAppender":
        """Fence first: whoever sees the file must not take it for settled."""
        with explained("create", full), self._taken(_fence_of(full)) as fence:
            record = self._record(flushed_bytes=0)
            fence.write(record)
            handle = self._disk.create(full)
            with self._closing_on_error(handle):
                self._disk.sync_folder(os.path.dirname(full))
        return PosixAppender(self, full, handle, fence, record)


class PosixClaim:
    def __init__(
        self, files: PosixFiles, folder: str, fence: Fence, record: FenceRecord, revoked: Sequence[str]
    ) -> None:
        self._files, self._folder, self._fence, self._record = files, folder, fence, record
        self._closed = False
        self.revoked = tuple(revoked)

    def create(self, name: str) -> "PosixAppender":
        if not is_name(name):
            raise NameRefused(f"{name!r} is not a file name: letters, digits and . _ - only. Nothing was done")
        with self._held(f"create {name} in"):
            return self._files._create(f"{self._folder}/{name}")

    def check(self) -> None:
        with self._held("check"):
            pass

    def hold(self) -> AbstractContextManager[None]:
        return self._held("hold")

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._fence.close()

    @contextmanager
    def _held(self, tried: str) -> Iterator[None]:
        if self._closed:
            raise Closed(f"the claim of {self._folder} was closed; claim it again")
        with explained(tried, self._folder), self._fence.locked():
            self._files._refuse_if_fenced(self._fence, self._record, self._folder, tried)
            yield


class PosixAppender:
    """See `Appender`. `_lock` guards the numbers; the fence's lock makes "still mine?" and the act one step."""

    def __init__(self, files: PosixFiles, path: str, handle: int, fence: Fence, record: FenceRecord) -> None:
        self._files, self._disk, self._path, self._handle, self._fence = files, files._disk, path, handle, fence
        self._record = record
        self._swift = Swift(handle) if files._is_here else None
        self._length = self._flushed = record.flushed_bytes
        self._reserved = self._length
        self._forgotten = 0  # bytes at the front that need not be in memory
        self._lock = Lock()
        self._sync_over = Condition(self._lock)
        self._syncing = False
        self._broken: str | None = None
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    @property
    def length(self) -> int:
        return self._length

    def append(self, offset: int, buffers: Sequence[Buffer]) -> int:
        with self._lock:
            self._check_usable()
            if offset != self._length:
                raise OffsetMismatch(
                    f"append to {self._path} at {offset}, but it has {self._length} bytes. Nothing was written; ask "
                    "for the length and append what is missing"
                )
            end = offset + sum(len(memoryview(buffer).cast("B")) for buffer in buffers)
            with explained("append to", self._path), self._fence.locked():
                self._refuse_if_fenced("append to")
                self._reserve(end)
                self._disk.write(self._handle, offset, buffers)
            self._length = end
            return end

    def flush_with(
        self,
        offset: int,
        content: Buffer,
        other: Appender,
        other_offset: int,
        other_content: Buffer,
        *,
        passing: bool,
        notice: object | None = None,
    ) -> None:
        if self._swift is None or not isinstance(other, PosixAppender) or other._swift is None:
            return
        with self._lock, other._lock, suppress(FileProblem):  # append() will tell, and what to do about it
            if not (self._is_at(offset) and other._is_at(other_offset)):
                return
            if not passing:
                self._make_room_for(content)
            with self._fence.alone() as fence, other._fence.alone() as other_fence:
                side = self._swift.side(fence, self._record, offset, content, passing=passing)
                other_side = other._swift.side(other_fence, other._record, other_offset, other_content, passing=False)
                try:
                    flush_together(side, other_side, notice)
                finally:  # an interrupt comes right behind it: what was told stays told
                    self._took(side)
                    other._took(other_side)
            if 2 * side.passed > self._length - offset:
                # What is in memory of it all the same, readers have brought: others want it, too.
                self._forgotten = self._length
        for appender in (self, other):
            if appender._broken is not None:
                raise FileProblem(appender._broken)

    def _is_at(self, offset: int) -> bool:
        """Whether it ends there, and all of it is synced, and it is ours as far as we know."""
        is_ours = not self._closed and not self._broken and not self._syncing and os.getpid() == self._files._pid
        return is_ours and offset == self._length == self._flushed

    def _took(self, side: Side) -> None:
        """What was written and not told of is no part of the file: whoever tries again writes it again."""
        assert self._swift is not None
        self._swift.learn(side)
        if side.told:
            self._length = self._flushed = side.end
            self._record = self._swift.following
        elif side.sync_error:
            self._broken = str(explain(OSError(side.sync_error, os.strerror(side.sync_error)), "flush", self._path))

    def _make_room_for(self, content: Buffer) -> None:
        end = self._length + len(memoryview(content).cast("B"))
        if self._length >= _RESERVE_FROM and end > self._reserved:
            with explained("append to", self._path), self._fence.locked():
                self._refuse_if_fenced("append to")
                self._reserve(end)

    def _reserve(self, end: int) -> None:
        """Ahead of what is about to be written. The fence is ours, and locked."""
        if self._length < _RESERVE_FROM or end <= self._reserved:
            return
        self._reserved = end + min(end, _RESERVE_BYTES_MAX)
        with suppress(OSError):  # whether there is room, the write will tell
            self._disk.reserve(self._handle, self._length, self._reserved)

    def sync(self) -> int:
        with self._lock:
            self._check_usable()
            target = self._length
            while self._flushed < target:
                if self._syncing:  # somebody's flush is under way; it may or may not cover us
                    self._sync_over.wait()
                    self._check_usable()
                    continue
                self._sync_now()
            return self._flushed

    def _sync_now(self) -> None:
        covered, self._syncing = self._length, True
        self._lock.release()
        try:
            error = self._flush(covered)
        finally:
            self._lock.acquire()
            self._syncing = False
            self._sync_over.notify_all()
        if error is not None:
            self._broken = str(error)
            raise error
        self._flushed = covered

    def _flush(self, covered: int) -> FileProblem | None:
        try:
            self._disk.sync(self._handle)
            with self._fence.locked():
                told = self._refuse_if_fenced("flush").flushed_bytes
                self._record = self._record.flushed_to(max(covered, told))
                self._fence.write(self._record)
        except FileProblem as seen:
            return seen
        except OSError as seen:
            return explain(seen, "flush", self._path)
        return None

    def forget(self, end: int) -> None:
        with self._lock:
            begin, end = self._forgotten, min(end, self._flushed)
            if self._closed or end < begin + _FORGET_BYTES:
                return
            self._forgotten = end
            with suppress(OSError):  # then they stay
                self._disk.forget(self._handle, begin, end)

    def seal(self) -> None:
        self.sync()
        with self._lock:
            with explained("seal", self._path), self._fence.locked():
                self._refuse_if_fenced("seal")
                # What a failed append left behind, or was reserved in vain.
                if max(self._disk.size(self._handle), self._reserved) > self._flushed:
                    self._disk.truncate(self._handle, self._flushed)
                    self._disk.sync(self._handle)
                self._fence.write(replace(self._record, state=State.SEALED))
                self._disk.unlink(_fence_of(self._path))
            self._close()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            # Best effort: it only spares others the wait for somebody who will not come back.
            with suppress(OSError, FileProblem), self._fence.locked():
                # What the fence tells of stays, also if an interrupt has kept us from knowing it.
                held = self._refuse_if_fenced("close")
                if self._reserved > (length := max(self._length, held.flushed_bytes)):
                    self._disk.truncate(self._handle, length)
                self._fence.write(replace(held, state=State.REVOKED))
            self._close()

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._swift is not None:
                self._swift.close()
            self._fence.close()
            close_quietly(self._disk, self._handle)

    def _check_usable(self) -> None:
        if self._closed:
            raise Closed(f"{self._path} was sealed or closed; open it again to append")
        if self._broken:
            raise FileProblem(f"{self._path} cannot be appended to any more, since a flush failed: {self._broken}")

    def _refuse_if_fenced(self, tried: str) -> FenceRecord:
        return self._files._refuse_if_fenced(self._fence, self._record, self._path, tried)


class PosixView:
    """See `View`. Keeps the fence open while there is one: one small read tells how far the file goes."""

    def __init__(self, disk: Disk, clock: Clock, path: str, handle: int) -> None:
        self._disk, self._clock, self._path, self._handle = disk, clock, path, handle
        self._fence: Fence | None = None
        self._mappable: bool | None = None  # not known yet
        self._pages: Pages | None = None
        self._closed = False

    def length(self) -> FileLength:
        self._check_open()
        with explained("ask for the length of", self._path):
            while True:
                if self._fence is None:
                    self._fence = Fence.open(self._disk, self._clock, _fence_of(self._path), write=False)
                if self._fence is None:
                    size = self._disk.size(self._handle)
                    self._fence = Fence.open(self._disk, self._clock, _fence_of(self._path), write=False)
                    if self._fence is None:
                        return FileLength(size, size, appending=False)
                    # An appender came in between, so the size may count bytes that it has not flushed.
                if self._fence.linked():
                    return judge(self._fence.read(), self._disk.size(self._handle), self._disk.identity())
                self._fence.close()
                self._fence = None

    def read_into(self, offset: int, buffer: memoryview) -> int:
        self._check_open()
        with explained("read", self._path):
            return self._disk.read_into(self._handle, offset, buffer)

    def expect(self, offset: int, size: int) -> None:
        self._check_open()
        with suppress(OSError):  # then they come when they are read
            self._disk.expect(self._handle, offset, offset + size)

    def is_mappable(self) -> bool:
        self._check_open()
        if self._mappable is None:
            with suppress(OSError):  # then perhaps the next time
                self._mappable = self._disk.is_mappable(self._handle)
        return bool(self._mappable)

    def mapped(self, offset: int, size: int) -> memoryview | None:
        end = offset + size
        if not self.is_mappable() or not size:
            return None
        with suppress(OSError):  # then reading tells what is wrong
            if self._pages is None or not self._pages.begin <= offset < end <= self._pages.end:
                # Older ones live on with those who look at them. Behind what was flushed a file may be cut.
                room = min(offset + max(size, _MAP_BYTES), self.length().flushed_bytes)
                if end > room:
                    return None
                self._pages = Pages(self._handle, offset, room)
            return self._pages.view(offset, end)
        return None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._pages = None
            if self._fence:
                self._fence.close()
            close_quietly(self._disk, self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the view of {self._path} was closed; open it again")


def _fence_of(full: str) -> str:
    folder, name = os.path.split(full)
    return f"{folder}/.{name}{_FENCE}"
