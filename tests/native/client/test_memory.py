"""A client and the memory of its backends: collisions, overflows, growth, restarts, configurations, sizes."""

import threading

import pytest

from conftest import wait_until
from tailrace.native.cell import SLAB_BYTES, key_hash
from tailrace.native.client import TROUBLE_CONFIG, TROUBLE_VIEW, CellClient, replicas_of

from .cohorts import CONFIG, Gate, cohort, weak_hashes

# ---- keys that share a hash, and buckets that overflow


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_a_key_with_another_ones_hash_is_not_taken_for_it(ways):
    """All keys have one tag, so one of them has a place and the others are chained: only the backend can tell."""
    with weak_hashes(0, 0), cohort(3) as made:
        for cell in made.cells:
            cell.set(b"first", b"of the first", (1, 1, 0))
            cell.set(b"second", b"of the second", (2, 1, 0))
        client = made.client(3, 2, ways)
        assert client.get_many([b"first", b"second", b"third"], 0) == [b"of the first", None, None]
        assert client.asks == [1, 2]
        assert client.get_many([b"second"], 0, relaxed=True) == [None]
        assert client.asks == [0]


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_the_same_version_of_two_keys_is_no_agreement(ways):
    """Two backends have different keys in the one place, at the same version."""
    with weak_hashes(0, 0), cohort(3) as made:
        for cell, order in zip(made.cells, ([b"a", b"b"], [b"b", b"a"], [b"b", b"a"]), strict=True):
            for key in order:
                cell.set(key, b"of " + key, (5, 1, 0))
        client = made.client(3, 2, ways)
        found = client.get_many([b"a", b"b", b"c"], 0)
        for number, key in enumerate([b"a", b"b", b"c"]):
            assert found[number] in (None, b"of " + key)
            assert found[number] is not None or number in client.asks, key


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_a_miss_in_an_overflowed_bucket_is_a_question(ways):
    with weak_hashes((1 << 64) - 1, 0), cohort(3, buckets=100) as made:
        keys = [b"key %d" % number for number in range(15)]
        for cell in made.cells:
            for number, key in enumerate(keys):
                assert cell.set(key, b"v", (number + 1, 1, 0)) == 0
            assert cell.stats()["chained"] == 3
        client = made.client(3, 2, ways)
        found = client.get_many([*keys, b"other"], 0)
        assert found.count(b"v") == 12
        assert client.asks == [number for number, answer in enumerate(found) if answer is None]
        assert 15 in client.asks, "it may be chained as well"
        assert client.stats()["asks"] == 4
        for cell in made.cells:
            for number in range(12):
                cell.erase(keys[number], (99, 1, 0))
        assert client.get_many([*keys[12:], b"other"], 0) == [b"v"] * 3 + [None]
        assert client.asks == []


def test_two_that_surely_miss_outvote_an_overflow():
    with weak_hashes((1 << 64) - 1, 0), cohort(3, buckets=100) as made:
        for number in range(15):
            made.cells[0].set(b"key %d" % number, b"v", (number + 1, 1, 0))
        client = made.client(3, 2)
        assert client.get_many([b"other"], 0) == [None]
        assert client.asks == []
        assert client.get_many([b"other"], 0, relaxed=True) == [None]


# ---- cells that change under a client


def test_growth_under_a_client():
    with cohort(3, buckets=4, slabs=32) as made:
        client = made.client(3, 2)
        keys = [b"key %d" % number for number in range(2000)]
        for number, key in enumerate(keys):
            for cell in made.cells:
                cell.set(key, key, (number + 1, 1, 0))
            if number % 50 == 0:
                assert client.get_many([key, keys[0]], 0) == [key, keys[0]]
        assert client.get_many(keys, 0) == keys
        assert all(cell.stats()["growths"] > 10 for cell in made.cells)
        assert client.stats()["remaps"] >= 3
        assert not client.troubled


def test_a_restarted_backend_is_found_again_and_is_empty():
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"k", b"v", (1, 1, 0))
        client = made.client(3, 2)
        assert client.get_many([b"k"], 0) == [b"v"]
        was = client.instance_of(1)
        cell = made.restart(1)
        assert client.get_many([b"k"], 0) == [b"v"], "two are left"
        made.restart(2)
        assert client.get_many([b"k"], 0) == [None], "never a value that only one has"
        assert client.get_many([b"k", b"k"], 0, relaxed=True).count(b"v") in (0, 2)
        cell.set(b"k", b"v", (1, 1, 0))
        assert client.get_many([b"k"], 0) == [b"v"]
        assert client.instance_of(1) == cell.instance_id != was
        assert client.stats()["remaps"] == 2
        assert client.troubles() == {}


