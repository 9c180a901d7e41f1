"""Which processes share memory with this one, and where a cache's memory lies on this host."""

import hashlib
import os
import tempfile

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
    return os.path.join(shared_folder(), _digest(f"{os.path.realpath(world)}\0{cache}"), str(backend))


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:16]
