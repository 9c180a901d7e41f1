"""Values that are received where they are wanted: whole ones or none, however they come, and nowhere else."""

import struct
import threading
from contextlib import closing, contextmanager
from dataclasses import replace
from random import Random

import pytest

from conftest import wait_until
from tailrace.native.cell import SLAB_BYTES, key_hash
from tailrace.native.client import CellClient, replicas_of
from tailrace.native.engine import Engine

from ..cell.places import folder
from ..engine.frames import ANSWERED, FOUND, MISS, SCAN, Answer, Scanned
from ..engine.liar import Liar
from ..engine.served import peer_of, roomy_cell, served, ticket_for
from .cohorts import CONFIG, PATIENCE_S, Gate, cohort
from .test_links import in_background

PREFIX, STRIDE = b"a file's key", 64 << 10
SIZES = [0, 1, 3000, 4095, 4096, 4097, 8191, 20_001, STRIDE - 1, STRIDE, 4100, STRIDE + 1]  # the last does not fit


SHORTER = 20_000  # so that a gate lets some pass, and a part of the next


def key(number):
    return PREFIX + number.to_bytes(4, "little")


def content(number, size, salt=0):
    return Random(1000 * salt + number).randbytes(size)


def big_cohort(count=1):
    return cohort(count, slabs=60, buckets=64)


def fill(cell, sizes=SIZES, clock=1, salt=0):
    for number, size in enumerate(sizes):
        assert cell.set(key(number), content(number, size, salt), (clock, 1, number)) == 0


def parts_of(client, count, room=None, stride=STRIDE, **more):
    """The values as they lie in the room, or None."""
    room = bytearray(count * stride) if room is None else room
    sizes = client.get_parts(PREFIX, 0, count, room, stride, relaxed=True, **{"deadline_s": PATIENCE_S} | more)
    return [None if size < 0 else bytes(room[at * stride :][:size]) for at, size in enumerate(sizes)]


EXPECTED = [content(number, size) if size <= STRIDE else None for number, size in enumerate(SIZES)] + [None]


def test_an_engines_values_lie_where_those_of_memory_would():
    with big_cohort() as made:
        fill(made.cells[0])
        for way in ("memory", "engine"):
            client = made.client(1, 1, way)
            for _ in range(3):
                assert parts_of(client, len(EXPECTED)) == EXPECTED
            backwards = parts_of(client, 12, only=list(reversed(range(12))))
            assert backwards == EXPECTED[:12], "in any order"
            assert parts_of(client, 12, only=[9, 9, 9])[9] == EXPECTED[9], "and the same more than once"


def test_what_lies_between_the_values_is_left_alone():
    with big_cohort() as made:
        fill(made.cells[0])
        room = bytearray(b"\xee" * (len(EXPECTED) * STRIDE))
        found = parts_of(made.client(1, 1, "engine"), len(EXPECTED), room)
        for number, value in enumerate(found):
            if value is not None:
                behind = room[number * STRIDE + len(value) : (number + 1) * STRIDE]
                assert behind == b"\xee" * len(behind), number


def test_many_values_are_asked_for_a_window_at_a_time():
    count = 40
    with folder() as path, closing(roomy_cell(path, config_id=CONFIG)) as cell:
        where = f"unix:{path}/engine.sock"
        fill(cell, [STRIDE] * count)
        client = CellClient(1, 1, 1)
        with Engine(path, where) as engine:
            client.attach_link(0, where, 0, ticket_for(engine), CONFIG, PATIENCE_S)
            before = engine.stats()["requests"]
            assert parts_of(client, count) == [content(number, STRIDE) for number in range(count)]
            assert engine.stats()["requests"] - before == 5, "512 KiB each: as much as a new connection takes at once"


