"""How much memory backends take: what they hold, and little more, whatever came and went."""

from pathlib import Path
from typing import Any

from cache_nodes import wait_whole

import tailrace
from conftest import wait_until
from tailrace.cache import Cache
from tailrace.native.cell import SLAB_BYTES
from tailrace.node.caches import Doors

VALUE = 4096
SETTINGS: dict[str, Any] = {
    "mode": "R=3.2",
    "backends": 3,
    "memory_bytes": 64 << 20,
    "keys_expected": 8,  # so that everything has to grow
    "clock_error_s": 0.1,
    "repair_s": 0.2,
}


def memory(cache: Cache, backend: int) -> int:
    told = cache.backend_stats()[backend]
    return told["populated_bytes"] + told["index_bytes"] + told["heap_bytes"]


def keys_of(name: bytes, count: int) -> list[bytes]:
    return [b"%s-%06d" % (name, number) for number in range(count)]


def fill(cache: Cache, keys: list[bytes], **how: Any) -> None:
    cache.set_many({key: key[:10].ljust(VALUE, b".") for key in keys}, deadline_s=30.0, **how)


def test_memory_comes_with_content_and_goes_with_it(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world, world.cache("c", **SETTINGS) as cache:
        empty = memory(cache, 0)
        assert empty < 2 * SLAB_BYTES, "nothing is reserved but addresses"
        for count in (500, 1000, 2000, 4000):
            fill(cache, keys_of(b"key", count))
            for backend in range(3):
                content = count * (VALUE + len(b"key-000000"))
                assert memory(cache, backend) < 1.04 * content + empty + 2 * SLAB_BYTES, count
        assert cache.backend_stats()[0]["growths"] > 10
        assert None not in cache.get_many(keys_of(b"key", 4000))
        full = memory(cache, 0)
        cache.erase_many(keys_of(b"key", 4000)[1000:], deadline_s=30.0)
        assert memory(cache, 0) < 0.35 * full, "slabs are given back as they empty"
        assert None not in cache.get_many(keys_of(b"key", 1000))


def test_a_restarted_backend_takes_what_is_left_of_the_content(tmp_path: Path) -> None:
    """Half of it was erased or has expired: the restarted one needs half, index and bookkeeping included."""
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        world.create_cache("c", **SETTINGS)
        world.serve_caches(["c"], [0, 2], Doors())
        with tailrace.open(tmp_path) as first:
            first.serve_caches(["c"], [1], Doors())
            cache = beside.cache("c", serving=False)
            lasting, erased, brief = keys_of(b"lasting", 2000), keys_of(b"erased", 1000), keys_of(b"brief", 1000)
            fill(cache, [key for three in zip(lasting[:1000], erased, brief, strict=True) for key in three][::-1])
            fill(cache, lasting[1000:])
            fill(cache, brief, ttl_s=1)
            full = [memory(cache, backend) for backend in range(3)]
            assert max(full) < 1.05 * min(full)
            cache.erase_many(erased, deadline_s=30.0)
            wait_until(lambda: cache.get_many(brief) == [None] * 1000, "the brief ones to expire")
        with tailrace.open(tmp_path) as second:
            second.serve_caches(["c"], [1], Doors())
            wait_until(lambda: 1 in cache.backend_stats(), "the restarted one to be found")
            wait_whole(cache, 1)
            wait_until(lambda: cache.backend_stats()[1]["records"] == 2000, "it to have what lasts")
            after = memory(cache, 1)
            assert 0.45 * full[1] < after < 0.55 * full[1], (after, full)
            world.close()  # the others go, with all they have
            assert cache.get_many(lasting, relaxed=True) == [key[:10].ljust(VALUE, b".") for key in lasting]
