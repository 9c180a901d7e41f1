"""What an engine answers, held against a dictionary and against the files; and that it answers nothing else."""

import os
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import wait_until
from tailrace.native.cell import SLAB_BYTES, CellView, Outcome, key_hash
from tailrace.native.engine import Engine, Link, State

from ..cell.places import folder
from ..strategies import PATIENT
from .frames import (
    ANSWERED,
    ASK,
    CHANGED,
    CHANGED_HANDS,
    DATA,
    DONE,
    FOUND,
    INDEX,
    MISS,
    OUTSIDE,
    READ,
    SCAN,
    STALE,
    Fetched,
    Range,
    Scanned,
)
from .served import link_to, peer_of, roomy_cell, served, ticket_for, weak_hash

MISSED = (State.MISS, None, None)
FAR = [1, 4, 8, 4096, SLAB_BYTES - 8, SLAB_BYTES, SLAB_BYTES + 8, 2**31, 2**32 - 8, 2**32 - 1]
FARTHER = [0, *FAR, 2**32, 2**63 - 8, 2**63, 2**64 - 4096, 2**64 - 8, 2**64 - 1]


def hits(stored, keys):
    return [(State.HIT, *stored[key]) if key in stored else MISSED for key in keys]


def test_all_sizes_come_whole_in_one_step_and_in_two():
    draw = Random(1)
    with served() as (cell, engine), link_to(engine) as link:
        stored = {}
        for number, size in enumerate([0, 1, 7, 8, 9, 63, 64, 100, 4096, 65_537, 200_000, SLAB_BYTES - 200]):
            key = b"key of %d bytes" % size
            stored[key] = (draw.randbytes(size), (number + 1, 2, 3))
            assert cell.set(key, *stored[key]) == Outcome.APPLIED
        keys = [*stored, b"absent", b""]
        assert link.scan(keys, 0) == link.read(keys, 0) == hits(stored, keys)
        assert link.scan([], 0) == link.read([], 0) == []
        assert link.scan([b"absent"] * 5, 0) == [MISSED] * 5


def test_larger_entries_are_found_without_their_bytes():
    with served() as (cell, engine), link_to(engine) as link:
        cell.set(b"small", bytes(100), (1, 0, 0))
        cell.set(b"large", bytes(5000), (2, 0, 0))
        small, large = link.scan([b"small", b"large"], 0, 1000)
        assert small == (State.HIT, bytes(100), (1, 0, 0))
        assert large == (State.FOUND, None, (2, 0, 0))
        assert link.scan([b"small", b"large"], 0, 0) == [
            (State.FOUND, None, (1, 0, 0)),
            (State.FOUND, None, (2, 0, 0)),
        ]
        with peer_of(engine) as peer:
            (found,) = peer.scan([key_hash(b"large")])
            for most, sent in [(found.size - 1, b""), (found.size, found.raw), (found.size + 1, found.raw)]:
                assert peer.scan([key_hash(b"large")], data_bytes_max=most) == [
                    Scanned(FOUND, sent, found.version, found.offset, found.size, 0)
                ]


def test_a_batch_larger_than_any_answer_comes_in_parts():
    """More items than fit one request of the link, and more bytes than fit one answer of the engine."""
    with served(buckets=1 << 14, request_bytes_max=4096) as (cell, engine):
        stored = {b"key %04d" % number: (bytes([number % 251]) * 9000, (number + 1, 0, 0)) for number in range(1500)}
        for key, (value, version) in stored.items():
            cell.set(key, value, version)
        keys = [*stored, *(b"no %d" % number for number in range(500))]
        Random(3).shuffle(keys)
        with link_to(engine) as link:
            assert link.scan(keys, 0) == link.read(keys, 0) == hits(stored, keys)
            stats = link.stats()
            assert stats["requests"] > 3 * len(keys) // 253
            assert stats["answers"] > stats["requests"]
            before = stats["memory_bytes"]
            for _ in range(3):
                link.scan(keys, 0)
            assert link.stats()["memory_bytes"] <= before
            link.scan(keys[:10], 0)
            assert link.scan(keys[:10], 0) == hits(stored, keys[:10])
            assert link.stats()["memory_bytes"] <= 8 << 20, "what one large question needed is not kept for ever"
        with peer_of(engine) as peer:
            hashes = [key_hash(key) for key in keys[:200]]
            answers = peer.ask(SCAN, hashes, data_bytes_max=1 << 20)
            assert len(answers) > 5
            assert all(answer.first == before.first + len(before.items) for before, answer in pairwise(answers))
        assert engine.stats()["pending_bytes"] == 0


