"""Which processes share memory with this one, and where a cache's memory lies on this host."""

import hashlib
import os
import shutil
import tempfile

_NOTE = "world"  # in the folder of a world: where it lies
_SHARED = "/dev/shm"  # memory that has a name; without it a folder on disk does, at the disk's speed


def shared_folder() -> str:
    """A folder of this user's own, on the shared-memory file system if there is one."""
    folder = os.path.join(_shared_root(), f"tailrace-{os.getuid()}")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    return folder


def host_id(name: str | None = None) -> str:
    """Equal for processes that see the same shared memory: the same boot of a machine, the same mounted file system.
    Under different names they share none, even on one machine."""
    if name is not None:
        return name
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            boot = file.read().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot}:{os.stat(_shared_root()).st_dev}"


def host_tag(name: str | None = None) -> int:
    """The host in eight bytes, never 0."""
    return int.from_bytes(hashlib.sha256(host_id(name).encode()).digest()[:8], "little") or 1


def world_folder(world: str, host: str | None = None) -> str:
    """Of what the processes of one world share on this host."""
    return os.path.join(shared_folder(), _digest("\0".join([os.path.realpath(world), *([host] if host else [])])))


def cell_folder(world: str, cache: str, backend: int, host: str | None = None) -> str:
    """Of one backend's memory. Short, since a socket's path lies in it too."""
    return os.path.join(world_folder(world, host), _digest(cache), str(backend))


def make_world_folder(world: str, host: str | None = None) -> str:
    """The world's folder, with a note of whose it is. What worlds left behind that are gone goes, too."""
    folder = world_folder(world, host)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    note = os.path.join(folder, _NOTE)
    if not os.path.exists(note):
        with open(note, "w", encoding="utf-8") as file:
            file.write(os.path.realpath(world))
        _sweep()
    return folder


def _shared_root() -> str:
    return _SHARED if os.path.isdir(_SHARED) else tempfile.gettempdir()


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