def test_large_values_that_are_written_over_while_they_are_sent_are_never_mixed():
    """They lie in the socket as what they are, memory of the cell, until the client takes them."""
    with big_cohort() as made:
        cell, stop = made.cells[0], threading.Event()
        values = [bytes([number]) * STRIDE for number in range(1, 251)]
        for number in range(4):
            cell.set(key(number), values[0], (1, 1, number))

        def overwrite():
            clock = 2
            while not stop.is_set():
                for number in range(4):
                    cell.set(key(number), values[clock % len(values)], (clock, 1, number))
                clock += 1

        ended = in_background(overwrite)
        client, seen = made.client(1, 1, "engine"), set()

        def reads():
            for value in parts_of(client, 4, deadline_s=0.5):
                assert value is None or value in values
                seen.add(value)
            return len(seen - {None}) > 50

        try:
            wait_until(reads, "fifty of them, each as it was once")
        finally:
            stop.set()
            ended()


def test_a_slow_peer_gets_the_rest_of_a_large_entry_as_it_was_begun():
    """What the kernel does not take at once is kept for it, from the very byte on."""
    with served() as (cell, engine):
        for number in range(8):
            cell.set(key(number), content(number, STRIDE), (1, 1, number))
        hashes = [key_hash(key(number)) for number in range(8)]
        with peer_of(engine, receive_buffer=4096) as peer:
            peer.send(peer.request(SCAN, hashes, data_bytes_max=SLAB_BYTES))
            wait_until(lambda: engine.stats()["pending_bytes"] > STRIDE // 8, "the engine to keep some of it")
            found: list[Scanned] = []
            while len(found) < len(hashes):
                found += peer.receive_answer().items
        for number, item in enumerate(found):
            assert item.raw.endswith(content(number, STRIDE)), number


def test_large_values_of_the_next_backend_are_its_own():
    with big_cohort() as made:
        fill(made.cells[0])
        client = made.client(1, 1, "engine")
        assert parts_of(client, len(EXPECTED)) == EXPECTED
        fill(made.restart(0), salt=1)
        later = [content(number, size, 1) if size <= STRIDE else None for number, size in enumerate(SIZES)] + [None]
        made.attach(client, 0, "engine")
        assert parts_of(client, len(EXPECTED)) == later


# ---- from a server that says what it is told to say


@pytest.fixture(scope="module")
def truth():
    """What a true engine says of some parts: its welcome, and each as it comes with a scan."""
    with served() as (cell, engine), peer_of(engine) as peer:
        fill(cell, SIZES)
        return peer.welcome, dict(zip(map(key_hash, keys()), peer.scan(map(key_hash, keys())), strict=True))


def keys():
    return [key(number) for number in range(len(SIZES))]


def answer_to(truth, asked, items=None, first=0):
    welcome, found = truth
    assert asked.kind == SCAN
    missed = Scanned(MISS)
    right = tuple(found.get(item, missed) for item in asked.items)
    head = (welcome.instance, welcome.config_id, welcome.generation, welcome.buckets, welcome.reserved)
    return Answer(SCAN, ANSWERED, asked.tag, *head, first, right if items is None else items)


@contextmanager
def client_of(truth, says):
    liar = Liar(truth[0].pack(), says)
    client = CellClient(1, 1, 1, attempts_max=3)
    try:
        client.attach_link(0, *liar.address, bytes(32), truth[0].config_id, PATIENCE_S)
        yield client
    finally:
        client.detach(0)
        liar.close()


def test_answers_cut_anywhere_are_the_same(truth):
    cuts = iter([*range(1, 400), *range(4000, 4300), *range(12_000, 12_040)])
    draw = Random(3)

    def in_two(asked):
        whole, cut = answer_to(truth, asked).pack(), next(cuts)
        return [whole[:cut], whole[cut:]]

    def in_many(asked):
        whole = answer_to(truth, asked).pack()
        places = sorted(draw.sample(range(1, len(whole)), 40))
        return [whole[begin:end] for begin, end in zip([0, *places], [*places, len(whole)], strict=True)]

    def one_by_one(asked):
        for number, item in enumerate(answer_to(truth, asked).items):
            yield answer_to(truth, asked, (item,), number).pack()

    for says, times in ((in_two, 739), (in_many, 30), (one_by_one, 3)):
        with client_of(truth, says) as client:
            room = bytearray(6 * STRIDE)
            for _ in range(times):
                assert parts_of(client, 6, room) == EXPECTED[:6]
            assert client.stats()["retries"] == 0
    for says in (in_many, one_by_one):
        with client_of(truth, says) as client:
            assert parts_of(client, len(EXPECTED)) == EXPECTED


def with_a_wrong_byte(item, at):
    raw = bytearray(item.raw)
    raw[at] ^= 1
    return replace(item, raw=bytes(raw))


@pytest.mark.parametrize("at", [0, 5, 20, 31, 33, 47, 48, 49, 5000, 40_000, -2, -1])
def test_a_value_that_was_written_over_on_its_way_is_asked_for_again(truth, at):
    number, times = 9, []

    def wrong_at_first(asked):
        answer = answer_to(truth, asked)
        times.append(len(asked.items))
        if len(times) > 1:
            return [answer.pack()]
        items = tuple(with_a_wrong_byte(item, at) if item.size > STRIDE - 100 else item for item in answer.items)
        return [answer_to(truth, asked, items).pack()]

    with client_of(truth, wrong_at_first) as client:
        room = bytearray(12 * STRIDE)
        assert parts_of(client, 12, room, only=[3, number])[number] == EXPECTED[number]
    assert times == [2, 1], "and only it"


def test_a_value_that_never_proves_itself_is_none(truth):
    def wrong(asked):
        items = tuple(with_a_wrong_byte(item, -1) if item.raw else item for item in answer_to(truth, asked).items)
        return [answer_to(truth, asked, items).pack()]

    with client_of(truth, wrong) as client:
        assert parts_of(client, 12) == [None] * 12
        assert client.stats()["inquorate"] == 12


def test_what_breaks_the_format_in_the_middle_of_a_value_makes_none(truth):
    def broken(asked):
        whole = answer_to(truth, asked).pack()
        more = struct.pack("<I", len(whole) + 8) + whole[4:] + bytes(8)  # bytes behind the items
        yield more[:70_000]
        yield more[70_000:]

    def another_size(asked):
        items = answer_to(truth, asked).items
        yield answer_to(truth, asked, (replace(items[0], size=items[0].size - 8), *items[1:])).pack()

    def ends_early(asked):
        yield answer_to(truth, asked).pack()[:100_000]
        raise EOFError

    for says in (broken, another_size, ends_early):
        with client_of(truth, says) as client:
            room = bytearray(12 * STRIDE)
            found = parts_of(client, 12, room, only=[9, 8])
            assert all(value is None or value == EXPECTED[number] for number, value in enumerate(found))
            assert client.ways() == [None], "the link is broken"
            assert client.troubles()


def test_another_keys_entry_is_not_received_for_ours(truth):
    def foreign(asked):
        other = next(item for item in truth[1].values() if item.size > STRIDE - 10)
        return [answer_to(truth, asked, tuple(other if item.state == FOUND else item for item in items)).pack()
                for items in [answer_to(truth, asked).items]]  # fmt: skip

    with client_of(truth, foreign) as client:
        assert parts_of(client, 12, only=[9]) in ([None] * 12, [None] * 9 + [EXPECTED[9]] + [None] * 2)
        assert parts_of(client, 12, only=[7]) == [None] * 12


# ---- late answers


def test_a_late_value_goes_nowhere():
    """Its beginning came in time. What comes later must not be written to memory that is somebody else's by then."""
    with big_cohort() as made, Gate(made.engine(0)) as gate:
        fill(made.cells[0], [STRIDE] * 8)
        client, expected = made.client(1, 1, [gate]), [content(number, STRIDE) for number in range(8)]
        for let in range(4):
            gate.shut()
            for _ in range(let):
                gate.let_one()
            late = bytearray(8 * STRIDE)
            found = parts_of(client, 8, late, deadline_s=0.05)
            assert all(value in (None, expected[number]) for number, value in enumerate(found))
            late[:] = b"\xaa" * len(late)
            gate.open()
            many = parts_of(client, 16 << let)  # for which the client needs more memory than it had
            assert many[:8] == expected
            assert late == b"\xaa" * len(late)
            gate.shut()
            gate.open()


def test_of_two_replicas_that_bring_a_value_one_is_taken_whole():
    """The first falls silent in the middle of it. The other has a newer one; then the first goes on."""
    with big_cohort(2) as made:
        for clock, cell in enumerate(made.cells, start=1):
            fill(cell, [SHORTER] * 8, clock, salt=clock)
        gates = [Gate(made.engine(number)) for number in range(2)]
        client = made.client(2, 1, gates, hedge_s=0.001)
        versions = [[content(number, SHORTER, salt) for number in range(8)] for salt in (1, 2)]
        first = replicas_of(key(0), 2, 2)[0]
        for turn in range(60):
            for gate in gates:
                gate.shut()
            gates[first].let_one()
            room = bytearray(8 * STRIDE)
            result = in_background(lambda room=room: parts_of(client, 8, room))
            wait_until(lambda: all(gate.asked_bytes for gate in gates), "both to be asked")
            for gate in gates if turn % 2 else reversed(gates):
                gate.open()
            for number, value in enumerate(result()):
                assert value in (versions[0][number], versions[1][number])
            room[:] = b"\xaa" * len(room)
            for _ in range(2):
                assert None not in parts_of(client, 8)
            assert room == b"\xaa" * len(room)
        for gate in gates:
            gate.close()


# ---- a cell that is written meanwhile


def test_what_is_written_over_while_it_is_sent_is_never_delivered():
    """Entries are sent out of memory that a writer uses again at once. Every value tells whose it is, in every word."""
    sizes, keys_count = [9000, 20_000, STRIDE], 24

    def value_of(number, clock):
        size = sizes[clock % 3]
        return (struct.pack("<II", number, clock) * (size // 8 + 1))[:size]

    with folder() as path:
        cell = roomy_cell(path, capacity_bytes=8 * SLAB_BYTES, reserve_bytes=16 * SLAB_BYTES, config_id=CONFIG)
        with cohort(0) as made:
            made.paths, made.cells = [path], [cell]
            clients = [made.client(1, 1, "engine") for _ in range(2)]
            done, clocks = threading.Event(), [0] * keys_count

            def write():
                draw, clock = Random(1), 0
                while not done.is_set():
                    clock += 1
                    number = draw.randrange(keys_count)
                    cell.set(key(number), value_of(number, clock), (clock, 1, 0))
                    clocks[number] = clock

            writer = threading.Thread(target=write, daemon=True)
            writer.start()
            try:
                wait_until(lambda: sum(map(bool, clocks)) == keys_count, "every key to be written")
                hits = 0
                for turn in range(400):
                    for number, value in enumerate(parts_of(clients[turn % 2], keys_count)):
                        if value is None:
                            continue
                        seen, clock = struct.unpack_from("<II", value)
                        assert seen == number
                        assert value == value_of(number, clock)
                        hits += 1
                assert hits > 400
            finally:
                done.set()
                writer.join()


@pytest.mark.parametrize("receive_buffer", [2304, 4096, 30_000, 100_000, 300_000, None])
def test_a_slow_reader_gets_every_byte_right(receive_buffer):
    """What the kernel does not take is kept, from any byte of an entry on."""
    sizes = [STRIDE, 9001, 100, 33_333, 8192, 8193, 1, STRIDE - 5, 70_001, 20_000]
    with served(buckets=256) as (cell, engine), peer_of(engine, receive_buffer=receive_buffer) as peer:
        fill(cell, sizes)
        hashes = [key_hash(key(number)) for number in range(len(sizes))]
        peer.send(peer.request(SCAN, hashes * 60, data_bytes_max=1 << 20))
        wait_until(lambda: engine.stats()["pending_bytes"] > 0, "answers to wait")
        answered = 0
        while answered < 60 * len(sizes):
            answer = peer.receive_answer()
            for item in answer.items:
                number = answered % len(sizes)
                assert item.raw.endswith(content(number, sizes[number])), answered
                assert item.size == len(item.raw)
                answered += 1
        wait_until(lambda: engine.stats()["pending_bytes"] == 0, "nothing to wait any more")
