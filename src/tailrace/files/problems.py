"""Turn the disk's errors into ours: what was tried, what was seen, what to do next."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from ..errors import DiskFull, FileMissing, FileProblem

_ADVICE = {
    errno.EACCES: "give this user the right to it",
    errno.EPERM: "give this user the right to it",
    errno.EROFS: "the file system is read-only: mount it writable or choose another folder",
    errno.EIO: "the disk reports a fault: look at the system's log before trusting it again",
    errno.EMFILE: "too many open files in this process: raise `ulimit -n`",
    errno.ENFILE: "too many open files on this machine",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "the path is a folder, not a file",
    errno.ELOOP: "the path is a symbolic link, which is never followed",
    errno.EEXIST: "something of that name is there already",
    errno.ENAMETOOLONG: "choose a shorter name",
}


@contextmanager
def explained(tried: str, path: str) -> Iterator[None]:
    try:
        yield
    except OSError as seen:
        raise explain(seen, tried, path) from seen


def explain(seen: OSError, tried: str, path: str) -> FileProblem:
    what = f"could not {tried} {path}: {seen.strerror or seen}"
    if seen.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{what}. Make room, then do it again; nothing became visible")
    if seen.errno == errno.ENOENT:
        return FileMissing(what)
    advice = _ADVICE.get(seen.errno or 0)
    return FileProblem(f"{what}. Next: {advice}" if advice else what)
