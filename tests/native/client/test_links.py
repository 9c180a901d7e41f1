"""A client and engines: what comes along and what is read after, who is waited for and how long."""

import socket
import struct
import threading
from random import Random

import pytest

from conftest import wait_until
from tailrace.native.client import TROUBLE_CONFIG, TROUBLE_LINK, replicas_of
from tailrace.native.engine import TICKET_BYTES

from .cohorts import CONFIG, PATIENCE_S, Gate, cohort


def in_background(call):
    """A call in a thread; its result when it is asked for."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()), daemon=True)
    thread.start()

    def result():
        thread.join(60)
        assert results, "it did not end"
        return results[0]

    return result


def fill(made, keys, size=10):
    for cell in made.cells:
        for number, key in enumerate(keys):
            assert cell.set(key, key * size, (number + 1, 1, 0)) == 0


def test_small_values_come_along_and_large_ones_are_read_after():
    with cohort(3) as made:
        for cell in made.cells:
            cell.set(b"small", bytes(100), (1, 1, 0))
            cell.set(b"large", bytes(1000), (1, 1, 0))
        client = made.client(3, 2, "engine", data_bytes_max=512, hedge_s=3600)
        assert client.get_many([b"small", b"large"], 0) == [bytes(100), bytes(1000)]
        stats = client.stats()
        assert (stats["scan_reads"], stats["two_step_reads"], stats["hits"]) == (1, 1, 2)

        def total(name):
            return sum(engine.stats()[name] for engine in made.engines.values())

        # Who brings the bytes is one replica, for either; which the engines' threads say a moment after their answers.
        wait_until(lambda: (total("scanned"), total("sent"), total("read")) == (6, 1, 1), "the engines' counts")


def test_without_room_for_data_everything_takes_two_steps():
    with cohort(3) as made:
        keys = [b"key %d" % number for number in range(50)]
        fill(made, keys)
        client = made.client(3, 2, "engine", data_bytes_max=0)
        assert client.get_many(keys, 0) == [key * 10 for key in keys]
        assert client.stats()["two_step_reads"] == 50
        assert client.stats()["scan_reads"] == 0


def test_a_batch_asks_each_engine_once_or_twice():
    """Once for what comes with bytes, once for the index alone; not once a key."""
    with cohort(3) as made:
        keys = [b"key %d" % number for number in range(200)]
        fill(made, keys)
        client = made.client(3, 2, "engine", hedge_s=3600)
        assert client.get_many(keys, 0) == [key * 10 for key in keys]
        assert all(engine.stats()["requests"] <= 2 for engine in made.engines.values())


# ---- engines that fail


def test_a_closed_engine_is_trouble_and_the_others_answer():
    with cohort(3) as made:
        keys = [b"key %d" % number for number in range(30)]
        fill(made, keys)
        client = made.client(3, 2, "engine")
        made.engines[1].close()
        for _ in range(3):
            assert client.get_many(keys, 0) == [key * 10 for key in keys]
        assert client.troubles() == {1: TROUBLE_LINK}
        assert client.ways() == ["engine", None, "engine"]
        made.engines[2].close()
        assert client.get_many(keys, 0) == [None] * 30
        assert client.unreachable == list(range(30))
        assert client.get_many(keys, 0, relaxed=True) == [key * 10 for key in keys], "one is left"


@pytest.mark.parametrize("relaxed", [False, True])
@pytest.mark.parametrize("data_bytes_max", [0, 16384])
@pytest.mark.parametrize("dying", [0, 1, 2])
def test_an_engine_that_dies_while_it_is_asked(dying, data_bytes_max, relaxed):
    with cohort(3) as made, Gate(made.engine(dying)) as gate:
        keys = [b"key %d" % number for number in range(30)]
        fill(made, keys)
        ways = ["engine"] * 3
        ways[dying] = gate
        # It would wait as long as a test lasts for the one that brings the bytes: only its death helps.
        client = made.client(3, 2, ways, data_bytes_max=data_bytes_max, hedge_s=3600)
        gate.shut()
        found = in_background(lambda: client.get_many(keys, 0, relaxed=relaxed, deadline_s=PATIENCE_S))
        wait_until(lambda: gate.asked_bytes, "the client to ask")
        gate.cut()
        assert found() == [key * 10 for key in keys]
        assert client.troubles() == {dying: TROUBLE_LINK}


def test_one_that_dies_between_the_index_and_the_bytes():
    with cohort(3) as made:
        gates = [Gate(made.engine(number)) for number in range(3)]
        fill(made, [b"k"])
        client = made.client(3, 2, gates, data_bytes_max=0, hedge_s=3600)
        for gate in gates:
            gate.shut()
        found = in_background(lambda: client.get_many([b"k"], 0, deadline_s=PATIENCE_S))
        wait_until(lambda: all(gate.asked_bytes for gate in gates), "the client to ask for index entries")
        asked = [gate.asked_bytes for gate in gates]
        for gate in gates:
            gate.let_one()
        wait_until(lambda: [gate.asked_bytes for gate in gates] != asked, "the client to ask for the bytes")
        [dying] = [number for number, gate in enumerate(gates) if gate.asked_bytes > asked[number]]
        for gate in gates:
            gate.cut() if gate is gates[dying] else gate.open()
        assert found() == [b"k" * 10]
        assert client.troubles() == {dying: TROUBLE_LINK}
        assert client.stats()["retries"] == 1
        for gate in gates:
            gate.close()


def test_a_silent_engine_is_not_waited_for_beyond_the_deadline():
    with cohort(1) as made, Gate(made.engine(0)) as gate:
        fill(made, [b"k"])
        client = made.client(1, 1, [gate])
        gate.shut()
        for _ in range(3):
            assert client.get_many([b"k"], 0, deadline_s=0.01) == [None]
            assert client.unreachable == [0]
            assert client.get_into(b"k", bytearray(99), 0, deadline_s=0.0) is None
        assert client.ways() == ["engine"], "slow is not broken"
        gate.open()
        assert client.get_many([b"k"], 0, deadline_s=60) == [b"k" * 10], "late answers are not taken for new ones"
        assert client.stats()["unreachable"] == 6


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_two_engines_are_enough(silent):
    """The silent one may be who should bring the bytes: then they are read from another, after the hedge's time."""
    with cohort(3) as made, Gate(made.engine(silent)) as gate:
        keys = [b"key %d" % number for number in range(30)]
        fill(made, keys)
        ways = ["engine"] * 3
        ways[silent] = gate
        client = made.client(3, 2, ways, hedge_s=0.001)
        gate.shut()
        for _ in range(3):
            assert client.get_many(keys, 0, deadline_s=PATIENCE_S) == [key * 10 for key in keys]
        assert client.stats()["hedges"] > 0
        assert client.troubles() == {}


