"""Load on one running cache, from one thread: how many keys a second, and how long a call takes."""

import os
import random
import time
from collections.abc import Callable
from typing import Any

from ...cache import Cache
from ...errors import Corrupt

_CALLS_KEPT = 1_000_000  # durations; more calls than that are not made


def load(
    cache: Cache,
    value_bytes: int,
    batch: int,
    keys: int,
    seconds: float,
    *,
    relaxed: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Set all keys over and over, then get them in random order. Each value says which key it belongs to."""
    names = [b"bench-%08d" % number for number in range(keys)]
    filling = os.urandom(max(0, value_bytes - len(names[0])))
    values = [(name + filling)[:value_bytes] for name in names]
    pairs = list(zip(names, values, strict=True))
    draw = random.Random(1)
    turns = [[draw.randrange(keys) for _ in range(batch)] for _ in range(256)]
    result: dict[str, Any] = {"cache": cache.name, "value_bytes": value_bytes, "batch": batch, "keys": keys}
    try:
        progress(f"set {keys:,} keys of {value_bytes:,} bytes")
        for at in range(0, keys, 1024):
            cache.set_many(pairs[at : at + 1024], deadline_s=30)
        progress("set")
        result["set"] = _timed(
            lambda turn: cache.set_many([pairs[i] for i in turn], deadline_s=30), turns, seconds, batch, value_bytes
        )
        progress("get")
        asked = [[names[i] for i in turn] for turn in turns]
        for names_asked, turn in zip(asked, turns, strict=True):
            for number, value in zip(turn, cache.get_many(names_asked, relaxed=relaxed), strict=True):
                if value is not None and value != values[number]:
                    raise Corrupt(f"{names[number]!r} came back as another key's value")
        result["get"] = _timed(
            lambda names_asked: cache.get_many(names_asked, relaxed=relaxed), asked, seconds, batch, value_bytes
        )
        result["ways"] = {str(number): way for number, way in cache.ways().items()}
        result["client"] = cache.stats()
    finally:
        for at in range(0, keys, 4096):
            cache.erase_many(names[at : at + 4096], deadline_s=30)
    return result


def _timed(
    call: Callable[[Any], object], turns: list[Any], seconds: float, batch: int, value_bytes: int
) -> dict[str, float]:
    took: list[float] = []
    begin = time.perf_counter()
    end = begin + seconds
    last = begin
    while last < end and len(took) < _CALLS_KEPT:
        call(turns[len(took) % len(turns)])
        now = time.perf_counter()
        took.append(now - last)
        last = now
    keys_per_s = len(took) * batch / (last - begin)
    took.sort()
    return {
        "keys_per_s": keys_per_s,
        "bytes_per_s": keys_per_s * value_bytes,
        "p50_us": took[len(took) // 2] * 1e6,
        "p99_us": took[int(len(took) * 0.99)] * 1e6,
    }