def test_expiry_is_by_the_links_time():
    with served() as (cell, engine), link_to(engine) as link:
        cell.set(b"key", b"value", (1, 0, 0), expiry_s=100)
        assert link.scan([b"key"], 99) == link.read([b"key"], 99) == [(State.HIT, b"value", (1, 0, 0))]
        assert link.scan([b"key"], 100) == link.read([b"key"], 100) == [MISSED]


def test_keys_that_share_a_hash_are_a_question_for_the_backend():
    with weak_hash(low_mask=0, high_mask=0), served() as (cell, engine), link_to(engine) as link:
        cell.set(b"first", b"one", (1, 0, 0))
        cell.set(b"other", b"two", (2, 0, 0))
        asked = (State.ASK, None, None)
        assert link.scan([b"first", b"other"], 0) == [(State.HIT, b"one", (1, 0, 0)), asked]
        assert link.read([b"first", b"other"], 0) == [(State.HIT, b"one", (1, 0, 0)), asked]
        assert link.scan([b"a key so long that no entry as small can be its" * 9], 0) == [asked]


def test_misses_in_an_overflowed_bucket_are_questions():
    with weak_hash(high_mask=0), served() as (cell, engine), peer_of(engine) as peer:
        for number in range(40):
            cell.set(b"key %d" % number, b"value", (1, 0, number))
        assert cell.stats()["chained"] > 0
        states = {item.state for item in peer.scan([key_hash(b"key %d" % number) for number in range(60)])}
        assert states == {FOUND, ASK}


# ---- the cell moves under the engine


def test_growth_is_followed_without_a_word():
    with served() as (cell, engine), link_to(engine) as link:
        stored, generation = {}, link.generation
        for number in range(5000):
            key = b"key %d" % number
            stored[key] = (b"%d" % number * 20, (number + 1, 0, 0))
            cell.set(key, *stored[key])
            if number % 500 == 0:
                keys = list(stored)[-200:]
                found = link.scan(keys, 0)
                for key, one in zip(keys, found, strict=True):
                    assert one in ((State.HIT, *stored[key]), (State.ASK, None, None))
        assert link.generation > generation
        assert link.stats()["changed_hands"] == 0
        assert 2 <= engine.stats()["renewals"] <= link.generation - generation


def test_another_configuration_is_told_once_and_then_served():
    with served() as (cell, engine), link_to(engine) as link:
        cell.set(b"key", b"value", (1, 0, 0))
        assert link.scan([b"key"], 0)[0][0] == State.HIT
        cell.configure(5)
        assert link.scan([b"key", b"none"], 0) == [(State.REVOKED, None, None)] * 2
        assert (link.config_id, link.stats()["changed_hands"]) == (5, 1)
        assert link.scan([b"key", b"none"], 0) == [(State.HIT, b"value", (1, 0, 0)), MISSED]
        cell.configure(6)
        assert link.read([b"key"], 0) == [(State.REVOKED, None, None)]
        assert link.read([b"key"], 0) == [(State.HIT, b"value", (1, 0, 0))]


