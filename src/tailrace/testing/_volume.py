"""Files, folders and the operations that are in memory but not yet on the platter.

Invariant: a durable image changes only by applying pending operations in the order they were made. So a sync costs
what was written since the last one, never the size of the file.

What a crash may do to unsynced operations is modelled on journaling file systems, taking the weaker promise where
they differ, so that code which survives here survives there:

- Content: every write is kept, lost or torn on its own. Torn is: its head, its tail, or only the length that it gave to
  the file. Truncations are kept or lost on their own. Whatever lies between reads as zeros.
- Names: the operations in one folder survive as a prefix of their order. A rename is one operation in both its folders:
  it survives wholly or not at all. Syncing a folder makes all of its operations durable, and with a rename between two
  folders also what came before it in the other one.
- Removing a folder comes after all that was done in it; moving a folder comes after all that was done anywhere. Without
  this a file moved out of a folder could vanish with it, or two folders end up inside each other.
- Nothing else is ordered: syncing a file does not sync its name, and a link made in one folder may be lost while the
  unlinking of the old name in another folder is kept. A node without a durable name is gone.
"""

from dataclasses import dataclass
from random import Random
from typing import Literal

Keep = Literal["nothing", "everything", "random"]


class Node:
    def __init__(self) -> None:
        self.links = 0
        self.opens = 0
        self.locked_by: int | None = None  # the handle that holds the exclusive lock


@dataclass(frozen=True, slots=True)
class _Write:
    offset: int
    data: bytes

    def apply(self, image: bytearray) -> None:
        _resize(image, max(len(image), self.offset))
        image[self.offset : self.offset + len(self.data)] = self.data

    def survivor(self, random: Random) -> "_Write | None":
        cut = random.randint(0, len(self.data))
        match random.choice(("kept", "lost", "head", "tail", "length")):
            case "kept":
                return self
            case "head":
                return _Write(self.offset, self.data[:cut]) if cut else None
            case "tail":
                return _Write(self.offset + cut, self.data[cut:])
            case "length":
                return _Write(self.offset + len(self.data), b"")
        return None


@dataclass(frozen=True, slots=True)
class _Truncate:
    size: int

    def apply(self, image: bytearray) -> None:
        _resize(image, self.size)

    def survivor(self, random: Random) -> "_Truncate | None":
        return random.choice((self, None))


class File(Node):
    def __init__(self) -> None:
        super().__init__()
        self.content = bytearray()
        self._durable = bytearray()
        self._pending: list[_Write | _Truncate] = []

    def write(self, offset: int, data: bytes) -> None:
        self._do(_Write(offset, data))

    def truncate(self, size: int) -> None:
        self._do(_Truncate(size))

    def sync(self) -> None:
        for operation in self._pending:
            operation.apply(self._durable)
        self._pending.clear()

    def crash(self, keep: Keep, random: Random) -> None:
        if keep == "nothing":
            self._pending.clear()
        elif keep == "random":
            self._pending = [kept for operation in self._pending if (kept := operation.survivor(random)) is not None]
        self.sync()
        self.content = bytearray(self._durable)

    def _do(self, operation: _Write | _Truncate) -> None:
        operation.apply(self.content)
        self._pending.append(operation)


class Folder(Node):
    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}


@dataclass(frozen=True, slots=True)
class Naming:
    """From now on this name in this folder leads to this node, or nowhere."""

    folder: Folder
    name: str
    node: Node | None

    def apply(self, names: dict[str, Node]) -> None:
        if self.node is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.node


@dataclass(frozen=True, slots=True)
class _Operation:
    namings: tuple[Naming, ...]
    folders: frozenset[Folder]  # in each of these it comes after all earlier operations
    after_all: bool

    def make_durable(self) -> None:
        for naming in self.namings:
            naming.apply(naming.folder.durable)


class Volume:
    """The tree of names, in memory and on the platter."""

    def __init__(self) -> None:
        self.root = Folder()
        self.root.links = 1
        self._pending: list[_Operation] = []  # of all folders, in the order they were made

    def name(self, *namings: Naming, emptied: Folder | None = None, after_all: bool = False) -> None:
        """Change names, as one operation."""
        for naming in namings:
            if before := naming.folder.names.get(naming.name):
                before.links -= 1
            if naming.node:
                naming.node.links += 1
            naming.apply(naming.folder.names)
        folders = {naming.folder for naming in namings} | ({emptied} if emptied else set())
        self._pending.append(_Operation(namings, frozenset(folders), after_all))

    def sync(self, folder: Folder) -> None:
        wanted, everything = {folder}, False
        durable: list[_Operation] = []
        pending: list[_Operation] = []
        for operation in reversed(self._pending):
            if everything or not wanted.isdisjoint(operation.folders):
                wanted |= operation.folders
                everything |= operation.after_all
                durable.append(operation)
            else:
                pending.append(operation)
        for operation in reversed(durable):
            operation.make_durable()
        self._pending = pending[::-1]

    def crash(self, keep: Keep, random: Random) -> int:
        """Forget what was only in memory; how many bytes the surviving files hold."""
        loss = {"nothing": 1.0, "everything": 0.0, "random": random.random()}[keep]
        broken: set[Folder] = set()  # folders that lost an operation, so lose all later ones
        for operation in self._pending:
            follows_loss = not broken.isdisjoint(operation.folders) or (operation.after_all and broken)
            if follows_loss or random.random() < loss:
                broken |= operation.folders
            else:
                operation.make_durable()
        self._pending = []
        return self._restart(keep, random)

    def _restart(self, keep: Keep, random: Random) -> int:
        used_bytes = 0
        self.root.opens, self.root.locked_by = 0, None
        met: set[Node] = set()
        todo = [self.root]
        while todo:
            folder = todo.pop()
            folder.names = dict(folder.durable)
            for node in folder.names.values():
                if node not in met:
                    met.add(node)
                    node.links, node.opens, node.locked_by = 0, 0, None
                    if isinstance(node, File):
                        node.crash(keep, random)
                        used_bytes += len(node.content)
                    elif isinstance(node, Folder):
                        todo.append(node)
                node.links += 1
        return used_bytes


def _resize(image: bytearray, size: int) -> None:
    if size < len(image):
        del image[size:]
    else:
        image.extend(bytes(size - len(image)))
