"""Whom a client believes: every way that three replicas can differ, by every way they can be reached."""

from itertools import product

import pytest

from tailrace.native.client import replicas_of

from .cohorts import cohort

WAYS = [None, "memory", "engine"]
HELD = [0, 1, 2, 3]  # which version a replica has; 0: none
STATES = list(product(HELD, repeat=3))
KEYS = [b"key %d%d%d" % state for state in STATES]


def version(held):
    return (100 + held, 1, 0)


def value(key, held):
    return b"%s at version %d " % (key, held) * (1 + 700 * (held == 3))  # one is larger than what comes along


@pytest.fixture(scope="module")
def replicas():
    """A key for each state, set so at the backends' numbers."""
    with cohort(3, slabs=32) as made:
        for key, state in zip(KEYS, STATES, strict=True):
            for cell, held in zip(made.cells, state, strict=True):
                if held:
                    cell.set(key, value(key, held), version(held))
        yield made


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=3)), ids=str)
def test_a_value_is_believed_when_two_replicas_agree(replicas, ways):
    client = replicas.client(3, 2, ways, data_bytes_max=4096)
    found = client.get_many(KEYS, 0, versions=True)
    reached = [number for number, way in enumerate(ways) if way]
    for number, (key, state, answer) in enumerate(zip(KEYS, STATES, found, strict=True)):
        seen = [state[backend] for backend in reached]
        agreed = [held for held in HELD[1:] if seen.count(held) >= 2]
        assert answer == ((value(key, agreed[0]), version(agreed[0])) if agreed else None), (state, ways)
        assert (number in client.unreachable) == (len(reached) < 2), "with fewer than two nobody knows"
    assert client.asks == []
    assert client.troubles() == {}
    stats = client.stats()
    assert stats["hits"] == sum(answer is not None for answer in found)
    assert stats["hits"] + stats["misses"] + stats["inquorate"] + stats["unreachable"] == len(KEYS)
    if ways == ("engine",) * 3:
        assert stats["scan_reads"] > 0
        assert stats["two_step_reads"] > 0


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=3)), ids=str)
def test_a_relaxed_read_believes_one_replica(replicas, ways):
    client = replicas.client(3, 2, ways)
    reached = [number for number, way in enumerate(ways) if way]
    in_memory = [number for number, way in enumerate(ways) if way == "memory"]
    found = client.get_many(KEYS, 0, relaxed=True, versions=True)
    for key, state, answer in zip(KEYS, STATES, found, strict=True):
        said = {(value(key, state[number]), version(state[number])) if state[number] else None for number in reached}
        assert answer in (said or {None}), (state, ways)
        if in_memory:  # of these the first in the key's own order
            first = next(number for number in replicas_of(key, 3, 3) if number in in_memory)
            assert (answer is None) == (state[first] == 0), (state, ways)
    assert client.unreachable == ([] if reached else list(range(len(KEYS))))


@pytest.mark.parametrize("ways", list(product(WAYS, repeat=3)), ids=str)
def test_two_copies_fall_back_to_the_second(replicas, ways):
    """R=2: one copy is enough. A copy that is not there, or whose backend is not, does not hide the other."""
    client = replicas.client(2, 1, ways)
    found = client.get_many(KEYS, 0, versions=True)
    for number, (key, state, answer) in enumerate(zip(KEYS, STATES, found, strict=True)):
        reached = [backend for backend in replicas_of(key, 3, 2) if ways[backend]]
        said = {(value(key, state[backend]), version(state[backend])) for backend in reached if state[backend]}
        assert (answer in said) if said else (answer is None), (state, ways)
        assert (number in client.unreachable) == (not said and len(reached) < 2), "the other may have it"


@pytest.mark.parametrize("ways", [("memory",) * 3, ("engine",) * 3, ("memory", None, "engine")], ids=str)
def test_one_copy_is_read_where_it_is(replicas, ways):
    client = replicas.client(1, 1, ways)
    found = client.get_many(KEYS, 0, versions=True)
    for number, (key, state, answer) in enumerate(zip(KEYS, STATES, found, strict=True)):
        [home] = replicas_of(key, 3, 1)
        has = ways[home] and state[home]
        assert answer == ((value(key, state[home]), version(state[home])) if has else None)
        assert (number in client.unreachable) == (ways[home] is None)


def test_an_expired_entry_is_none():
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"k", b"v", (1, 1, 0), expiry_s=50)
        for ways in ("memory", "engine"):
            client = made.client(3, 2, ways)
            assert client.get_many([b"k"], 49) == [b"v"]
            assert client.get_many([b"k"], 50) == [None]
            assert client.get_many([b"k"], 50, relaxed=True) == [None]


def test_a_suspect_is_asked_last():
    """Its memory is there, but it is said to be dead: what it has may be old."""
    with cohort(3) as made:
        for cell, held in zip(made.cells, (1, 2, 2), strict=True):
            cell.set(b"k", value(b"k", held), version(held))
        client = made.client(3, 2)
        client.suspect(0, True)
        for _ in range(3):
            assert client.get_many([b"k"], 0, relaxed=True) == [value(b"k", 2)]
            assert client.get_many([b"k"], 0) == [value(b"k", 2)]
        assert client.stats()["retries"] == 0
        client.detach(1)
        client.detach(2)
        assert client.get_many([b"k"], 0, relaxed=True) == [value(b"k", 1)], "better than nothing"