def test_a_successor_in_the_same_folder_is_noticed_and_none_of_the_old_values_comes():
    with served() as (cell, engine), link_to(engine) as link, peer_of(engine) as peer:
        cell.set(b"key", b"of the first", (1, 0, 0))
        (found,) = peer.scan([key_hash(b"key")])
        instance = link.instance_id
        assert link.scan([b"key"], 0)[0][0] == State.HIT
        cell.close()
        assert link.scan([b"key"], 0) == [(State.HIT, b"of the first", (1, 0, 0))], "a dead backend's memory is served"
        successor = roomy_cell(Path(cell.folder))
        stale = peer.ask(READ, [Range(DATA, found.size, instance, found.offset, key_hash(b"key")).pack()])
        assert [answer.status for answer in stale] == [CHANGED_HANDS]
        assert stale[0].instance != instance
        assert link.scan([b"key"], 0) == [(State.REVOKED, None, None)]
        assert link.instance_id == stale[0].instance
        assert link.scan([b"key"], 0) == [MISSED]
        successor.set(b"key", b"of the second", (1, 0, 0))
        assert link.scan([b"key"], 0) == [(State.HIT, b"of the second", (1, 0, 0))]
        successor.close()


def test_a_folder_that_is_gone_is_served_from_memory_and_a_revoked_one_is_not():
    """The index is revoked, and nobody has written another: what is left is no answer."""
    with folder() as path:
        cell = roomy_cell(path)
        cell.set(b"key", b"value", (1, 0, 0))
        with Engine(path) as engine, link_to(engine) as link:
            cell.close()
            moved = path.with_name(path.name + "-moved")
            path.rename(moved)
            assert link.scan([b"key"], 0) == [(State.HIT, b"value", (1, 0, 0))]
            moved.rename(path)
            (path / "head").rename(path / "hidden")
            index = next(path.glob("index.*"))
            revoked = bytearray(b"\xff" * index.stat().st_size)
            for at in range(0, len(revoked), 8):
                revoked[at] = 0xFE  # no counter is odd, and the configuration id is nobody's
            file = os.open(index, os.O_WRONLY)
            os.pwrite(file, bytes(revoked), 0)
            os.close(file)
            assert link.scan([b"key"] * 100, 0) == [(State.REVOKED, None, None)] * 100
            assert link.read([b"key"] * 100, 0) == [(State.REVOKED, None, None)] * 100
            assert 1 <= engine.stats()["renewals_failed"] < 20, "it does not look for a successor at every key"
            (path / "head").unlink(missing_ok=True)
            (path / "hidden").rename(path / "head")
            successor = roomy_cell(path)
            successor.set(b"key", b"anew", (1, 0, 0))
            wait_until(lambda: link.scan([b"key"], 0)[0][0] == State.HIT, "the successor to be found")
            successor.close()


@given(st.data())
@settings(PATIENT, max_examples=40)
def test_any_order_of_changes_is_seen_as_a_dictionary_sees_it(data):
    keys = [b"key %d" % number for number in range(12)]
    with served() as (cell, engine), link_to(engine) as link, peer_of(engine) as peer:
        stored, clock = {}, 0
        for _ in range(data.draw(st.integers(1, 25))):
            clock += 1
            key = data.draw(st.sampled_from(keys))
            match data.draw(st.integers(0, 4)):
                case 0 | 1:
                    value = data.draw(st.binary(max_size=40)) * data.draw(st.sampled_from([1, 300]))
                    expiry_s = data.draw(st.sampled_from([0, 0, 10]))
                    assert cell.set(key, value, (clock, 0, 0), expiry_s) == Outcome.APPLIED
                    stored[key] = (value, (clock, 0, 0), expiry_s)
                case 2:
                    assert cell.erase(key, (clock, 0, 0)) == Outcome.APPLIED
                    stored.pop(key, None)
                case 3:
                    asked = data.draw(st.lists(st.sampled_from(keys), max_size=30))
                    now_s, most = data.draw(st.sampled_from([0, 9, 10])), data.draw(st.sampled_from([0, 150, 1 << 20]))
                    alive = {key: one for key, one in stored.items() if not one[2] or now_s < one[2]}
                    for key, (state, value, version), item in zip(
                        asked,
                        link.scan(asked, now_s, most),
                        peer.scan([key_hash(key) for key in asked], now_s, most) if asked else [],
                        strict=True,
                    ):
                        if key not in alive:
                            assert (state, value, version, item.state) == (*MISSED, MISS)
                            continue
                        assert (version, item.version, item.state) == (alive[key][1], alive[key][1], FOUND)
                        assert (state == State.HIT) == (item.raw != b"") == (item.size <= most)
                        assert value == (alive[key][0] if item.raw else None)
                        assert item.raw.endswith(alive[key][0] if item.raw else b"")
                case 4:
                    asked = data.draw(st.lists(st.sampled_from(keys), max_size=30))
                    plain = {key: one[:2] for key, one in stored.items()}
                    assert link.read(asked, 0) == hits(plain, asked)