def test_a_relaxed_read_asks_another_after_the_hedges_time():
    with cohort(3) as made:
        fill(made, [b"k"])
        gates = [Gate(made.engine(number)) for number in range(3)]
        client = made.client(3, 2, gates, hedge_s=0.001)
        order = replicas_of(b"k", 3, 3)
        gates[order[0]].shut()
        gates[order[1]].shut()
        assert client.get_many([b"k"], 0, relaxed=True, deadline_s=PATIENCE_S) == [b"k" * 10]
        assert client.stats()["hedges"] >= 1
        for gate in gates:
            gate.close()


def test_a_relaxed_read_that_is_answered_asks_nobody_else():
    with cohort(3) as made:
        fill(made, [b"k"])
        client = made.client(3, 2, "engine", hedge_s=3600)
        assert client.get_many([b"k"], 0, relaxed=True) == [b"k" * 10]
        scanned = [0, 0, 1]  # which the engine's thread says a moment after its answer
        wait_until(
            lambda: sorted(engine.stats()["scanned"] for engine in made.engines.values()) == scanned,
            "one engine's word",
        )
        assert client.stats()["hedges"] == 0


def test_a_value_is_not_lost_when_the_last_engines_hang_up_after_answering():
    with cohort(3) as made:
        keys = [b"key %d" % number for number in range(100)]
        fill(made, keys, size=50)
        client = made.client(3, 2, "engine")
        assert client.get_many(keys, 0) == [key * 50 for key in keys]
        for number in (0, 1, 2):
            made.engines[number].close()
        assert client.get_many(keys, 0) == [None] * 100
        assert client.troubles() == dict.fromkeys(range(3), TROUBLE_LINK)


# ---- attaching


def test_something_that_listens_and_never_answers_is_given_up():
    with cohort(1) as made, socket.create_server(("127.0.0.1", 0)) as deaf:
        client = made.client(1, 1, [None])
        host, port = deaf.getsockname()
        with pytest.raises(OSError, match="timed out"):
            client.attach_link(0, host, port, bytes(TICKET_BYTES), CONFIG, 0.05)
        assert client.ways() == [None]
    with pytest.raises(ConnectionRefusedError):
        client.attach_link(0, host, port, bytes(TICKET_BYTES), CONFIG, 5.0)


