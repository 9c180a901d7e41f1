"""Sets and reads the same keys of a cache all the time, in threads, and notices whatever is not as it should be."""

import threading
from collections.abc import Callable

from cache_loops import described, is_true

from conftest import wait_until
from tailrace.cache import Cache

KEYS = [b"key %d" % number for number in range(60)]


def set_all(cache: Cache, number: int) -> None:
    cache.set_many({key: described(key, 0, number) for key in KEYS})


def numbers(cache: Cache) -> list[int]:
    """Which set each key is from; a failed read or a wrong value ends the test."""
    return [number_in(key, value) for key, value in zip(KEYS, cache.get_many(KEYS), strict=True)]


def number_in(key: bytes, value: bytes | None) -> int:
    assert value is not None, "a failed read"
    assert is_true(key, value)
    return int(value.split(b"|")[2])


class Load:
    """`sets`: how many are done, which is the number of the last one. Any call that fails ends it."""

    def __init__(self, cache: Cache) -> None:
        self._cache, self._stopping = cache, threading.Event()
        self.sets = self.reads = 0
        self.problems: list[BaseException] = []
        set_all(cache, 0)
        self._threads = [threading.Thread(target=self._run, args=(call,)) for call in (self._set, self._read)]

    def _run(self, call: Callable[[], None]) -> None:
        try:
            while not self._stopping.is_set():
                call()
        except BaseException as problem:
            self.problems.append(problem)

    def _set(self) -> None:
        set_all(self._cache, self.sets + 1)
        self.sets += 1

    def _read(self) -> None:
        before = self.sets
        assert min(numbers(self._cache)) >= before, "older than what was done"
        self.reads += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        assert not self.problems, self.problems

    def go_on(self, turns: int = 5) -> None:
        """Until both have come so much further."""
        sets, reads = self.sets + turns, self.reads + turns
        wait_until(lambda: self.problems or (self.sets >= sets and self.reads >= reads), "the load to go on")
        assert not self.problems, self.problems