# ---- plain reads


def test_any_bytes_of_the_index_can_be_read():
    with served() as (cell, engine), peer_of(engine) as peer:
        for number in range(50):
            cell.set(b"key %d" % number, b"value", (1, 0, number))
        view = CellView(cell.folder)
        content = (Path(cell.folder) / f"index.{view.generation}").read_bytes()
        ranges = [(0, len(content)), (8, 3), (len(content) - 8, 8), (len(content) - 8, 1), (256, 300), (16, 7)]
        fetched = peer.read([Range(INDEX, size, view.generation, offset) for offset, size in ranges])
        assert fetched == [Fetched(DONE, content[offset : offset + size]) for offset, size in ranges]


def test_an_entry_of_the_data_is_read_as_the_index_names_it_and_not_otherwise():
    with served() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"key", bytes(range(200)), (1, 0, 0))
        cell.set(b"other", bytes(range(200)), (1, 0, 0))
        name, instance = key_hash(b"key"), peer.welcome.instance
        (found,) = peer.scan([name])

        def read(size=found.size, offset=found.offset, hash=name, generation=instance):
            return peer.read([Range(DATA, size, generation, offset, hash)])[0]

        assert read() == Fetched(DONE, found.raw)
        assert read(size=found.size - 1) == read(size=found.size + 1) == Fetched(CHANGED)
        assert read(offset=found.offset + 64) == read(hash=key_hash(b"other")) == Fetched(CHANGED)
        assert read(hash=key_hash(b"absent")) == Fetched(CHANGED)
        assert read(generation=instance + 1) == Fetched(STALE)
        assert read(offset=found.offset + 4) == Fetched(OUTSIDE)
        cell.set(b"key", bytes(range(200)), (2, 0, 0))
        assert read() == Fetched(CHANGED), "another slot, or another version in it, is another entry"
        cell.erase(b"key", (3, 0, 0))
        assert read() == Fetched(CHANGED)


def test_reading_holes_of_the_data_takes_no_memory():
    with served() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"key", b"value", (1, 0, 0))
        (found,) = peer.scan([key_hash(b"key")])
        data = Path(cell.folder) / "data"
        before = data.stat().st_blocks
        offsets = range(0, peer.welcome.reserved, 4096)
        ranges = [Range(DATA, found.size, peer.welcome.instance, offset, key_hash(b"key")) for offset in offsets]
        for at in range(0, len(ranges), 1000):
            assert {item.status for item in peer.read(ranges[at : at + 1000])} <= {CHANGED, DONE}
        assert data.stat().st_blocks == before


