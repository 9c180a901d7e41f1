"""Which layer a late consumer reads: the one that has been the quicker for it. Pure.

Near the head the cache comes first, always: it is where news are first. Who is far behind it has much to read and news
can wait, so what counts is bytes a second. A cache on another host takes a connection for each of them; files of this
machine lie in memory that all consumers of it share, if somebody has read them lately, and on a disk if nobody has. So
both are tried, the better one is stayed with, and the other one is tried again now and then: things change.

Whoever asks can read its files in place. Files that are asked for elsewhere are what the cache is to spare.
"""

NEAR_BYTES = 4 << 20  # who is no further behind than this is not late
LARGE_BYTES = 64 << 10  # less than this is sooner copied than mapped, and tells nothing of bytes a second
_STINT = 64  # reads of the better one before the other one is tried again
_FADE = 7 / 8  # what is left of a read's weight when the next one comes
_SLOW_MAX = 4.0  # a read that was pushed aside, by others or the disk, counts as no slower than so many others


class _Rate:
    def __init__(self) -> None:
        self._bytes = self._seconds = 0.0

    def add(self, size: int, seconds: float, gained: int) -> None:
        """A read of this size took so long, and gave so much."""
        if self._bytes:
            seconds = min(seconds, _SLOW_MAX * size * self._seconds / self._bytes)
        self._bytes, self._seconds = self._bytes * _FADE + gained, self._seconds * _FADE + max(seconds, 1e-9)

    @property
    def per_s(self) -> float | None:
        return self._bytes / self._seconds if self._seconds else None


class Quicker:
    """Of one shard. `far`: its cache is on another host; else it is not even a question.

    >>> quicker = Quicker()
    >>> quicker.far = True
    >>> quicker.heard(100 << 20)  # so far they go
    >>> quicker.is_files(99 << 20), quicker.is_files(0)
    (False, True)
    >>> quicker.took(0, 1 << 20, 0.004, files=True)
    >>> quicker.is_files(0)  # nothing is known of the cache yet
    False
    >>> quicker.took(0, 1 << 20, 0.001, files=False)
    >>> quicker.is_files(0)
    False
    """

    def __init__(self) -> None:
        self.far = False
        self._end = 0
        self._files, self._cache = _Rate(), _Rate()
        self._stint = 0  # reads of the better one, since the other one was tried

    def heard(self, end: int) -> None:
        """Both layers go up to this position, or further."""
        self._end = max(self._end, end)

    def is_files(self, position: int) -> bool:
        """Whether what comes next is to be read from the files, by who is at this position."""
        if not self._is_late(position):
            return False
        files, cache = self._files.per_s, self._cache.per_s
        if files is None or cache is None:
            return files is None
        return (files > cache) != (self._stint >= _STINT)

    def took(self, position: int, size: int, seconds: float, *, files: bool, in_vain: bool = False) -> None:
        """So long it took who is at this position to ask a layer for so much; `in_vain`: the other one had to help."""
        if size < LARGE_BYTES or not self._is_late(position):
            return
        (self._files if files else self._cache).add(size, seconds, 0 if in_vain else size)
        known = self._files.per_s, self._cache.per_s
        is_better = known[0] is not None and known[1] is not None and (known[0] > known[1]) == files
        self._stint = self._stint + 1 if is_better else 0

    def _is_late(self, position: int) -> bool:
        return self.far and self._end - position > NEAR_BYTES
