"""A unix socket's path, owned by one server at a time and reachable by one user only.

gRPC removes whatever socket it finds at its path before it binds, a living server's as well, and makes its own one
for everybody. So the path is claimed by a lock beside it, which ends with its process: what lies at a path that could
be claimed belongs to nobody. And since there is a moment before the socket's mode can be set, the folder must keep
others out by itself.
"""

import contextlib
import fcntl
import os
import stat

from ..errors import ConfigError

FOLDER_MODE, SOCKET_MODE, LOCK_MODE = 0o700, 0o600, 0o600


class SocketClaim:
    """Claim the path, then bind, then protect(); release() takes the socket away."""

    def __init__(self, path: str) -> None:
        self.path = path
        _check_folder(os.path.dirname(path))
        try:
            self._lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LOCK_MODE)
        except OSError as problem:
            raise ConfigError(f"address='unix:{path}': its lock cannot be opened: {problem.strerror}") from None
        try:
            self._claim()
        except BaseException:
            os.close(self._lock)
            raise

    def protect(self) -> None:
        os.chmod(self.path, SOCKET_MODE)

    def release(self) -> None:
        """The lock file stays: who removes one that another process is just opening lets two servers in."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)
        os.close(self._lock)

    def _claim(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"address='unix:{self.path}': another server listens there; stop it first") from None
        try:
            found = os.lstat(self.path)
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(found.st_mode):
            raise ConfigError(f"address='unix:{self.path}': there is something that is no socket; choose another path")
        os.unlink(self.path)


def _check_folder(folder: str) -> None:
    try:
        os.mkdir(folder, FOLDER_MODE)
    except FileExistsError:
        pass
    except OSError as problem:
        raise ConfigError(f"address='unix:{folder}/…': the folder cannot be made: {problem.strerror}") from None
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise ConfigError(
            f"address='unix:{folder}/…': whoever reaches a socket may use it, so its folder must be yours alone: "
            f"it belongs to user {found.st_uid} and has mode {stat.S_IMODE(found.st_mode):o}; try chmod 700"
        )
