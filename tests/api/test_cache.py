"""A cache as a program meets it: every call in every mode, its settings, its errors, and what it leaves behind."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tailrace
from conftest import wait_until
from tailrace.cache import Cache, Version
from tailrace.cache.ways import Ways
from tailrace.config import CacheConfig, WorldConfig
from tailrace.coordination import SqliteCoordination
from tailrace.env import SystemClock
from tailrace.errors import (
    CacheExists,
    CacheMissing,
    CacheUnavailable,
    ClockAhead,
    Closed,
    ConfigError,
    KeyExists,
    NameRefused,
    TailraceError,
    Unreachable,
    ValueTooLarge,
)
from tailrace.files import PosixFiles
from tailrace.native._cell import _weaken_hash as weaken_cells
from tailrace.native._client import _weaken_hash as weaken_clients
from tailrace.native.client import KIND_ERASE, pack, replicas_of
from tailrace.node.caches import Doors
from tailrace.node.hosts import cell_folder, shared_folder

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

SMALL = {"memory_bytes": 4 << 20}
MODES: dict[str, dict[str, Any]] = {
    "R=1": {"mode": "R=1", "backends": 2, **SMALL},
    "R=2/immutable": {"mode": "R=2/immutable", "backends": 3, **SMALL},
    "R=3.2": {"mode": "R=3.2", "backends": 4, **SMALL},
}
SAFE = MODES["R=3.2"] | {"backends": 3}
EVERY_MODE = pytest.mark.parametrize("mode", MODES)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[tailrace.World]:
    """With nothing of it left behind: no thread, no shared memory."""
    before = set(threading.enumerate())
    with tailrace.open(tmp_path / "world") as opened:
        yield opened
        names = opened.caches()
    ours = [
        thread for thread in threading.enumerate() if thread not in before and thread.name.startswith(("cache", "back"))
    ]
    assert ours == []
    for name in names:
        left = os.path.dirname(cell_folder(str(tmp_path / "world"), name, 0))
        assert not os.path.exists(left), os.listdir(left)


# ---- every call


@EVERY_MODE
def test_what_is_set_is_got(world: tailrace.World, mode: str) -> None:
    with world.cache("c", **MODES[mode]) as cache:
        assert cache.name == "c"
        assert cache.settings.mode == mode
        assert cache.get(b"k") is None
        version = cache.set(b"k", b"v")
        assert isinstance(version, Version)
        assert cache.get(b"k") == cache.get(b"k", relaxed=True) == b"v"
        assert cache.get_with_version(b"k") == (b"v", version)
        assert cache.get_with_version(b"other") is None

        versions = cache.set_many({b"key %d" % number: b"%d" % number for number in range(50)})
        assert len(set(versions)) == 50
        assert list(versions) == sorted(versions), "in the order of the keys"
        assert min(versions) > version
        assert cache.set_many((key, b"pair") for key in [b"p", b"q"])[0] > versions[-1]
        assert len(cache.set_many({})) == 0
        asked = [b"p", b"key 7", b"no", b"key 7", b"q"]
        assert cache.get_many(asked) == [b"pair", b"7", None, b"7", b"pair"]
        assert cache.get_many(tuple(asked)) == cache.get_many(asked, relaxed=True) == cache.get_many(asked)
        assert cache.get_many([]) == []

        room = bytearray(4)
        assert cache.get_into(b"p", room) == 4
        assert room == b"pair"
        assert cache.get_into(b"no", room) is None
        with pytest.raises(ValueError, match="4 bytes into 3"):
            cache.get_into(b"p", bytearray(3))

        cache.erase(b"k")
        cache.erase(b"was never there")
        cache.erase_many([b"key %d" % number for number in range(40)])
        cache.erase_many([])
        found = cache.get_many([b"k", *(b"key %d" % number for number in range(50))])
        assert found == [None] * 41 + [b"%d" % number for number in range(40, 50)]
        later = cache.set(b"k", b"again")
        assert later > version
        assert cache.get(b"k") == b"again"


@EVERY_MODE
def test_what_is_set_is_got_by_coroutines(world: tailrace.World, mode: str) -> None:
    async def use(cache: Cache) -> None:
        aio = cache.aio
        assert await aio.get(b"k") is None
        version = await aio.set(b"k", b"v", ttl_s=60)
        assert await aio.get(b"k", relaxed=True) == b"v"
        assert await aio.get_with_version(b"k") == (b"v", version)
        many = {b"key %d" % number: b"%d" % number for number in range(20)}
        await asyncio.gather(*(aio.set(key, value) for key, value in many.items()))
        assert await aio.get_many(list(many)) == list(many.values())
        assert len(await aio.set_many({b"p": b"1", b"q": b"2"})) == 2
        await aio.erase(b"p")
        await aio.erase_many([b"q", b"k"])
        assert await aio.get_many([b"p", b"q", b"k"]) == [None] * 3
        assert await aio.cas(b"k", b"w", None) is not None
        assert await aio.cas(b"k", b"x", version) is None
        assert await aio.get(b"k") == b"w"

    with world.cache("c", **MODES[mode]) as cache:
        asyncio.run(use(cache))
    with world.cache("c", transport="rpc") as cache:
        cache.erase(b"k")
        cache.erase_many([b"key %d" % number for number in range(20)])
        asyncio.run(use(cache))


@EVERY_MODE
def test_compare_and_set(world: tailrace.World, mode: str) -> None:
    with world.cache("c", **MODES[mode]) as cache:
        first = cache.cas(b"k", b"1", None)
        assert first is not None
        assert cache.get_with_version(b"k") == (b"1", first)
        for wrong in (None, Version(0, 0, 0), Version(1, 1, 1), Version(1 << 63, 1, 1)):
            assert cache.cas(b"k", b"no", wrong) is None
        assert cache.get_with_version(b"k") == (b"1", first)
        second = cache.cas(b"k", b"2", first)
        assert second is not None
        assert second > first
        assert cache.cas(b"k", b"no", first) is None
        cache.erase(b"k")
        assert cache.cas(b"k", b"no", second) is None
        third = cache.cas(b"k", b"3", None)
        assert third is not None
        assert third > second
        assert cache.get(b"k") == b"3"


def test_many_threads_count_by_compare_and_set(world: tailrace.World) -> None:
    with world.cache("c", **SAFE) as cache:
        cache.set(b"n", b"0")

        def count() -> None:
            left = 40
            while left:
                found = cache.get_with_version(b"n")
                if found is not None and cache.cas(b"n", b"%d" % (int(found[0]) + 1), found[1]) is not None:
                    left -= 1

        run_in_threads([count] * 4)
        assert cache.get(b"n") == b"160"


def run_in_threads(calls: list[Callable[[], None]]) -> None:
    """All of them at once; whatever one of them raises is raised here."""
    problems: list[BaseException] = []

    def run(call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise problems[0]


@EVERY_MODE
def test_immutable_keys_are_set_once_and_others_as_often_as_one_likes(world: tailrace.World, mode: str) -> None:
    with world.cache("c", **MODES[mode]) as cache:
        cache.set(b"k", b"1")
        if mode != "R=2/immutable":
            cache.set(b"k", b"2")
            assert cache.get(b"k") == b"2"
            return
        with pytest.raises(KeyExists, match="set already") as refused:
            cache.set(b"k", b"2")
        assert refused.value.took_effect is False
        assert refused.value.keys == (b"k",)
        cache.set(b"l", b"1")
        with pytest.raises(KeyExists, match="and 1 more key") as refused:
            cache.set_many({b"k": b"2", b"new": b"2", b"l": b"2", b"newer": b"2"})
        assert set(refused.value.keys) == {b"k", b"l"}
        assert cache.get_many([b"new", b"newer", b"l"]) == [b"2", b"2", b"1"], "keys are independent"
        assert cache.get(b"k") == b"1"
        cache.erase(b"k")
        cache.set(b"k", b"2")
        assert cache.get(b"k") == b"2"


def test_keys_and_values_of_any_bytes(world: tailrace.World) -> None:
    largest = (256 << 10) - 32
    with world.cache("c", **SAFE | {"memory_bytes": 16 << 20}) as cache:
        for key, value in (
            (b"", b"of the empty key"),
            (b"empty", b""),
            (b"\0\xff" * 500, b"\n"),
            (b"", bytes(largest)),
        ):
            cache.set(key, value)
            assert cache.get(key) == value
        with pytest.raises(ValueTooLarge, match="256 KiB") as refused:
            cache.set(b"", bytes(largest + 1))
        assert refused.value.took_effect is False
        assert cache.get(b"") == bytes(largest)
        with pytest.raises(ValueTooLarge) as refused:
            cache.set_many({b"small": b"1", b"large": bytes(largest), b"large too": bytes(1 << 20)})
        assert refused.value.keys == (b"large", b"large too"), "those that failed; the others are set"
        assert cache.get(b"small") == b"1"


@pytest.mark.parametrize("transport", ["memory", "rpc"])
def test_arguments_that_cannot_be_right(world: tailrace.World, transport: str) -> None:
    with world.cache("c", transport=transport, **SAFE) as cache:
        cache.set(b"k", b"v")
        wrong: list[Callable[[], object]] = [
            lambda: cache.get("text"),  # type: ignore[arg-type]
            lambda: cache.get_many([None]),  # type: ignore[list-item]
            lambda: cache.set("text", b""),  # type: ignore[arg-type]
            lambda: cache.set(b"k", "text"),  # type: ignore[arg-type]
            lambda: cache.set(b"k", b"", ttl_s=0.5),
            lambda: cache.set(b"k", b"", ttl_s=-1),
            lambda: cache.set(b"k", b"", ttl_s=1e12),
            lambda: cache.set(b"k", b"", ttl_s=float("nan")),
            lambda: cache.set(b"k", b"", ttl_s=float("inf")),
            lambda: cache.cas(b"k", b"", (1, 2)),  # type: ignore[arg-type]
            lambda: cache.get_into(b"k", b"not writable"),
            lambda: cache.get_into(b"k", bytearray(0)),
        ]
        for call in wrong:
            with pytest.raises((TypeError, ValueError, BufferError)):
                call()
        assert cache.get(b"k") == b"v"


# ---- time


def test_entries_live_as_long_as_they_are_told(world: tailrace.World) -> None:
    caches = [
        world.cache(f"c{number}", **settings, transport=transport)
        for number, (settings, transport) in enumerate(
            (settings, transport) for settings in MODES.values() for transport in ("memory", "rpc")
        )
    ]
    for cache in caches:
        cache.set_many({b"brief": b"v", b"brief too": b"v"}, ttl_s=1)
        cache.set(b"long", b"v", ttl_s=3600)
        cache.set(b"ever", b"v")
    default = world.cache("default", ttl_s=1.0, **SAFE)
    default.set(b"brief", b"v")
    default.set(b"long", b"v", ttl_s=3600)
    caches.append(default)
    for cache in caches:
        wait_until(lambda cache=cache: cache.get_many([b"brief", b"brief too"]) == [None] * 2, "it to expire")
        assert cache.get(b"brief", relaxed=True) is None
        assert cache.get(b"long") == b"v"
        assert cache is default or cache.get(b"ever") == b"v"
        assert cache.cas(b"brief", b"anew", None) is not None, "what has expired is not there"
    # Nobody read the other one at the backends; they collect it all the same.
    for cache in caches:
        kept = sum(cache.settings.copies for key in (b"brief", b"long", b"ever") if cache.get(key) is not None)
        wait_until(lambda cache=cache, kept=kept: total(cache, "records") == kept, "expired entries to be collected")
        cache.close()


def total(cache: Cache, name: str) -> int:
    return sum(told[name] for told in cache.backend_stats().values())


class SkewedClock(SystemClock):
    """A machine whose wall clock is wrong by so much."""

    def __init__(self, skew_s: float) -> None:
        self.skew_s = skew_s

    def time_us(self) -> int:
        return super().time_us() + int(self.skew_s * 1e6)


@contextmanager
def skewed(root: Path, skew_s: float) -> Iterator[tuple[tailrace.World, SkewedClock]]:
    database, clock = str(root / "coordination.db"), SkewedClock(skew_s)
    with tailrace.World(
        files=PosixFiles(str(root)),
        coordination=lambda: SqliteCoordination(database),
        has_coordination=lambda: os.path.exists(database),
        may_coordinate=lambda: True,
        clock=clock,
        config=WorldConfig(),
        root=str(root),
    ) as opened:
        yield opened, clock


@EVERY_MODE
def test_a_client_whose_clock_is_behind_gets_through(tmp_path: Path, mode: str) -> None:
    """It learns from the answers where the versions are."""
    with tailrace.open(tmp_path) as world, skewed(tmp_path, -3600) as (late, _):
        cache = world.cache("c", **MODES[mode])
        with late.cache("c", serving=False) as behind:
            first = cache.set(b"k", b"1")
            assert behind.set(b"fresh", b"1").clock_us < first.clock_us - 3_000_000_000
            if mode == "R=2/immutable":
                behind.erase(b"k")
            assert behind.set(b"k", b"2") > first
            assert cache.get(b"k") == behind.get(b"k") == b"2"
            cache.erase(b"k")
            assert cache.get(b"k") is None
            behind.set(b"k", b"3")
            assert cache.get(b"k") == b"3"
            found = cache.get_with_version(b"k")
            assert found is not None
            assert behind.cas(b"k", b"4", found[1]) is not None
            behind.erase(b"k")
            assert cache.get_many([b"k", b"fresh"]) == [None, b"1"]


@EVERY_MODE
def test_a_client_whose_clock_is_too_far_ahead_is_refused(tmp_path: Path, mode: str) -> None:
    with tailrace.open(tmp_path) as world, skewed(tmp_path, 3600) as (early, clock):
        cache = world.cache("c", clock_error_s=10.0, **MODES[mode])
        with early.cache("c", serving=False) as ahead:
            cache.set(b"k", b"1")
            for call in (
                lambda: ahead.set(b"new", b"2"),
                lambda: ahead.erase(b"k"),
                lambda: ahead.cas(b"new", b"3", None),
            ):
                with pytest.raises(ClockAhead, match=r"10\.0 s ahead") as refused:
                    call()
                assert refused.value.took_effect is False
            assert cache.get_many([b"k", b"new"]) == [b"1", None]
            assert ahead.get(b"k") == b"1", "it may read"
            clock.skew_s = 5.0
        with early.cache("c", serving=False) as ahead:
            ahead.set(b"new", b"2")  # within what is allowed
            cache.erase(b"new")
            assert cache.get(b"new") is None, "its version is ahead, and others get past it"


# ---- settings


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"mode": "R=9"}, "mode='R=9'"),
        ({"mode": "R=3.2"}, "backends=1"),
        ({"backends": 0}, "backends=0"),
        ({"backends": "3"}, "backends"),
        ({"memory_bytes": 1}, "memory_bytes=1"),
        ({"policy": "mru"}, "policy='mru'"),
        ({"ttl_s": 0.1}, "ttl_s=0.1"),
        ({"repair_s": 0.0}, "repair_s=0"),
        ({"tombstones": -1}, "tombstones=-1"),
        ({"clock_error_s": -1.0}, "clock_error_s=-1"),
        ({"transport": "pigeon"}, "transport='pigeon'"),
        ({"deadline_s": 0.0}, "deadline_s=0"),
        ({"attempts_max": 0}, "attempts_max=0"),
        ({"no_such_setting": 1}, "no_such_setting"),
    ],
)
def test_wrong_settings_are_refused_by_name_and_nothing_is_made(
    world: tailrace.World, settings: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match=path) as refused:
        world.cache("c", **settings)
    assert refused.value.took_effect is False
    assert "c" not in world.caches()
    assert world.cache("c").settings == CacheConfig()


def test_settings_come_from_the_folder(tmp_path: Path) -> None:
    toml = tmp_path / "tailrace.toml"
    toml.write_text('[caches.prices]\nmode = "R=3.2"\nbackends = 3\n[cache_client]\ntransport = "rpc"\n')
    with tailrace.open(tmp_path) as world:
        cache = world.cache("prices")
        assert (cache.settings.mode, cache.settings.backends) == ("R=3.2", 3)
        cache.set(b"k", b"v")
        assert cache.ways() == dict.fromkeys(range(3), "rpc")
    toml.write_text('[caches.prices]\nmode = "R=3.2"\nbackends = 2\n')
    with pytest.raises(ConfigError, match=r"tailrace\.toml: caches\.prices\.backends=2: use 3 to"):
        tailrace.open(tmp_path)


def test_a_cache_is_found_as_it_is_or_refused(world: tailrace.World) -> None:
    with pytest.raises(CacheMissing, match="no cache 'c'"):
        world.cache("c", create=False)
    with pytest.raises(CacheMissing):
        world.cache_standing("c")
    with pytest.raises(CacheMissing, match="nothing was deleted"):
        world.delete_cache("c")
    with pytest.raises(NameRefused):
        world.cache("../c")
    assert world.caches() == []
    made = world.create_cache("c", **SAFE)
    assert world.create_cache("c", **SAFE) == made
    with pytest.raises(CacheExists, match="backends=3 instead of 4") as refused:
        world.cache("c", backends=4)
    assert refused.value.took_effect is False
    with pytest.raises(CacheExists):
        world.create_cache("c")
    assert world.cache("c").settings == world.cache("c", **SAFE).settings == made
    assert world.cache("c", backends=3).settings == made, "what is asked for is so"
    world.cache("d")
    assert sorted(world.caches()) == ["c", "d"]
    assert sorted(world.cache_standing("c").backends) == [0, 1, 2]


def test_another_configuration_keeps_the_shape(world: tailrace.World) -> None:
    """Which backend has a key follows from their number and the mode: neither can change under the keys."""
    config = world.create_cache("c", **SAFE)
    for changes in ({"backends": 4}, {"mode": "R=1"}):
        changed = CacheConfig(**{name: getattr(config, name) for name in CacheConfig.__dataclass_fields__} | changes)
        with pytest.raises(ConfigError, match=f"{next(iter(changes))}="):
            world.configure_cache("c", changed)
    with pytest.raises(CacheMissing):
        world.configure_cache("other", config)
    with world.cache("c") as cache:
        cache.set(b"k", b"v")
        assert cache.get(b"k") == b"v"


def test_clients_follow_another_configuration(world: tailrace.World) -> None:
    from dataclasses import replace

    cache, other = world.cache("c", **SAFE), world.cache("c", transport="rpc")
    cache.set(b"k", b"v")
    before = world.cache_standing("c").record
    world.configure_cache("c", replace(before.config, ttl_s=1.0))
    assert world.cache_standing("c").record.config_id == before.config_id + 1

    def followed() -> bool:
        assert cache.get(b"k") == other.get(b"k") == b"v", "no read fails meanwhile"
        cache.set(b"steady", b"v", ttl_s=3600)
        return cache.settings.ttl_s == other.settings.ttl_s == 1.0 and set(cache.ways().values()) == {"memory"}

    wait_until(followed, "clients and backends to follow")
    cache.set(b"brief", b"v")
    wait_until(lambda: cache.get(b"brief") is None, "the new time to live to be used")


# ---- handles


@pytest.mark.parametrize("transport", ["memory", "rpc", "best"])
def test_a_closed_cache_says_so(world: tailrace.World, transport: str) -> None:
    cache = world.cache("c", transport=transport, **SAFE)
    cache.set(b"k", b"v")
    cache.close()
    cache.close()
    calls: list[Callable[[], object]] = [
        lambda: cache.get(b"k"),
        lambda: cache.get_many([b"k"]),
        lambda: cache.get_with_version(b"k"),
        lambda: cache.get_into(b"k", bytearray(1)),
        lambda: cache.set(b"k", b""),
        lambda: cache.set_many({b"k": b""}),
        lambda: cache.erase(b"k"),
        lambda: cache.cas(b"k", b"", None),
        lambda: cache.ways(),
        lambda: asyncio.run(cache.aio.get(b"k")),
        lambda: asyncio.run(cache.aio.set(b"k", b"")),
    ]
    for call in calls:
        with pytest.raises(Closed) as refused:
            call()
        assert refused.value.took_effect is False
    with world.cache("c") as again:
        assert again.get(b"k") == b"v", "the world still serves it"


def test_closing_the_world_closes_its_caches(tmp_path: Path) -> None:
    world = tailrace.open(tmp_path)
    cache = world.cache("c", **SAFE)
    cache.set(b"k", b"v")
    world.close()
    world.close()
    for call in (
        lambda: cache.get(b"k"),
        lambda: cache.set(b"k", b""),
        lambda: world.cache("c"),
        lambda: world.caches(),
    ):
        with pytest.raises(Closed):
            call()
    cache.close()


def test_two_handles_and_two_worlds_see_each_other(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        one, two, three = world.cache("c", **SAFE), world.cache("c"), beside.cache("c")
        for number, cache in enumerate((one, two, three)):
            cache.set(b"k", b"%d" % number)
            assert [other.get(b"k") for other in (one, two, three)] == [b"%d" % number] * 3
        one.close()
        assert two.get(b"k") == b"2"
        two.set(b"k", b"again")
        assert three.get(b"k") == b"again"
        versions = {cache.set(b"k", b"v") for cache in (two, three) for _ in range(20)}
        assert len(versions) == 40, "no two clients nominate the same version"
        assert beside.cache_standing("c").backends == world.cache_standing("c").backends


def test_the_world_that_serves_may_close_and_another_one_goes_on(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as beside:
        with tailrace.open(tmp_path) as world:
            world.cache("c", clock_error_s=0.05, **SAFE).set(b"k", b"v")
            cache = beside.cache("c")
            assert cache.get(b"k") == b"v"
        assert cache.get(b"k") is None, "what it served is gone with it"
        cache.set(b"k", b"anew")
        assert cache.get(b"k") == b"anew"
        assert sorted(beside.cache_standing("c").backends) == [0, 1, 2]


def test_a_reopened_world_has_the_cache_but_not_its_content(tmp_path: Path) -> None:
    folder = os.path.dirname(cell_folder(str(tmp_path), "c", 0))
    assert folder.startswith(shared_folder())
    for turn in range(3):
        with tailrace.open(tmp_path) as world:
            cache = world.cache("c", clock_error_s=0.05, **SAFE)
            assert sorted(os.listdir(folder)) == ["0", "1", "2"]
            assert cache.get(b"k") is None
            cache.set(b"k", b"%d" % turn)
            assert cache.get(b"k") == b"%d" % turn
        assert not os.path.exists(folder), "nothing is left in shared memory"


def test_threads_share_a_cache(world: tailrace.World) -> None:
    with world.cache("c", **SAFE) as cache:

        def work(number: int) -> None:
            for turn in range(60):
                key, value = b"key %d %d" % (number, turn % 5), b"%d %d" % (number, turn)
                cache.set(key, value)
                assert cache.get(key) == value, "what a thread set it gets, nobody else sets it"
                assert cache.get_many([key, b"key %d 0" % number])[0] == value
                cache.set(b"shared", value * 100)
                found = cache.get(b"shared")
                assert found is None or found == found[: len(found) // 100] * 100

        run_in_threads([lambda number=number: work(number) for number in range(6)])
        assert cache.stats()["hits"] >= 6 * 60 * 3


def test_closing_while_others_use_it_ends_them_cleanly(world: tailrace.World) -> None:
    for transport in ("memory", "rpc"):
        cache = world.cache("c", transport=transport, **SAFE)
        begun = threading.Barrier(5)

        def use(cache: Cache = cache, begun: threading.Barrier = begun) -> None:
            begun.wait()
            try:
                for _ in range(100_000):  # without an end only if it is closed
                    cache.set(b"k", b"v")
                    assert cache.get(b"k") in (b"v", None)
            except Closed as closed:
                assert closed.took_effect is False
            except TailraceError as problem:  # it was on its way
                assert problem.took_effect is not True

        def close(cache: Cache = cache, begun: threading.Barrier = begun) -> None:
            begun.wait()
            wait_until(lambda: cache.stats()["hits"] + cache.stats()["rpc_reads"] > 20, "the others to be at it")
            cache.close()

        run_in_threads([use, use, use, use, close])


# ---- memory


def test_small_memory_evicts_the_least_recent_and_never_grows_past_its_bound(world: tailrace.World) -> None:
    bound = 2 << 20
    with world.cache("c", mode="R=3.2", backends=3, memory_bytes=bound) as cache:
        keys = [b"key %04d" % number for number in range(600)]
        for key in keys:
            cache.set(key, key * 800)  # 6.4 KiB each, 3.8 MiB together
        found = cache.get_many(keys)
        assert found[-1] == keys[-1] * 800
        kept = [key for key, value in zip(keys, found, strict=True) if value is not None]
        assert kept == keys[-len(kept) :], "the newest"
        assert 200 < len(kept) < 300
        assert all(value is None or value == key * 800 for key, value in zip(keys, found, strict=True))
        for told in cache.backend_stats().values():
            assert told["evicted_capacity"] > 300
            assert told["used_bytes"] <= told["populated_bytes"] <= bound
        cache.set(keys[0], b"back", ttl_s=60)
        assert cache.get(keys[0]) == b"back", "an evicted key can be set again at once"


@pytest.mark.parametrize("policy", ["lru", "arc"])
def test_what_is_read_stays_when_the_policy_says_so(world: tailrace.World, policy: str) -> None:
    """Backends do not see reads; clients tell them now and then."""
    with world.cache("c", memory_bytes=2 << 20, policy=policy, touch_s=0.01, mode="R=3.2", backends=3) as cache:
        kept = [b"kept %d" % number for number in range(10)]
        cache.set_many({key: bytes(4000) for key in kept})
        for number in range(600):
            if number % 20 == 0:
                before = total(cache, "touched")
                assert cache.get_many(kept) == [bytes(4000)] * 10
                wait_until(lambda before=before: total(cache, "touched") >= before + 30, "the touches to arrive")
            cache.set(b"passing %d" % number, bytes(4000))
        assert cache.get_many(kept) == [bytes(4000)] * 10
        assert total(cache, "evicted_capacity") > 300


# ---- ways


@contextmanager
def colliding() -> Iterator[None]:
    """All keys in the same two buckets."""
    for weaken in (weaken_cells, weaken_clients):
        weaken((1 << 64) - 1, 0)
    try:
        yield
    finally:
        weaken_cells()
        weaken_clients()


@EVERY_MODE
def test_keys_that_found_no_place_are_asked_for(world: tailrace.World, mode: str) -> None:
    with colliding(), world.cache("c", keys_expected=4000, **MODES[mode]) as cache:
        keys = [b"key %d" % number for number in range(100)]
        versions = cache.set_many({key: key for key in keys})
        assert total(cache, "chained") > 50
        assert cache.get_many([*keys, b"no"]) == [*keys, None]
        assert cache.get_many(keys, relaxed=True) == keys
        assert cache.stats()["rpc_reads"] > 50
        for key, version in zip(keys[-5:], versions[-5:], strict=True):
            room = bytearray(len(key))
            assert cache.get_into(key, room) == len(key)
            assert room == key
            assert cache.get_with_version(key) == (key, version)
        with pytest.raises(ValueError, match=r"bytes into 2|different structures"):
            for key in keys:
                cache.get_into(key, bytearray(2))
        assert asyncio.run(cache.aio.get_many(keys)) == keys
        cache.erase_many(keys[:50])
        assert cache.get_many(keys) == [None] * 50 + keys[50:]


@pytest.mark.parametrize("transport", ["best", "memory", "engine", "rpc"])
@EVERY_MODE
def test_every_way_leads_to_the_same(tmp_path: Path, mode: str, transport: str) -> None:
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        world.create_cache("c", **MODES[mode])
        served = world.serve_caches(["c"], None, Doors(engine="127.0.0.1:0"))
        assert len(served) == MODES[mode]["backends"]
        for opened in (world, beside):  # in the process of the backends, and as others see them
            with opened.cache("c", serving=False, transport=transport, inline_bytes_max=1000) as cache:
                expected = {"best": "memory"}.get(transport, transport)
                assert cache.ways() == dict.fromkeys(range(MODES[mode]["backends"]), expected)
                assert cache.in_memory == (expected == "memory")
                items = {b"key %d" % number: bytes([number]) * (10, 900, 5000)[number % 3] for number in range(60)}
                cache.set_many(items)
                assert cache.get_many([*items, b"no"]) == [*items.values(), None]
                assert cache.get_many(list(items), relaxed=True) == list(items.values())
                assert [cache.get(key) for key in list(items)[:5]] == list(items.values())[:5]
                found = cache.get_with_version(b"key 9")
                assert found is not None
                assert cache.cas(b"key 9", b"changed", found[1]) is not None
                assert cache.get(b"key 9") == b"changed"
                cache.erase_many(list(items))
                assert cache.get_many(list(items)) == [None] * 60
                assert (cache.stats()["rpc_reads"] > 0) == (transport == "rpc")


@pytest.mark.parametrize("transport", ["memory", "engine", "rpc"])
@pytest.mark.parametrize("lost", [0, 1])
def test_one_of_two_copies_is_enough(tmp_path: Path, transport: str, lost: int) -> None:
    """Each key is taken away from its first backend, or from its second one."""
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        config = world.create_cache("c", repair_s=3600.0, **MODES["R=2/immutable"])
        served = {
            one.backend.index: one.backend for _, one in world.serve_caches(["c"], None, Doors(engine="127.0.0.1:0"))
        }
        with beside.cache("c", serving=False, transport=transport) as cache:
            items = {b"key %d" % number: b"%d" % number for number in range(30)}
            cache.set_many(items)
            for key in items:
                where = replicas_of(key, config.backends, 2)[lost]
                found = cache.get_with_version(key)
                assert found is not None
                version = found[1]._replace(clock_us=found[1].clock_us + 1)
                for backend, frame, _ in pack(KIND_ERASE, [key], None, version, None, 0, config.backends, 2):
                    if backend == where:
                        served[where].mutate(served[where].instance, 1, memoryview(frame))
            assert total(cache, "records") == 30, "one copy of each is left"
            assert [cache.get(key) for key in items] == list(items.values())
            assert cache.get_many([*items, b"no"]) == [*items.values(), None]
            assert cache.get_into(b"key 7", bytearray(9)) == 1


def test_engines_are_used_for_reads_and_mutations(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        world.create_cache("c", **SAFE)
        world.serve_caches(["c"], None, Doors(engine="127.0.0.1:0"))
        with beside.cache("c", serving=False, transport="engine", inline_bytes_max=1000) as cache:
            cache.set_many({b"small": b"v", b"large": bytes(5000)})
            assert cache.get_many([b"small", b"large"]) == [b"v", bytes(5000)]
            stats = cache.stats()
            assert (stats["scan_reads"], stats["two_step_reads"]) == (1, 1)
            wait_until(lambda: total(cache, "engine_mutated") > 0, "the engines to tell")
            assert total(cache, "engine_scanned") >= 6


def test_counts(world: tailrace.World) -> None:
    with world.cache("c", **SAFE) as cache:
        assert cache.stats()["hits"] == 0
        cache.set_many({b"a": b"1", b"b": b"2"})
        cache.get_many([b"a", b"b", b"no"])
        cache.get(b"a", relaxed=True)
        stats = cache.stats()
        assert (stats["hits"], stats["misses"]) == (3, 1)
        assert set(stats) >= {"retries", "torn", "hedges", "inquorate", "unreachable", "asks", "rpc_reads", "remaps"}
        backends = cache.backend_stats()
        assert sorted(backends) == [0, 1, 2]
        for told in backends.values():
            assert (told["records"], told["whole"], told["pid"]) == (2, 1, os.getpid())
            assert told["used_bytes"] <= told["populated_bytes"]


# ---- absence


def test_reading_calls_nobody_who_was_not_there_when_memory_was_looked_at(
    world: tailrace.World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand readers that open while backends come and go would have a connection each, whose threads tick."""
    world.create_cache("c", **SAFE)
    called: list[int] = []
    peer = Ways.peer
    monkeypatch.setattr(Ways, "peer", lambda ways, number: called.append(number) or peer(ways, number))  # type: ignore[func-returns-value]
    with world.cache("c", serving=False) as cache:
        assert cache.get(b"k") is None
        assert cache.get_many([b"k", b"l"]) == [None, None]
        assert cache.get_into(b"k", bytearray(1)) is None
        assert called == []


