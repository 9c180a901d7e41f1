"""The head of a segment in one look: what it gives is what the files have, and of what it is unsure it says nothing."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import wait_until
from tailrace.files.chunks import chunk_key
from tailrace.files.lengths import SegmentLengths
from tailrace.native import ENTRY_BYTES, Records
from tailrace.native.client import CellClient, Follower
from tailrace.native.engine import TICKET_BYTES, Engine
from tailrace.streams.segments import HEADER_BYTES, Segment

from .segment_in_a_cell import BASE, DATA, DATA_CHUNK, INDEX, INDEX_CHUNK, LENGTHS, SEGMENT, Shard, versions


@pytest.fixture
def shard(tmp_path: Path) -> Iterator[Shard]:
    made = Shard(tmp_path)
    yield made
    made.cell.close(remove=True)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    flushes=st.lists(st.lists(st.integers(0, 3000), min_size=1, max_size=60), min_size=1, max_size=6),
    bytes_max=st.integers(3001, 20_000),
    ahead_bytes=st.sampled_from([0, 50_000]),
    is_told=st.booleans(),
)
def test_every_message_comes_once_and_whole(
    tmp_path_factory: pytest.TempPathFactory,
    flushes: list[list[int]],
    bytes_max: int,
    ahead_bytes: int,
    is_told: bool,
) -> None:
    """`is_told`: whoever looks was woken by what has changed."""
    shard = Shard(tmp_path_factory.mktemp("cell"))
    shard.follower.ahead_bytes = ahead_bytes
    try:
        entry = 0
        for sizes in flushes:
            shard.append(sizes)
            if is_told:
                shard.overhear()
            while (batch := shard.look(entry, bytes_max)) is not None:
                assert batch.count > 0
                assert batch.end - batch.start <= bytes_max
                for message in batch.messages():
                    value = message.value
                    assert value == bytes([entry % 251]) * len(value or b"")
                    entry += 1
                assert shard.follower.at_end == (entry == shard.messages)
            assert entry == shard.messages
            assert shard.follower.at_end
    finally:
        shard.cell.close(remove=True)


def test_what_is_on_disk_alone_leaves_it_unsure(shard: Shard) -> None:
    shard.append([10, 20])
    shard.tell(replace(shard.lengths(), index_durable=len(shard.index) + ENTRY_BYTES))
    assert shard.look(0) is not None
    assert not shard.follower.at_end
    assert shard.look(2) is None
    assert not shard.follower.at_end


@pytest.mark.parametrize("ahead_bytes", [0, 1 << 20])
@pytest.mark.parametrize("key", [chunk_key(INDEX, 0), chunk_key(DATA, 1), LENGTHS])
def test_what_is_not_there_or_too_short_is_left_to_others(shard: Shard, key: bytes, ahead_bytes: int) -> None:
    shard.append([3000, 3000])
    shard.follower.ahead_bytes = ahead_bytes
    whole = shard.client.get(key)
    assert whole is not None
    shard.set(key, whole[:-1])
    assert shard.look(0) is None
    shard.cell.erase(key, (next(versions), 1, 0))
    assert shard.look(0) is None
    assert not shard.follower.at_end
    shard.set(key, whole)
    assert shard.look(0) is not None


def test_a_large_message_and_a_place_beyond_the_end_are_left_to_others(shard: Shard) -> None:
    shard.append([100, 5000])
    assert shard.look(0, bytes_max=99) is None
    assert shard.look(1, bytes_max=4999) is None
    assert shard.follower.look(shard.client, shard.client, 99, BASE, 1000) is None
    assert not shard.follower.at_end
    assert shard.follower.look(shard.client, shard.client, 0, BASE - 1, 1000) is None
    assert shard.follower.look(shard.client, shard.client, 0, 2**64 - 1, 1000) is None


@pytest.mark.parametrize(
    "other",
    [
        SegmentLengths(Segment(78, BASE, 240), DATA_CHUNK, INDEX_CHUNK, 9999, 9999, 9999, 9999),
        SegmentLengths(SEGMENT, DATA_CHUNK, INDEX_CHUNK * 2, 9999, 9999, 9999, 9999),
        SegmentLengths(SEGMENT, DATA_CHUNK * 2, INDEX_CHUNK, 9999, 9999, 9999, 9999),
    ],
)
def test_another_segment_or_other_chunks_are_none_of_its_business(shard: Shard, other: SegmentLengths) -> None:
    shard.append([10])
    assert shard.look(0) is not None
    shard.tell(other)
    assert shard.look(0) is None
    assert not shard.follower.at_end


def test_a_segment_that_has_a_successor_is_followed_to_its_end_and_never_said_to_be_over(shard: Shard) -> None:
    shard.append([10, 20, 30])
    later = Segment(99, BASE + 60, SEGMENT.index_base_after(3))
    shard.tell(shard.lengths(), SegmentLengths(later, DATA_CHUNK, INDEX_CHUNK, 9999, 9999, 9999, 9999))
    batch = shard.look(0)
    assert batch is not None
    assert batch.count == 3
    assert not shard.follower.at_end
    assert shard.look(3) is None
    assert not shard.follower.at_end


@pytest.mark.parametrize("entries", [0, 1, 2])
def test_no_entry_is_taken_beyond_where_the_successor_begins(shard: Shard, entries: int) -> None:
    """The lengths of a segment may say more: what lies behind the cut was never acknowledged."""
    shard.append([10, 20, 30])
    later = Segment(99, BASE + 60, SEGMENT.index_base_after(entries) if entries else SEGMENT.index_base)
    shard.tell(shard.lengths(), SegmentLengths(later, DATA_CHUNK, INDEX_CHUNK, 9999, 9999, 9999, 9999))
    batch = shard.look(0)
    assert (0 if batch is None else batch.count) == entries
    assert not shard.follower.at_end


def test_no_entry_is_taken_beyond_where_a_segment_is_known_to_end(shard: Shard) -> None:
    shard.append([10, 20, 30])
    shard.follower.entries_max = 2
    batch = shard.look(0)
    assert batch is not None
    assert batch.count == 2
    assert not shard.follower.at_end
    assert shard.look(2) is None
    assert not shard.follower.at_end


def test_after_the_first_look_it_asks_for_as_many_entries_as_fit(shard: Shard) -> None:
    shard.append([1000] * 100)
    sizes = []
    entry = 0
    while (batch := shard.look(entry, bytes_max=10_500)) is not None:
        sizes.append(batch.count)
        entry += batch.count
    assert sizes == [10] * 10
    assert shard.follower.at_end


def test_where_questions_are_dear_entries_are_asked_for_once_for_several_batches(shard: Shard) -> None:
    shard.append([100] * 3000)
    shard.follower.ahead_bytes = 20_000
    assert shard.look(0, 4000) is not None  # from here on it knows how large messages are
    batch, entry = shard.look(1500, 4000), 1500
    for number in range(-(-len(shard.index) // INDEX_CHUNK)):
        shard.cell.erase(chunk_key(INDEX, number), (next(versions), 1, 0))
    batches = 0
    while batch is not None:
        assert [message.value for message in batch.messages()] == [
            bytes([number % 251]) * 100 for number in range(entry, entry + batch.count)
        ]
        assert not shard.follower.at_end
        entry, batches = entry + batch.count, batches + 1
        batch = shard.look(entry, 4000)
    assert batches >= 4
    assert entry < 1500 + 250, "what it did not read before, it cannot have"


def test_who_knows_of_more_than_a_batch_does_not_ask_how_much_there_is(shard: Shard) -> None:
    shard.append([1000] * 40)
    shard.follower.ahead_bytes = 1 << 20

    def asks_for_messages_alone() -> bool:
        assert shard.look(0, 4000) is not None
        before = shard.client.stats()["hits"]
        assert shard.look(4, 4000) is not None
        return shard.client.stats()["hits"] - before == 1  # a chunk of 4 KiB: another one came before

    wait_until(asks_for_messages_alone, "two looks within a moment")


@pytest.mark.parametrize("ahead_bytes", [0, 1 << 20])
def test_where_questions_are_dear_what_came_along_is_not_asked_for_again(shard: Shard, ahead_bytes: int) -> None:
    shard.append([1000] * 40)
    shard.follower.ahead_bytes = ahead_bytes
    assert shard.look(0, 3 * DATA_CHUNK) is not None
    shard.cell.erase(chunk_key(DATA, 2), (next(versions), 1, 0))  # in which the first batch has ended
    batch = shard.look(12, 3 * DATA_CHUNK)
    assert (batch is not None) == bool(ahead_bytes)
    if batch is not None:
        assert [message.value for message in batch.messages()] == [bytes([number]) * 1000 for number in range(12, 24)]
    assert shard.look(11, 3 * DATA_CHUNK) is None, "only the next batch has it"


def test_a_chunk_that_was_not_whole_is_asked_for_again(shard: Shard) -> None:
    shard.append([1000] * 6)
    shard.follower.ahead_bytes = 1 << 20
    assert shard.look(0, 2 * DATA_CHUNK) is not None
    shard.append([1000] * 6)
    batch = shard.look(6, 2 * DATA_CHUNK)
    assert batch is not None
    assert [message.value for message in batch.messages()] == [bytes([number]) * 1000 for number in range(6, 12)]


def test_of_what_came_along_only_what_was_told_of_is_kept(shard: Shard) -> None:
    shard.append([1000] * 12)
    shard.follower.ahead_bytes = 1 << 20
    told, data = shard.lengths(), shard.data
    shard.tell(replace(told, data_cached=6000, index_cached=HEADER_BYTES + 6 * ENTRY_BYTES))
    shard.set(chunk_key(DATA, 1), data[DATA_CHUNK:6000] + b"?" * (2 * DATA_CHUNK - 6000))
    batch = shard.look(0, 3 * DATA_CHUNK)
    assert batch is not None
    assert batch.count == 6
    shard.put(DATA, data, DATA_CHUNK)
    shard.tell(told)
    batch = shard.look(6, 3 * DATA_CHUNK)
    assert batch is not None
    assert [message.value for message in batch.messages()] == [bytes([number]) * 1000 for number in range(6, 12)]


def test_where_questions_are_dear_a_batch_has_whole_chunks_but_a_message_may_have_more(shard: Shard) -> None:
    shard.append([1000] * 20 + [DATA_CHUNK + 500] * 2)
    shard.follower.ahead_bytes = 1 << 20
    batch = shard.look(0, 2 * DATA_CHUNK + 3000)
    assert batch is not None
    assert batch.count == 2 * DATA_CHUNK // 1000
    for entry in (20, 21):
        batch = shard.look(entry, DATA_CHUNK + 1000)
        assert batch is not None
        assert batch.count == 1


def test_an_entry_that_is_missing_further_ahead_is_no_reason_to_do_without_the_next_ones(shard: Shard) -> None:
    shard.append([100] * 200)
    shard.follower.ahead_bytes = 1 << 20
    shard.cell.erase(chunk_key(INDEX, 3), (next(versions), 1, 0))
    assert shard.look(0, 1000) is None  # at first it asks for all of them, as long as it does not know …
    shard.follower.ahead_bytes = 0
    shard.append([100])
    shard.cell.erase(chunk_key(INDEX, 3), (next(versions), 1, 0))
    assert shard.look(190, 1000) is not None  # … how large they are
    shard.follower.ahead_bytes = 1 << 20
    batch = shard.look(0, 1000)
    assert batch is not None
    assert batch.count == 10


def test_lengths_that_are_not_new_do_not_say_that_there_is_no_more(shard: Shard) -> None:
    """They told of exactly as much as the next batch has; more may have been told since."""
    shard.append([1000] * 10)
    shard.follower.ahead_bytes = 1 << 20
    assert shard.look(0, 4000) is not None
    shard.append([1000] * 10)
    entry = 4
    while (batch := shard.look(entry, 4000)) is not None:
        entry += batch.count
        assert shard.follower.at_end == (entry == 20)
    assert entry == 20


def test_a_place_before_the_entries_that_it_has_is_looked_for_again(shard: Shard) -> None:
    shard.append([100] * 200)
    shard.follower.ahead_bytes = 1 << 20
    for entry in (50, 120, 3, 199, 0):
        batch = shard.look(entry, 1000)
        assert batch is not None
        assert next(iter(batch.messages())).value == bytes([entry]) * 100


@pytest.mark.parametrize(("ahead_bytes", "asked"), [(0, 1), (1 << 20, 2)])
def test_where_questions_are_dear_the_end_is_one_question(shard: Shard, ahead_bytes: int, asked: int) -> None:
    shard.append([100] * 20)
    shard.follower.ahead_bytes = ahead_bytes
    shard.cell.erase(chunk_key(INDEX, 0), (next(versions), 1, 0))
    before = shard.client.stats()["hits"]
    assert shard.look(10) is None
    assert shard.client.stats()["hits"] - before == asked, "the lengths, and messages whose entries are not known yet"


def test_what_was_offered_to_an_earlier_question_is_left_alone(tmp_path: Path) -> None:
    """Its owner may be anybody by then. Only large values are received where they are wanted, and only by a link."""
    shard = Shard(tmp_path, index_chunk=4096)
    engine = Engine(str(tmp_path))
    try:
        ticket = secrets.token_bytes(TICKET_BYTES)
        engine.admit(ticket, 30.0)
        client = CellClient(1, 1, 1)
        client.attach_link(0, *engine.address, ticket, 7, 30.0)
        shard.append([10] * 200)
        assert len(shard.index) > 4096
        earlier = bytearray(16 * 4096)  # as many as there is ever room for
        assert client.get_parts(INDEX, 0, 16, earlier, 4096, relaxed=True)[:2] == [4096, len(shard.index) - 4096]
        earlier[:] = b"?" * len(earlier)
        shard.follower.ahead_bytes = 1 << 20
        found = shard.follower.look(client, client, 150, shard.ends[150], 1 << 20)
        assert found is not None
        assert Records("s", 0, shard.ends[150], *found).count == 50
        assert earlier == b"?" * len(earlier)
    finally:
        engine.close()
        shard.cell.close(remove=True)


def test_the_end_that_does_not_fit_a_batch_is_no_single_question(shard: Shard) -> None:
    shard.append([1000] * 20)
    shard.follower.ahead_bytes = 1 << 20
    shard.cell.erase(chunk_key(INDEX, 0), (next(versions), 1, 0))
    before = shard.client.stats()["hits"]
    assert shard.look(10, 4000) is None
    assert shard.client.stats()["hits"] - before == 1, "the lengths alone"


def test_messages_whose_entries_say_less_than_the_lengths_are_cut(shard: Shard) -> None:
    """The lengths of the index are behind those of the data: what lies beyond belongs to messages that come later."""
    shard.append([100] * 20)
    shard.follower.ahead_bytes = 1 << 20
    told = shard.lengths()
    shard.tell(replace(told, index_cached=HEADER_BYTES + 12 * ENTRY_BYTES))
    batch = shard.look(10)
    assert batch is not None
    assert (batch.count, batch.end) == (2, shard.ends[12])
    shard.tell(told)
    batch = shard.look(12)
    assert batch is not None
    assert (batch.count, batch.end) == (8, shard.ends[20])


def test_messages_whose_entries_say_more_than_the_lengths_are_asked_for(shard: Shard) -> None:
    shard.append([100] * 20)
    shard.follower.ahead_bytes = 1 << 20
    shard.tell(replace(shard.lengths(), data_cached=1150))
    batch = shard.look(10)
    assert batch is not None
    assert (batch.count, batch.end) == (10, shard.ends[20])


def test_lengths_that_were_overheard_are_not_asked_for(shard: Shard) -> None:
    shard.append([10, 20])
    shard.follower.ahead_bytes = 1 << 20
    shard.overhear()
    shard.cell.erase(LENGTHS, (next(versions), 1, 0))
    batch = shard.look(0)
    assert batch is not None
    assert batch.count == 2
    assert shard.follower.at_end
    assert shard.look(0) is None, "only the next look has heard them"


@pytest.mark.parametrize("wrong", [b"", b"?" * 92, b"?" * 5000])
def test_lengths_that_were_overheard_and_are_none_say_nothing(shard: Shard, wrong: bytes) -> None:
    shard.append([10, 20])
    shard.follower.overhear(wrong)
    batch = shard.look(0)
    assert (batch is None) == (len(wrong) <= 284), "what cannot be lengths at all is not listened to"
    assert shard.look(0) is not None


def test_silence_makes_it_unsure(shard: Shard) -> None:
    shard.append([10])
    assert shard.look(0) is not None
    assert shard.look(0, silent_s=0.0) is None
    assert not shard.follower.at_end
    shard.tell(shard.lengths())
    assert shard.look(1) is None
    assert shard.follower.at_end


def test_damaged_lengths_say_nothing(shard: Shard) -> None:
    shard.append([10])
    raw = shard.client.get(LENGTHS)
    assert raw is not None
    for at in range(len(raw)):
        if at in (6, 7):
            continue  # kept free
        shard.set(LENGTHS, raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert shard.look(0) is None
    shard.set(LENGTHS, raw * 2)
    assert shard.look(0) is None


def test_chunks_of_no_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="no bytes"):
        Follower(LENGTHS, (1, 2, 3), INDEX, 0, DATA, 4096, HEADER_BYTES, bytearray)


def test_what_is_held_is_looked_at_until_its_time_is_over(shard: Shard) -> None:
    shard.append([10, 20])
    assert shard.follower.glance(0, BASE, 1 << 20) is None  # nothing is held yet
    assert not shard.follower.holds
    shard.follower.hold(shard.client, shard.client, 60.0, 1.0)
    found = shard.follower.glance(0, BASE, 1 << 20)
    assert found is not None
    assert [len(part) for part in found] == [2 * ENTRY_BYTES, 30]
    assert shard.follower.holds
    assert shard.follower.at_end
    shard.follower.hold(shard.client, shard.client, 0.0, 1.0)
    assert shard.follower.glance(0, BASE, 1 << 20) is None
    assert not shard.follower.holds
    assert not shard.follower.at_end


def test_clients_in_trouble_are_not_held_any_longer(shard: Shard) -> None:
    shard.append([10])
    shard.follower.hold(shard.client, shard.client, 60.0, 1.0)
    shard.cell.close(remove=True)  # its memory is revoked
    shard.follower.glance(0, BASE, 1 << 20)
    assert not shard.follower.holds
    shard.follower.let_go()
    assert shard.follower.glance(0, BASE, 1 << 20) is None
