"""A whole disk in memory that can lose power: paths, handles, locks and errors as on Linux.

Invariant: what was synced survives every crash; what was not is kept, lost or torn by the rules that open `_volume`.
The same seed and the same calls give the same disk, byte for byte. One lock makes every call atomic.
"""

import errno
import functools
import itertools
import os
import posixpath
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Concatenate, ParamSpec, TypeVar

from tailrace.env import Identity
from tailrace.env.disk import Buffer

from ._volume import File, Folder, Keep, Naming, Node, Volume

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _call(method: "Callable[Concatenate[_Calls, _P], _R]") -> "Callable[Concatenate[_Calls, _P], _R]":
    """A call of the disk: one at a time, counted, and only for processes that live."""

    @functools.wraps(method)
    def call(self: "_Calls", /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with self._machine.lock:
            if self not in self._machine.living:
                raise OSError(errno.EBADF, "this simulated process is dead; take a new process() of the disk")
            self._machine.calls[method.__name__] += 1
            return method(self, *args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class _Handle:
    node: Node
    write: bool
    owner: "_Calls"


class _Machine:
    """What all processes share."""

    def __init__(self, seed: int, capacity_bytes: int | None) -> None:
        self.lock = threading.Lock()
        self.random = Random(seed)
        self.identity = Identity(host=self.random.randbytes(16), boot=self.random.randbytes(16))
        self.volume = Volume()
        self.handles: dict[int, _Handle] = {}
        self.next_handle = itertools.count(3)  # never given twice: a stale handle is always noticed
        self.living: set[_Calls] = set()
        self.calls: Counter[str] = Counter()
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0

    def longest(self, file: File) -> float:
        """How long the file may become."""
        if self.capacity_bytes is None:
            return float("inf")
        return len(file.content) + max(0, self.capacity_bytes - self.used_bytes)

    def close(self, number: int) -> None:
        node = self.handles.pop(number).node
        node.opens -= 1
        if node.locked_by == number:
            node.locked_by = None
        self.reclaim(node)

    def reclaim(self, node: Node | None) -> None:
        """Free the space of a file that just lost its last name or its last handle."""
        if isinstance(node, File) and not node.links and not node.opens:
            self.used_bytes -= len(node.content)


class _Calls:
    """`tailrace.env.Disk`, as one process calls it."""

    def __init__(self, machine: _Machine) -> None:
        self._machine = machine
        machine.living.add(self)

    @property
    def calls(self) -> Counter[str]:
        """How often each call was made, by all processes together."""
        with self._machine.lock:
            return self._machine.calls.copy()

    @_call
    def identity(self) -> Identity:
        return self._machine.identity

    @_call
    def create(self, path: str) -> int:
        folder, name = self._vacant(path)
        file = File()
        self._machine.volume.name(Naming(folder, name, file))
        return self._grant(file, write=True)

    @_call
    def open(self, path: str, *, write: bool) -> int:
        node = self._find(path)
        if write and isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        return self._grant(node, write)

    @_call
    def close(self, handle: int) -> None:
        self._opened(handle)
        self._machine.close(handle)

    @_call
    def read_into(self, handle: int, offset: int, buffer: memoryview) -> int:
        file = self._file(handle)
        if offset < 0:
            raise _error(errno.EINVAL)
        found = file.content[offset : offset + len(buffer)]
        buffer[: len(found)] = found
        return len(found)

    @_call
    def is_mappable(self, handle: int) -> bool:
        self._file(handle)
        return False

    @_call
    def write(self, handle: int, offset: int, buffers: Sequence[Buffer]) -> None:
        if not self._opened(handle).write:
            raise _error(errno.EBADF)
        if offset < 0:
            raise _error(errno.EINVAL)
        file = self._file(handle)
        data = b"".join(buffers)
        fitting = data[: int(max(0, min(len(data), self._machine.longest(file) - offset)))]
        if fitting:
            before = len(file.content)
            file.write(offset, fitting)
            self._machine.used_bytes += len(file.content) - before
        if len(fitting) < len(data):
            raise _error(errno.ENOSPC)

    @_call
    def reserve(self, handle: int, begin: int, end: int) -> None:
        self._file(handle)  # it would only be quicker

    @_call
    def truncate(self, handle: int, size: int) -> None:
        if size < 0 or not self._opened(handle).write:
            raise _error(errno.EINVAL)
        file = self._file(handle)
        if size > self._machine.longest(file):
            raise _error(errno.ENOSPC)
        self._machine.used_bytes += size - len(file.content)
        file.truncate(size)

    @_call
    def sync(self, handle: int) -> None:
        node = self._opened(handle).node
        if isinstance(node, Folder):
            self._machine.volume.sync(node)
        elif isinstance(node, File):
            node.sync()

    @_call
    def forget(self, handle: int, begin: int, end: int) -> None:
        self._file(handle)  # what is in memory and what is not makes no difference here

    @_call
    def expect(self, handle: int, begin: int, end: int) -> None:
        self._file(handle)  # it would only be quicker

    @_call
    def size(self, handle: int) -> int:
        node = self._opened(handle).node
        return len(node.content) if isinstance(node, File) else 0

    @_call
    def linked(self, handle: int) -> bool:
        return self._opened(handle).node.links > 0

    @_call
    def try_lock(self, handle: int) -> bool:
        node = self._opened(handle).node
        if node.locked_by is None:
            node.locked_by = handle
        return node.locked_by == handle

    @_call
    def unlock(self, handle: int) -> None:
        node = self._opened(handle).node
        if node.locked_by == handle:
            node.locked_by = None

    @_call
    def rename(self, source: str, target: str) -> None:
        old_folder, old_name, node = self._named(source)
        new_folder, new_name = self._place(target)
        replaced = new_folder.names.get(new_name)
        if replaced is node:
            return  # two names of one file: POSIX leaves both
        moves_folder = isinstance(node, Folder)
        if moves_folder and _parts(target)[: len(_parts(source))] == _parts(source):
            raise _error(errno.EINVAL, target)
        if isinstance(replaced, Folder):
            if not moves_folder:
                raise _error(errno.EISDIR, target)
            if replaced.names:
                raise _error(errno.ENOTEMPTY, target)
        elif replaced is not None and moves_folder:
            raise _error(errno.ENOTDIR, target)
        namings = Naming(old_folder, old_name, None), Naming(new_folder, new_name, node)
        self._machine.volume.name(*namings, after_all=moves_folder)
        self._machine.reclaim(replaced)

    @_call
    def link(self, source: str, target: str) -> None:
        node = self._find(source)
        folder, name = self._vacant(target)
        if isinstance(node, Folder):
            raise _error(errno.EPERM, source)
        self._machine.volume.name(Naming(folder, name, node))

    @_call
    def unlink(self, path: str) -> None:
        folder, name, node = self._named(path)
        if isinstance(node, Folder):
            raise _error(errno.EISDIR, path)
        self._machine.volume.name(Naming(folder, name, None))
        self._machine.reclaim(node)

    @_call
    def make_folder(self, path: str) -> None:
        folder, name = self._vacant(path)
        self._machine.volume.name(Naming(folder, name, Folder()))

    @_call
    def remove_folder(self, path: str) -> None:
        folder, name, node = self._named(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        if node.names:
            raise _error(errno.ENOTEMPTY, path)
        self._machine.volume.name(Naming(folder, name, None), emptied=node)

    @_call
    def is_folder(self, path: str) -> bool:
        try:
            return isinstance(self._find(path), Folder)
        except OSError:
            return False

    @_call
    def sync_folder(self, path: str) -> None:
        self._machine.volume.sync(self._folder(path))

    @_call
    def list(self, path: str) -> list[str]:
        # In an order that means nothing, as on a real disk, but the same in every run.
        return sorted(self._folder(path).names, key=lambda name: zlib.crc32(name.encode()))

    def _grant(self, node: Node, write: bool) -> int:
        number = next(self._machine.next_handle)
        self._machine.handles[number] = _Handle(node, write, self)
        node.opens += 1
        return number

    def _opened(self, number: int) -> _Handle:
        handle = self._machine.handles.get(number)
        if handle is None or handle.owner is not self:
            raise _error(errno.EBADF)
        return handle

    def _file(self, number: int) -> File:
        node = self._opened(number).node
        if not isinstance(node, File):
            raise _error(errno.EISDIR)
        return node

    def _find(self, path: str) -> Node:
        node: Node | None = self._machine.volume.root
        for part in _parts(path):
            if not isinstance(node, Folder):
                raise _error(errno.ENOTDIR, path)
            if (node := node.names.get(part)) is None:
                raise _error(errno.ENOENT, path)
        assert node is not None
        return node

    def _folder(self, path: str) -> Folder:
        node = self._find(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        """The folder and the name in it, whether or not there is such a name."""
        if not _parts(path):
            raise _error(errno.EBUSY, path)
        return self._folder(posixpath.dirname(posixpath.normpath(path))), _parts(path)[-1]

    def _named(self, path: str) -> tuple[Folder, str, Node]:
        folder, name = self._place(path)
        if name not in folder.names:
            raise _error(errno.ENOENT, path)
        return folder, name, folder.names[name]

    def _vacant(self, path: str) -> tuple[Folder, str]:
        if not _parts(path):
            raise _error(errno.EEXIST, path)
        folder, name = self._place(path)
        if name in folder.names:
            raise _error(errno.EEXIST, path)
        return folder, name


class SimulatedProcess(_Calls):
    """The same disk as another process sees it: its handles and locks are its own, the bytes are everybody's."""

    def kill(self) -> None:
        """Die as by SIGKILL: handles and locks go, written bytes stay. Every later call raises EBADF."""
        with self._machine.lock:
            self._machine.living.discard(self)
            for number in [number for number, handle in self._machine.handles.items() if handle.owner is self]:
                self._machine.close(number)


class SimulatedDisk(_Calls):
    """Implements `tailrace.env.Disk`; calls made on it directly are those of a first process.

    A file takes as many bytes of the capacity as it is long, holes too, until its last name and its last handle are
    gone. Disks with different seeds are different hosts.
    """

    def __init__(self, seed: int = 0, *, capacity_bytes: int | None = None) -> None:
        super().__init__(_Machine(seed, capacity_bytes))

    @property
    def capacity_bytes(self) -> int | None:
        """None: no limit. May be changed at any time; below what is used, files just cannot grow."""
        return self._machine.capacity_bytes

    @capacity_bytes.setter
    def capacity_bytes(self, value: int | None) -> None:
        with self._machine.lock:
            self._machine.capacity_bytes = value

    def process(self) -> SimulatedProcess:
        """Another process on this machine. It lives until its `kill()` or the next `crash()`."""
        with self._machine.lock:
            return SimulatedProcess(self._machine)

    def crash(self, keep: Keep = "nothing") -> None:
        """Lose power and start again: what was not synced is lost, kept, or ("random", from the seed) anything between.

        All handles and locks are gone, every `process()` is dead and the boot identity is a new one. This object
        itself goes on, as the first process after the restart.
        """
        with self._machine.lock:
            machine = self._machine
            machine.handles.clear()
            machine.living = {self}
            machine.used_bytes = machine.volume.crash(keep, machine.random)
            machine.identity = Identity(host=machine.identity.host, boot=machine.random.randbytes(16))


def _parts(path: str) -> list[str]:
    if not path.startswith("/"):
        raise ValueError(f"the simulated disk knows absolute paths only, not {path!r}; begin it with a slash")
    return [part for part in posixpath.normpath(path).split("/") if part]


def _error(number: int, path: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), path)