def test_nobody_serves_it(world: tailrace.World) -> None:
    world.create_cache("c", **SAFE)
    with world.cache("c", serving=False) as cache:
        assert cache.ways() == dict.fromkeys(range(3), "gone")
        assert cache.get(b"k") is None
        assert cache.get_many([b"k", b"l"], relaxed=True) == [None, None]
        assert cache.get_into(b"k", bytearray(1)) is None
        assert cache.backend_stats() == {}
        for call in (
            lambda: cache.set(b"k", b"v"),
            lambda: cache.erase(b"k"),
            lambda: cache.cas(b"k", b"v", None),
        ):
            with pytest.raises(CacheUnavailable, match="0 of 3 backends are there") as refused:
                call()
            assert refused.value.took_effect is False
            assert refused.value.keys == (b"k",)
        world.serve_caches(["c"], None, Doors())
        wait_until(lambda: cache.ways() == dict.fromkeys(range(3), "memory"), "the client to find the backends")
        cache.set(b"k", b"v")
        assert cache.get(b"k") == b"v"


@pytest.mark.parametrize("transport", ["memory", "rpc"])
def test_a_deleted_cache(tmp_path: Path, transport: str) -> None:
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        own, other = (opened.cache("c", transport=transport, **SAFE) for opened in (world, beside))
        own.set(b"k", b"v")
        assert other.get(b"k") == b"v"
        world.delete_cache("c")
        assert world.caches() == beside.caches() == []
        assert not os.path.exists(os.path.dirname(cell_folder(str(tmp_path), "c", 0)))
        for cache in (own, other):
            assert cache.get(b"k") is None
            assert cache.get_many([b"k"], relaxed=True) == [None]
            for call in (lambda cache=cache: cache.set(b"k", b"v"), lambda cache=cache: cache.erase(b"k")):
                with pytest.raises(TailraceError) as refused:
                    call()
                assert refused.value.took_effect is False
        with beside.cache("c", mode="R=1") as anew:
            assert anew.get(b"k") is None
            anew.set(b"k", b"anew")
            assert anew.get(b"k") == b"anew"