def test_something_that_is_no_engine_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as other, cohort(1) as made:
        client = made.client(1, 1, [None])

        def answer():
            peer, _ = other.accept()
            with peer:
                peer.recv(48)
                peer.sendall(b"HTTP/1.1 400 Bad Request\r\n" + bytes(100))

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = other.getsockname()
        with pytest.raises(OSError, match="no engine"):
            client.attach_link(0, host, port, bytes(TICKET_BYTES), CONFIG, 60.0)
        thread.join()


def test_a_wrong_ticket_is_refused_and_a_used_one_too():
    with cohort(1) as made:
        client = made.client(1, 1, [None])
        host, port = made.engine(0).address
        with pytest.raises(PermissionError, match="ticket"):
            client.attach_link(0, host, port, bytes(TICKET_BYTES), CONFIG, 60.0)
        ticket = made.ticket(0)
        client.attach_link(0, host, port, ticket, CONFIG, 60.0)
        with pytest.raises(PermissionError, match="ticket"):
            made.client(1, 1, [None]).attach_link(0, host, port, ticket, CONFIG, 60.0)


# ---- cells that change behind their engines


def test_a_restart_behind_an_engine():
    with cohort(3) as made:
        fill(made, [b"k"])
        client = made.client(3, 2, "engine")
        assert client.get_many([b"k"], 0) == [b"k" * 10]
        made.restart(0)
        for _ in range(3):
            assert client.get_many([b"k"], 0, deadline_s=60) == [b"k" * 10]
        made.restart(1)
        for _ in range(3):
            assert client.get_many([b"k"], 0, deadline_s=60) == [None], "only one has it now"
        for number in (0, 1):
            made.cells[number].set(b"k", b"anew", (9, 1, 0))
        wait_until(lambda: client.get_many([b"k"], 0, deadline_s=60) == [b"anew"], "the engines to see the new cells")
        assert client.instance_of(0) == made.cells[0].instance_id


def test_another_configuration_behind_an_engine_is_trouble():
    with cohort(3) as made:
        fill(made, [b"k"])
        client = made.client(3, 2, "engine")
        made.cells[2].configure(CONFIG + 1)
        wait_until(
            lambda: client.get_many([b"k"], 0) == [b"k" * 10] and client.ways()[2] is None, "the change to be noticed"
        )
        assert client.troubles()[2] & TROUBLE_CONFIG
        made.attach(client, 2, "engine", CONFIG + 1)
        assert client.ways() == ["engine"] * 3
        assert client.get_many([b"k"], 0) == [b"k" * 10]
        assert client.troubles() == {}


# ---- everything at once


def test_answers_that_come_late_and_out_of_step_never_make_a_wrong_value():
    """Gates open and shut at random while versions race on the cells. Values say themselves what they are."""
    says = struct.Struct("<QI")

    def described(key, clock, size):
        return says.pack(clock, size) + key + bytes([clock % 251]) * size

    def is_true(key, answer):
        value, version = answer
        clock, size = says.unpack_from(value)
        return version == (clock, 1, 0) and value == described(key, clock, size)

    draw, keys = Random(5), [b"key %d" % number for number in range(24)]
    with cohort(3, slabs=60) as made:
        gates = [Gate(made.engine(number)) for number in range(3)]
        clients = [made.client(3, 2, gates, hedge_s=0.0005, data_bytes_max=size) for size in (0, 500, 1 << 20)]
        clock, hits = 0, 0
        for turn in range(150):
            for key in draw.sample(keys, 6):
                clock += 1
                for cell in draw.sample(made.cells, draw.choice([1, 2, 3, 3])):
                    cell.set(key, described(key, clock, draw.choice([0, 100, 3000, 30_000])), (clock, 1, 0))
            for gate in gates:
                gate.open() if draw.random() < 0.7 else gate.shut()
            asked = draw.choices(keys, k=draw.choice([1, 10, 40]))
            client = clients[turn % 3]
            relaxed = draw.random() < 0.3
            found = client.get_many(asked, 0, relaxed=relaxed, deadline_s=0.02, versions=True)
            for key, answer in zip(asked, found, strict=True):
                assert answer is None or is_true(key, answer)
                hits += answer is not None
        for gate in gates:
            gate.close()
        assert hits > 300
        print({name: sum(client.stats()[name] for client in clients) for name in clients[0].stats()})
