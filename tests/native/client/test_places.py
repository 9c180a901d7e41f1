"""Which backends have a key, and what cohorts tell each other about it."""

from collections import Counter
from struct import Struct

import pytest

from tailrace.native.cell import PARTITIONS, key_hash
from tailrace.native.client import replicas_of

from ..cell.places import folder, small_cell

KEYS = [b"key %d" % number for number in range(6000)]
HALVES = Struct("<QQ")
KNOWN = Struct("<16sQII")


def jump(number, buckets):
    """Jump consistent hashing, from its description: how far could the buckets grow before this number moves?"""
    home, following = -1, 0
    while following < buckets:
        home = following
        number = (number * 2862933555777941757 + 1) % 2**64
        following = int((home + 1) * (2**31 / ((number >> 33) + 1)))
    return home


def home_of(key, backends):
    return jump(HALVES.unpack(key_hash(key))[0], backends)


@pytest.mark.parametrize("backends", [1, 2, 3, 7, 64, 1000])
def test_the_home_is_that_of_jump_hashing_and_copies_follow_it_round(backends):
    for key in KEYS[:500]:
        home = home_of(key, backends)
        for copies in range(1, min(3, backends) + 1):
            assert replicas_of(key, backends, copies) == [(home + copy) % backends for copy in range(copies)]


@pytest.mark.parametrize(("backends", "copies"), [(3, 1), (3, 3), (7, 1), (7, 2), (7, 3), (20, 3)])
def test_keys_are_spread_evenly_and_copies_are_distinct(backends, copies):
    spread = Counter()
    for key in KEYS:
        places = replicas_of(key, backends, copies)
        assert len(set(places)) == copies
        spread.update(places)
    share = len(KEYS) * copies / backends
    assert set(spread) == set(range(backends))
    # Five standard deviations of a fair draw: a spread that is uneven by design is far outside.
    assert max(abs(count - share) for count in spread.values()) < 5 * share**0.5


@pytest.mark.parametrize("backends", [1, 3, 9, 30])
def test_one_more_backend_moves_only_what_it_gets(backends):
    moved = 0
    for key in KEYS:
        before, after = replicas_of(key, backends, 1)[0], replicas_of(key, backends + 1, 1)[0]
        assert after in (before, backends), "a key moves to the new backend or stays"
        moved += after != before
    share = len(KEYS) / (backends + 1)
    assert abs(moved - share) < 5 * share**0.5


@pytest.mark.parametrize(("backends", "copies"), [(0, 1), (2, 3), (3, 0), (1, 2)])
def test_impossible_copies_are_refused(backends, copies):
    with pytest.raises(ValueError, match="copies="):
        replicas_of(b"k", backends, copies)


# ---- what cohorts tell


def contents(cell, backends):
    """By home and partition, what is stored."""
    found = {}
    for key, _, version, _ in cell.items():
        place = home_of(key, backends), HALVES.unpack(key_hash(key))[1] % PARTITIONS
        found.setdefault(place, set()).add((key_hash(key), version))
    return found


def told(cell, home, backends, partitions):
    rows = list(KNOWN.iter_unpack(cell.known(home, backends, partitions)))
    assert len({row[0] for row in rows}) == len(rows), "a key is told once"
    return {(key, tuple(version)) for key, *version in rows}


def test_a_list_has_the_keys_of_that_home_and_those_partitions():
    with folder() as path:
        cell = small_cell(path, slabs=32)
        for number, key in enumerate(KEYS[:3000]):
            cell.set(key, b"v", (number + 1, 2, 3))
        for backends in (1, 3, 5):
            found = contents(cell, backends)
            for home in range(backends):
                for partitions in (2**PARTITIONS - 1, 1, 1 << 63, 0b1010, 0):
                    expected = set().union(
                        *(found.get((home, part), set()) for part in range(PARTITIONS) if partitions >> part & 1)
                    )
                    assert told(cell, home, backends, partitions) == expected
        assert cell.known(5, 5, 2**PARTITIONS - 1) == b"", "nobody lives there"


def digests(cell, home=0, backends=1):
    packed = cell.digest(home, backends)
    assert len(packed) == 8 * PARTITIONS
    return [packed[at : at + 8] for at in range(0, len(packed), 8)]


def test_digests_differ_exactly_where_keys_or_versions_do():
    with folder() as path, folder() as other_path:
        cell, other = small_cell(path), small_cell(other_path)
        for number, key in enumerate(KEYS[:200]):
            cell.set(key, b"v", (number + 1, 2, 3))
        for number, key in reversed(list(enumerate(KEYS[:200]))):
            other.set(key, b"another value, the same version", (number + 1, 2, 3))
        assert digests(cell) == digests(other), "the order of mutations does not matter"

        def differing():
            return {part for part in range(PARTITIONS) if digests(cell)[part] != digests(other)[part]}

        def part_of(key):
            return HALVES.unpack(key_hash(key))[1] % PARTITIONS

        for version in ((5000, 2, 3), (5000, 3, 3), (5000, 3, 4)):  # each part of a version counts
            cell.set(KEYS[7], b"v", version)
            assert differing() == {part_of(KEYS[7])}
            other.set(KEYS[7], b"v", version)
            assert differing() == set()
        cell.erase(KEYS[9], (6000, 0, 0))
        assert differing() == {part_of(KEYS[9])}
        other.erase(KEYS[9], (7000, 0, 0))
        assert differing() == set(), "what is not stored is not summed"


def test_digests_of_all_homes_are_those_of_everything():
    with folder() as path:
        cell = small_cell(path)
        for number, key in enumerate(KEYS[:500]):
            cell.set(key, b"v", (number + 1, 2, 3))
        for backends in (2, 3, 5):
            for part in range(PARTITIONS):
                total = sum(int.from_bytes(digests(cell, home, backends)[part], "little") for home in range(backends))
                assert total % 2**64 == int.from_bytes(digests(cell)[part], "little")