def test_two_instances_of_one_backend_are_not_two_backends():
    """It has the value, restarts, and gets it again: still one voice."""
    with cohort(3) as made:
        made.cells[0].set(b"k", b"old", (1, 1, 0))
        client = made.client(3, 2)
        assert client.get_many([b"k"], 0) == [None]
        made.restart(0).set(b"k", b"old", (1, 1, 0))
        assert client.get_many([b"k"], 0) == [None]


def test_removed_memory_is_trouble_and_the_others_answer():
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"k", b"v", (1, 1, 0))
        client = made.client(3, 2)
        made.cells[0].close(remove=True)
        for _ in range(2):
            assert client.get_many([b"k"], 0) == [b"v"]
        asked = client.get_many(
            [b"k %d" % number for number in range(20)], 0
        )  # some of these ask the removed one first
        assert asked == [None] * 20
        assert client.troubles() == {0: TROUBLE_VIEW}
        made.cells[1].close(remove=True)
        assert client.get_many([b"k"], 0) == [None]
        assert client.unreachable == [0]
        assert client.get_many([b"k"], 0, relaxed=True) == [b"v"]


def test_another_configuration_is_trouble_until_it_is_attached_anew():
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"k", b"v", (1, 1, 0))
        client = made.client(3, 2)
        made.cells[1].configure(CONFIG + 1)
        for _ in range(8):
            assert client.get_many([b"k"], 0) == [b"v"]
        assert client.get_many([b"k %d" % number for number in range(20)], 0) == [None] * 20
        assert client.troubled
        assert client.troubles() == {1: TROUBLE_CONFIG}
        assert not client.troubled
        made.cells[2].configure(CONFIG + 1)
        assert client.get_many([b"k"], 0) == [None]
        assert client.unreachable == [0]
        for number in (1, 2):
            made.attach(client, number, "memory", CONFIG + 1)
        assert client.get_many([b"k"], 0) == [b"v"]
        assert client.unreachable == []


@pytest.mark.parametrize("way", ["memory", "engine"])
def test_a_wrong_configuration_is_refused_from_the_start(way):
    with cohort(1) as made:
        client = made.client(1, 1, [None])
        with pytest.raises(ValueError, match=f"configuration {CONFIG}, not {CONFIG + 1}"):
            made.attach(client, 0, way, CONFIG + 1)
        assert client.ways() == [None]
        made.attach(client, 0, way)
        assert client.ways() == [way]


def test_what_is_no_cell_is_refused(tmp_path):
    client = CellClient(1, 1, 1)
    with pytest.raises(OSError, match="head"):
        client.attach_view(0, tmp_path, 0)
    (tmp_path / "head").write_bytes(bytes(4096))
    with pytest.raises(ValueError, match="no cell this can read"):
        client.attach_view(0, tmp_path, 0)
    with pytest.raises(ValueError, match="backend 1; there are 0 to 0"):
        client.attach_view(1, tmp_path, 0)
    with pytest.raises(ValueError, match="ticket"):
        client.attach_link(0, "127.0.0.1", 1, b"short", 0, 1.0)


@pytest.mark.parametrize("settings", [(0, 1, 1), (3, 4, 2), (3, 0, 1), (3, 3, 0), (3, 2, 3), (4, 4, 2)])
def test_impossible_clients_are_refused(settings):
    with pytest.raises(ValueError, match=r"\d"):
        CellClient(*settings)


# ---- batches and sizes


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_duplicate_and_empty_keys(ways):
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"", b"of the empty key", (1, 1, 0))
            cell.set(b"k", b"", (1, 1, 0))
        client = made.client(3, 2, ways)
        assert client.get_many([b"", b"k", b"", b"x", b"k", b""], 0) == [
            b"of the empty key",
            b"",
            b"of the empty key",
            None,
            b"",
            b"of the empty key",
        ]
        assert client.get_many([], 0) == []
        assert client.get_many([b"k"], 0, versions=True) == [(b"", (1, 1, 0))]