def test_a_cache_that_someone_else_deletes_stops_being_served(tmp_path: Path) -> None:
    """Whoever serves it notices, and takes nothing more."""
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        cache = world.cache("c", **SAFE)
        cache.set(b"k", b"v")
        beside.delete_cache("c")

        def refused() -> bool:
            try:
                cache.set(b"k", b"w")
            except TailraceError as problem:
                assert problem.took_effect is not True
                return problem.took_effect is False  # None: some have noticed, and some have not
            return False

        wait_until(refused, "mutations to be refused")
        with pytest.raises(CacheMissing):
            cache.set(b"k", b"w")
        folder = os.path.dirname(cell_folder(str(tmp_path), "c", 0))
        wait_until(lambda: not os.path.exists(folder), "its memory to be given back")
        with beside.cache("c", **SAFE) as anew:
            assert len(beside.cache_standing("c").backends) == 3
            anew.set(b"k", b"anew")
            assert anew.get(b"k") == b"anew"


def test_a_cache_that_is_deleted_and_made_again_at_once(tmp_path: Path) -> None:
    """Those who served the former one never saw it missing. They take nothing for the new one by mistake."""
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as beside:
        cache = world.cache("c", **SAFE)
        cache.set(b"k", b"v")
        beside.delete_cache("c")
        beside.create_cache("c", **SAFE)

        def served() -> bool:
            beside.cache("c").close()
            return len(beside.cache_standing("c").backends) == 3

        wait_until(served, "the new one to be served")
        with beside.cache("c") as anew:
            assert anew.get(b"k") is None
            anew.set(b"l", b"anew")
            wait_until(lambda: cache.get(b"l") == b"anew", "the older handle to follow")
            assert cache.get(b"k") is None