@given(st.data())
@settings(PATIENT, max_examples=60)
def test_no_range_reads_anything_outside(data):
    """Whatever is asked for: bytes of the index where they are, whole entries as they are named, or a refusal."""
    with served() as (cell, engine), peer_of(engine) as peer:
        for number in range(8):
            cell.set(b"key %d" % number, bytes(100 * number), (1, 0, number))
        found = peer.scan([key_hash(b"key %d" % number) for number in range(8)])
        welcome = peer.welcome
        index = (Path(cell.folder) / f"index.{welcome.generation}").read_bytes()
        near = [item.offset for item in found] + [len(index), len(index) - 8, welcome.reserved, welcome.reserved - 8]
        ranges = [
            Range(
                data.draw(st.sampled_from([INDEX, DATA]) | st.integers(0, 2**32 - 1)),
                data.draw(st.sampled_from([0, *FAR, *(item.size for item in found)])),
                data.draw(st.sampled_from([welcome.generation, welcome.instance, 0, 2**64 - 1])),
                data.draw(st.sampled_from([*FARTHER, *near])),
                data.draw(st.sampled_from([key_hash(b"key %d" % number) for number in range(9)])),
            )
            for _ in range(data.draw(st.integers(1, 30)))
        ]
        for asked, got in zip(ranges, peer.read(ranges), strict=True):
            if got.status != DONE:
                assert got.raw == b""
            elif asked.region == INDEX:
                assert asked.generation == welcome.generation
                assert got.raw == index[asked.offset : asked.offset + asked.size]
                assert len(got.raw) == asked.size
            else:
                assert (asked.region, asked.generation) == (DATA, welcome.instance)
                assert got.raw in [item.raw for item in found if (item.offset, item.size) == (asked.offset, asked.size)]


def test_a_stale_generation_of_the_index_is_refused_after_growth():
    with served() as (cell, engine), peer_of(engine) as peer:
        generation = peer.welcome.generation
        assert peer.read([Range(INDEX, 8, generation, 0)])[0].status == DONE
        for number in range(2000):
            cell.set(b"key %d" % number, b"value", (1, 0, number))
        assert peer.read([Range(INDEX, 8, generation, 0)]) == [Fetched(STALE)]
        now = peer.ping()
        assert (now.status, now.items, now.instance) == (ANSWERED, (), peer.welcome.instance)
        assert now.generation > generation
        assert peer.read([Range(INDEX, 8, now.generation, 0)])[0].status == DONE


@pytest.mark.parametrize("expected", ["instance", "config_id"])
def test_a_request_for_another_cell_is_not_answered(expected):
    with served() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"key", b"value", (1, 0, 0))
        for kind, items in [(SCAN, [key_hash(b"key")]), (READ, [Range(INDEX, 8, 1, 0).pack()])]:
            (answer,) = peer.ask(kind, items, **{expected: 12345})
            assert (answer.status, answer.items) == (CHANGED_HANDS, ())
            assert (answer.instance, answer.config_id) == (peer.welcome.instance, peer.welcome.config_id)
        assert len(peer.scan([key_hash(b"key")])) == 1, "the connection goes on"
        assert engine.stats()["renewals"] == 0


def test_requests_in_one_stream_are_answered_in_their_order():
    with served() as (cell, engine), peer_of(engine) as peer:
        cell.set(b"key", bytes(3000), (1, 0, 0))
        kinds = [Random(7).choice([0, SCAN, READ]) for _ in range(400)]
        items = {0: [], SCAN: [key_hash(b"key")], READ: [Range(INDEX, 64, peer.welcome.generation, 0).pack()]}
        stream = b"".join(peer.request(kind, items[kind], data_bytes_max=1 << 20) for kind in kinds)
        draw, at = Random(8), 0
        while at < len(stream):
            count = draw.choice([1, 5, 47, 48, 200, 5000])
            peer.send(stream[at : at + count])
            at += count
        answers = [peer.receive_answer() for _ in kinds]
        assert [answer.tag for answer in answers] == list(range(1, len(kinds) + 1))
        assert [answer.kind for answer in answers] == kinds


def test_an_engine_takes_no_ticket_of_another():
    with served() as (_, first), served() as (_, second), pytest.raises(PermissionError, match="not know the ticket"):
        Link(*second.address, ticket_for(first))
