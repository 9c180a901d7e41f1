"""Adaptive replacement as ordered dictionaries: keys that came once, keys that came again, and ghosts of both."""

from collections import OrderedDict


class Arc:
    def __init__(self, room: int) -> None:
        self.room, self.share = room, 0
        self.once: OrderedDict[bytes, None] = OrderedDict()
        self.again: OrderedDict[bytes, None] = OrderedDict()
        self.once_gone: OrderedDict[bytes, None] = OrderedDict()
        self.again_gone: OrderedDict[bytes, None] = OrderedDict()

    def stored(self) -> set[bytes]:
        return {*self.once, *self.again}

    def touch(self, key: bytes) -> None:
        if key in self.once or key in self.again:
            self.once.pop(key, None)
            self.again.pop(key, None)
            self.again[key] = None

    def set(self, key: bytes) -> None:
        if key in self.stored():
            self.touch(key)
        else:
            self._list_for(key)[key] = None
        while len(self.stored()) > self.room:
            self._evict(spared=key)

    def erase(self, key: bytes) -> None:
        self.once.pop(key, None)
        self.again.pop(key, None)

    def _list_for(self, key: bytes) -> OrderedDict[bytes, None]:
        once, again = len(self.once_gone), len(self.again_gone)
        if key in self.once_gone:
            self.share = min(self.share + max(1, again // once), len(self.stored()))
            del self.once_gone[key]
            return self.again
        if key in self.again_gone:
            self.share = max(self.share - max(1, once // again), 0)
            del self.again_gone[key]
            return self.again
        return self.once

    def _evict(self, spared: bytes) -> None:
        stored = len(self.stored())
        first = [self.once, self.again] if len(self.once) > self.share else [self.again, self.once]
        key = next(key for order in first for key in order if key != spared)
        (self.once_gone if key in self.once else self.again_gone)[key] = None
        self.erase(key)
        self.share = min(self.share, stored)
        while self.once_gone and len(self.once) + len(self.once_gone) > stored:
            self.once_gone.popitem(last=False)
        while self.again_gone and stored - 1 + len(self.once_gone) + len(self.again_gone) > 2 * stored:
            self.again_gone.popitem(last=False)