def test_no_time_is_enough_for_memory(world: tailrace.World) -> None:
    with world.cache("c", **SAFE) as cache:
        cache.set(b"k", b"v")
        assert cache.get(b"k", deadline_s=0.0) == b"v"
        cache.set(b"k", b"w", deadline_s=0.0)
        assert cache.get(b"k") == b"w"


def test_a_watch_tells_of_another_value_whoever_sets_it(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world, tailrace.open(tmp_path) as other:
        cache = world.cache("c", mode="R=3.2", backends=3)
        theirs = other.cache("c", serving=False)
        keys = [b"key %d" % number for number in range(20)]
        watch = theirs.watch(keys)
        while watch.wait(0.05):  # the first answers
            pass
        for number, key in enumerate(keys):
            (cache if number % 2 else theirs).set(key, b"%d" % number)
            assert watch.wait(60.0), key
            while watch.wait(0.02):
                pass
        watch.stop()
        with pytest.raises(Closed):
            watch.wait(60.0)


def test_a_watch_of_a_cache_that_nobody_serves_says_so_and_goes_on_when_somebody_does(tmp_path: Path) -> None:
    with tailrace.open(tmp_path) as world:
        world.create_cache("c")
        watch = world.cache("c", serving=False).watch([b"key"])
        for _ in range(2):
            with pytest.raises(Unreachable, match="watch 1 keys of the cache c"):
                watch.wait(60.0)
        with tailrace.open(tmp_path) as serving:
            cache = serving.cache("c")
            cache.set(b"key", b"1")

            def watches() -> bool:
                try:
                    return watch.wait(60.0)
                except Unreachable:
                    return False

            wait_until(watches, "the watch to find the cache")
            cache.set(b"key", b"2")
            assert watch.wait(60.0)


def test_backends_of_one_process_have_ports_of_their_own() -> None:
    doors = Doors(rpc=("10.0.0.7:7401",), engine="10.0.0.7:7451")
    assert doors.further(0) == doors
    assert doors.further(2) == Doors(rpc=("10.0.0.7:7403",), engine="10.0.0.7:7453")
    assert Doors(engine="[::1]:7451").further(1) == Doors(engine="[::1]:7452")
    for anywhere in (Doors(), Doors(rpc=("127.0.0.1:0",), engine="127.0.0.1:0")):
        assert anywhere.further(2) == anywhere