@pytest.mark.parametrize("ways", ["memory", "engine"])
@pytest.mark.parametrize("data_bytes_max", [0, 4096, 1 << 20])
def test_values_of_no_bytes_and_of_as_many_as_an_entry_has(ways, data_bytes_max):
    with cohort(3, slabs=48) as made:
        most = SLAB_BYTES - 32
        sizes = [0, 1, 7, 8, 4096 - 32 - 8, 4096 - 32 - 7, 100_000, most - 8]
        keys = [b"key %d" % number for number in range(len(sizes))]
        for number, (key, size) in enumerate(zip(keys, sizes, strict=True)):
            for cell in made.cells:
                assert cell.set(key, bytes([number]) * size, (1, 1, 0)) == 0
                assert cell.set(b"", bytes(most), (1, 1, number)) == 0
        client = made.client(3, 2, ways, data_bytes_max=data_bytes_max)
        for _ in range(2):
            found = client.get_many([*keys, b""], 0)
            assert found == [*(bytes([number]) * size for number, size in enumerate(sizes)), bytes(most)]


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_large_batches(ways):
    """More than one request takes, and more than memory for answers is kept; twice, since the second uses it again."""
    with cohort(3, slabs=60, buckets=2000) as made:
        keys = [b"key %d" % number for number in range(5000)]
        for number, key in enumerate(keys):
            for cell in made.cells[:2] if number % 5 else made.cells:
                cell.set(key, key * 100, (number + 1, 1, 0))
        client = made.client(3, 2, ways)
        for _ in range(2):
            assert client.get_many(keys, 0) == [key * 100 for key in keys]
        assert client.get_many(keys[:3], 0) == [key * 100 for key in keys[:3]]


@pytest.mark.parametrize("ways", ["memory", "engine"])
def test_get_into_a_buffer(ways):
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"k", b"twelve bytes", (1, 1, 0))
            cell.set(b"empty", b"", (1, 1, 0))
        client = made.client(3, 2, ways)
        room = bytearray(b"." * 20)
        assert client.get_into(b"k", room, 0) == 12
        assert room == b"twelve bytes........"
        assert client.get_into(b"k", memoryview(room)[8:], 0) == 12
        assert room == b"twelve btwelve bytes"
        assert client.get_into(b"empty", bytearray(), 0) == 0
        assert client.get_into(b"other", room, 0) is None
        before = bytes(room)
        with pytest.raises(ValueError, match="12 bytes into 11"):
            client.get_into(b"k", memoryview(room)[:11], 0)
        assert room == before
        with pytest.raises((BufferError, TypeError, ValueError)):
            client.get_into(b"k", b"immutable bytes!", 0)
        assert client.get_into(b"k", room, 0) == 12, "it is usable after a refusal"
        assert client.stats()["hits"] == 4


def test_only_bytes_are_keys():
    with cohort(1) as made:
        client = made.client(1, 1)
        for wrong in (["text"], [None], [b"k", bytearray(b"k")]):
            with pytest.raises(TypeError):
                client.get_many(wrong, 0)
        assert client.get_many([b"k"], 0) == [None]


# ---- access records


def test_hits_are_recorded_for_all_who_have_the_key():
    with cohort(5) as made:
        keys = [b"key %d" % number for number in range(40)]
        for key in keys[:30]:
            for backend in replicas_of(key, 5, 3):
                made.cells[backend].set(key, b"v", (1, 1, 0))
        client = made.client(3, 2, recording=True)
        client.get_many(keys, 0)
        client.get_into(keys[0], bytearray(9), 0)
        expected = {}
        for key in [*keys[:30], keys[0]]:
            for backend in replicas_of(key, 5, 3):
                expected.setdefault(backend, []).append(key_hash(key))
        touched = client.touches()
        split = {number: [told[at : at + 16] for at in range(0, len(told), 16)] for number, told in touched.items()}
        assert {number: sorted(told) for number, told in split.items()} == {
            number: sorted(told) for number, told in expected.items()
        }
        assert client.touches() == {}
        assert made.client(3, 2).touches() == {}


def test_records_that_nobody_takes_are_bounded():
    with cohort(1) as made:
        made.cells[0].set(b"k", b"v", (1, 1, 0))
        client = made.client(1, 1, recording=True)
        for _ in range(10):
            client.get_many([b"k"] * 1000, 0)
        assert len(client.touches()[0]) == 16 * 8192


# ---- one thread at a time


def test_a_second_thread_is_refused_and_the_first_one_is_not_disturbed():
    with cohort(1) as made, Gate(made.engine(0)) as silent:
        made.cells[0].set(b"k", b"v", (1, 1, 0))
        client = made.client(1, 1, [silent])
        silent.shut()
        found = []
        first = threading.Thread(target=lambda: found.extend(client.get_many([b"k"], 0, deadline_s=60.0)))
        first.start()
        wait_until(lambda: silent.asked_bytes, "the first thread to ask")
        for call in (
            lambda: client.get_many([b"k"], 0),
            lambda: client.get_into(b"k", bytearray(9), 0),
            lambda: client.touches(),
            lambda: client.detach(0),
            lambda: client.suspect(0, True),
            lambda: made.attach(client, 0, "memory"),
        ):
            with pytest.raises(RuntimeError, match="another thread"):
                call()
        silent.open()
        first.join()
        assert found == [b"v"]
        assert client.get_many([b"k"], 0) == [b"v"]
