"""Processes that the tests of caches start, stop and kill. They tell what they know on standard output, line by line.

Values say themselves what they are: the key, who set it, a number, and a sum over all of it.
"""

import itertools
import json
import select
import subprocess
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import tailrace
from tailrace.cache import Cache, Version
from tailrace.errors import CacheUnavailable, CacheUnconfirmed

HOT = [b"hot key %d" % number for number in range(5)]
SIZES = [0, 40, 900, 5000, 30_000]


def described(key: bytes, who: int, number: int) -> bytes:
    body = b"%s|%d|%d|" % (key, who, number)
    body += bytes([number % 251]) * SIZES[(who + number) % len(SIZES)]
    return b"%08x" % zlib.crc32(body) + body


def is_true(key: bytes, value: bytes) -> bool:
    body = value[8:]
    return value[:8] == b"%08x" % zlib.crc32(body) and body.split(b"|", 1)[0] == key


def say(**told: Any) -> None:
    print(json.dumps(told), flush=True)


def host(folder: str, name: str, **settings: Any) -> None:
    """Serve a cache by having it open, and set what each line asks for: a key, and how often."""
    with tailrace.open(folder) as world, world.cache(name, **settings) as cache:
        say(ways=list(cache.ways().values()))
        for line in sys.stdin:
            key, count = line.split()
            for number in range(int(count)):
                cache.set(key.encode(), described(key.encode(), 0, number))
            say(version=cache.set(key.encode(), described(key.encode(), 0, int(count))))


def change(folder: str, name: str, seed: int, count: int, **settings: Any) -> None:
    """Set and erase the hot keys, as others do at the same time. Whatever it has confirmed it reads, or newer."""
    draw = Random(seed)
    seen = {"done": 0, "unconfirmed": 0, "unavailable": 0, "behind": 0}
    with tailrace.open(folder) as world, world.cache(name, serving=False, **settings) as cache:
        cache.set_many({key: described(key, seed, 0) for key in HOT})
        say(ready=True)
        sys.stdin.readline()
        for number in range(count):
            key = draw.choice(HOT)
            try:
                if number % 17 == 16:
                    cache.erase(key)
                    version = None
                else:
                    version = cache.set(key, described(key, seed, number))
                seen["done"] += 1
            except CacheUnconfirmed:
                seen["unconfirmed"] += 1
            except CacheUnavailable:
                seen["unavailable"] += 1
            else:
                found = cache.get_with_version(key)
                seen["behind"] += found is not None and version is not None and found[1] < version
        say(**seen)


def watch(folder: str, name: str, relaxed: bool, **settings: Any) -> None:
    """Read the hot keys until told to stop: how many values were true, and how often a version went back."""
    latest = dict.fromkeys(HOT, Version(0, 0, 0))
    seen = {"true": 0, "wrong": 0, "back": 0, "none": 0}
    with tailrace.open(folder) as world, world.cache(name, serving=False, **settings) as cache:
        say(ready=True)
        for number in itertools.count():
            if number % 20 == 0 and select.select([sys.stdin], [], [], 0)[0]:
                break
            key = HOT[number % len(HOT)]
            found = cache.get_with_version(key, relaxed=relaxed)
            if found is None:
                seen["none"] += 1
            else:
                seen["true" if is_true(key, found[0]) else "wrong"] += 1
                seen["back"] += found[1] < latest[key]
                latest[key] = found[1]
            many = cache.get_many(HOT, relaxed=relaxed)
            for key, value in zip(HOT, many, strict=True):
                if value is not None:
                    seen["true" if is_true(key, value) else "wrong"] += 1
        say(**seen, **counts_of(cache))


def counts_of(cache: Cache) -> dict[str, int]:
    stats = cache.stats()
    return {name: stats[name] for name in ("retries", "torn", "inquorate", "remaps", "hedges", "rpc_reads")}


# ---- for the tests


class Process:
    """One of the loops above."""

    def __init__(self, role: str, *arguments: Any, **settings: Any) -> None:
        command = [sys.executable, str(Path(__file__)), role, json.dumps(arguments), json.dumps(settings)]
        self.popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def hear(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert line, "it ended without a word"
        told: dict[str, Any] = json.loads(line)
        return told

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for end in (self.popen.stdin, self.popen.stdout):
            if end is not None:
                end.close()


@contextmanager
def process(role: str, *arguments: Any, **settings: Any) -> Iterator[Process]:
    started = Process(role, *arguments, **settings)
    try:
        yield started
    finally:
        started.kill()


if __name__ == "__main__":
    loops = {"host": host, "change": change, "watch": watch}
    loops[sys.argv[1]](*json.loads(sys.argv[2]), **json.loads(sys.argv[3]))
