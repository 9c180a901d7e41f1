"""Three backends in processes of their own, killed, stopped and started again under load."""

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cache_load import KEYS, Load, number_in, numbers, set_all
from cache_loops import described
from cache_nodes import Nodes, contents, started_nodes, wait_whole

import tailrace
from conftest import wait_until
from tailrace.cache import Cache
from tailrace.errors import CacheRefused, CacheUnavailable, CacheUnconfirmed


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    with started_nodes(tmp_path) as three:
        yield three


@pytest.fixture(params=["memory", "engine", "rpc"])
def cache(nodes: Nodes, request: pytest.FixtureRequest) -> Iterator[Cache]:
    with tailrace.open(nodes.world) as world:
        yield world.cache("c", serving=False, transport=request.param, deadline_s=10.0, attempts_max=255)


def test_a_killed_backend_costs_no_read_and_comes_back_whole(nodes: Nodes, cache: Cache) -> None:
    with Load(cache) as load:
        load.go_on(3)
        nodes.kill(1)
        load.go_on(3)
        nodes.start(1)
        load.go_on(3)
        wait_whole(cache, 1)
    wait_until(
        lambda: contents(nodes.world, 0, KEYS) == contents(nodes.world, 1, KEYS) == contents(nodes.world, 2, KEYS),
        "all three to have the same bytes at the same versions",
    )
    assert None not in contents(nodes.world, 1, KEYS)
    # Now either of the others may fail.
    nodes.kill(0)
    assert numbers(cache) == [load.sets] * len(KEYS)


def test_a_stopped_backend_costs_no_read_and_no_mutation(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.pause(2)
    assert numbers(cache) == [1] * len(KEYS)
    cache.set_many({key: described(key, 0, 2) for key in KEYS[:5]}, deadline_s=2.0)
    assert [number_in(key, cache.get(key)) for key in KEYS[:5]] == [2] * 5
    nodes.signal(2, signal.SIGCONT)


def test_two_killed_backends_cost_hits_but_never_truth(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.kill(0)
    set_all(cache, 2)
    nodes.kill(2)
    for key, value in zip(KEYS, cache.get_many(KEYS, deadline_s=1.0), strict=True):
        assert value is None or number_in(key, value) == 2
    with pytest.raises((CacheUnavailable, CacheUnconfirmed), match=r"could be reached|confirmed it") as refused:
        cache.set(KEYS[0], described(KEYS[0], 0, 3), deadline_s=1.0)
    assert refused.value.keys == (KEYS[0],)
    assert refused.value.took_effect is (False if isinstance(refused.value, CacheRefused) else None)
    # They come back empty. What only the third had may be old, so it is a miss until it is set again.
    nodes.start(0, 2)
    wait_whole(cache, 0, 2)
    for key, value in zip(KEYS, cache.get_many(KEYS), strict=True):
        assert value is None or number_in(key, value) >= 2
    set_all(cache, 4)
    assert numbers(cache) == [4] * len(KEYS)


def test_an_erased_key_does_not_come_back_with_a_backend_that_was_away(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    nodes.kill(1)
    cache.erase_many(KEYS[:20])
    nodes.start(1)
    wait_whole(cache, 1)
    nodes.kill(0)  # one that saw the erase
    assert cache.get_many(KEYS[:20]) == [None] * 20
    nodes.start(0)
    wait_whole(cache, 0)
    assert cache.get_many(KEYS[:20]) == [None] * 20
    assert None not in cache.get_many(KEYS[20:])


def test_clients_follow_another_configuration(nodes: Nodes, cache: Cache) -> None:
    set_all(cache, 1)
    with tailrace.open(nodes.world) as world:
        before = world.cache_standing("c").record
        world.configure_cache("c", replace(before.config, ttl_s=3600.0))
    wait_until(lambda: cache.settings.ttl_s == 3600.0, "the client to have the new settings")
    wait_until(lambda: all(cache.get_many(KEYS)), "reads under the new configuration")
    set_all(cache, 2)
    assert numbers(cache) == [2] * len(KEYS)
