"""Which processes share memory with this one, and where a cache's memory lies on this host."""

import hashlib
import os
import shutil
import tempfile

_NOTE = "world"  # in the folder of a world: where it lies
_SHARED = "/dev/shm"  # memory that has a name; without it a folder on disk does, at the disk's speed


def shared_folder() -> str:
    """A folder of this user's own, on the shared-memory file system if there is one."""
    root = _SHARED if os.path.isdir(_SHARED) else tempfile.gettempdir()
    folder = os.path.join(root, f"tailrace-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def host_id() -> str:
    """Equal for processes that see the same shared memory: the same boot of a machine, the same mounted file system."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot}:{os.stat(shared_folder()).st_dev}"


def world_folder(world: str) -> str:
    """Of what the processes of one world share on this host."""
    return os.path.join(shared_folder(), _digest(os.path.realpath(world)))


def cell_folder(world: str, cache: str, backend: int) -> str:
    """Of one backend's memory. Short, since a socket's path lies in it too."""
    return os.path.join(world_folder(world), _digest(cache), str(backend))


def make_world_folder(world: str) -> str:
    """The world's folder, with a note of whose it is. What worlds left behind that are gone goes, too."""
    folder = world_folder(world)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    note = os.path.join(folder, _NOTE)
    if not os.path.exists(note):
        with open(note, "w", encoding="utf-8") as file:
            file.write(os.path.realpath(world))
        _sweep()
    return folder


def _sweep() -> None:
    """Memory of processes that were killed stays for the next ones of their world. When the world itself was deleted,
    there will be none: whoever comes first takes it away."""
    for name in os.listdir(shared_folder()):
        folder = os.path.join(shared_folder(), name)
        try:
            with open(os.path.join(folder, _NOTE), encoding="utf-8") as file:
                world = file.read()
        except (OSError, UnicodeDecodeError):
            continue
        if world and not os.path.exists(world):
            shutil.rmtree(folder, ignore_errors=True)


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
