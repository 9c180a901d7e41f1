"""Frames of mutations by engines: what is known of each in the end, whatever happens on its way."""

import threading
from contextlib import contextmanager

import pytest

from conftest import wait_until
from tailrace.native.cell import Outcome
from tailrace.native.client import KIND_SET, Couriers, Delivery, pack
from tailrace.native.engine import TICKET_BYTES, Engine

from .cohorts import PATIENCE_S, Gate, cohort
from .frames import ERASE, SET, Mutation, written

NOTHING = (0, 0, 0)


@contextmanager
def taking(count=3, **settings):
    """Cells with engines that take mutations, and couriers to all of them."""
    with cohort(count) as made:
        for number, (path, cell) in enumerate(zip(made.paths, made.cells, strict=True)):
            made.engines[number] = Engine(path, mutator=cell.mutator(3_600_000_000), **settings)
        couriers = Couriers(count)
        for number in range(count):
            attach(made, couriers, number)
        yield made, couriers


def attach(made, couriers, number, gate=None):
    host, port = (gate or made.engine(number)).address
    couriers.attach(number, host, port, made.ticket(number), made.cells[number].instance_id, PATIENCE_S)


def frame_of(*mutations):
    return written(list(mutations)), list(range(len(mutations)))


def one(backend, *mutations):
    frame, numbers = frame_of(*mutations)
    return backend, frame, numbers


def test_frames_are_taken_and_outcomes_come_back():
    with taking() as (made, couriers):
        keys = [b"key %d" % number for number in range(500)]
        frames = pack(KIND_SET, keys, [key * 20 for key in keys], (5, 1, 0), None, 0, 3, 3, frame_bytes_max=4096)
        assert len(frames) > 10
        told = couriers.deliver(frames, PATIENCE_S)
        assert [(delivery, floor) for delivery, _, floor in told] == [(Delivery.TAKEN, NOTHING)] * len(frames)
        for (_, _, numbers), (_, outcomes, _) in zip(frames, told, strict=True):
            assert outcomes == bytes(len(numbers))
        for cell in made.cells:
            assert sorted(cell.items()) == sorted((key, key * 20, (5, 1, i), 0) for i, key in enumerate(keys))


def test_refusals_are_outcomes_and_bring_the_floor():
    with taking(1) as (made, couriers):
        made.cells[0].set(b"k", b"v", (9, 1, 0))
        [(delivery, outcomes, floor)] = couriers.deliver(
            [
                one(
                    0,
                    Mutation(SET, b"k", b"old", (8, 1, 0)),
                    Mutation(ERASE, b"k", b"", (9, 1, 1)),
                    Mutation(SET, b"far", b"", ((1 << 64) - 1, 0, 0)),
                )
            ],
            PATIENCE_S,
        )
        assert delivery is Delivery.TAKEN
        assert list(outcomes) == [Outcome.STALE, Outcome.APPLIED, Outcome.AHEAD]
        assert floor == (9, 1, 0)


def test_frames_of_one_backend_arrive_in_their_order():
    with taking(1) as (made, couriers):
        frames = [one(0, Mutation(SET, b"k", b"%d" % clock, (clock, 1, 0))) for clock in range(1, 200)]
        assert [told[1] for told in couriers.deliver(frames, PATIENCE_S)] == [b"\0"] * 199
        assert made.cells[0].get(b"k", 0) == (b"199", (199, 1, 0))


def test_a_wrong_frame_is_said_to_be_wrong_and_the_others_are_taken():
    with taking(1) as (made, couriers):
        good, wrong = one(0, Mutation(SET, b"k", b"v")), one(0, Mutation(7, b"k", b"v"))
        told = couriers.deliver([good, wrong, one(0, Mutation(SET, b"l", b"v"))], PATIENCE_S)
        assert [delivery for delivery, *_ in told] == [Delivery.TAKEN, Delivery.WRONG, Delivery.TAKEN]
        assert b"no known kind (7)" in told[1][1]
        assert couriers.attached(0)
        assert made.cells[0].stats()["records"] == 2


def test_an_engine_without_a_backend_takes_none():
    with cohort(1) as made:
        couriers = Couriers(1)
        attach(made, couriers, 0)  # an engine that only reads
        [(delivery, *_)] = couriers.deliver([one(0, Mutation(SET, b"k", b"v"))], PATIENCE_S)
        assert delivery is Delivery.SHUT
        assert made.cells[0].get(b"k", 0) is None


def test_a_closed_cell_takes_none():
    with taking(1) as (made, couriers):
        made.cells[0].close()
        [(delivery, *_)] = couriers.deliver([one(0, Mutation(SET, b"k", b"v"))], PATIENCE_S)
        assert delivery in (Delivery.SHUT, Delivery.MOVED)


def test_a_successor_does_not_take_what_was_meant_for_its_predecessor():
    with taking(1) as (made, couriers):
        cell = made.restart(0)
        [(delivery, *_)] = couriers.deliver([one(0, Mutation(SET, b"k", b"v"))], PATIENCE_S)
        assert delivery in (Delivery.SHUT, Delivery.MOVED)
        assert cell.get(b"k", 0) is None
        with pytest.raises(ValueError, match="instance"):
            host, port = made.engine(0).address
            couriers.attach(0, host, port, made.ticket(0), 1234, PATIENCE_S)
        assert not couriers.attached(0)


def test_without_a_connection_it_is_unsent():
    with taking(3) as (made, couriers):
        couriers.detach(1)
        frames = [one(number, Mutation(SET, b"k", b"v")) for number in (0, 1, 2)]
        told = couriers.deliver([*frames, one(7, Mutation(SET, b"k", b"v"))], PATIENCE_S)
        assert [delivery for delivery, *_ in told] == [Delivery.TAKEN, Delivery.UNSENT, Delivery.TAKEN, Delivery.UNSENT]
        assert made.cells[1].get(b"k", 0) is None


def test_a_frame_larger_than_the_engine_takes_is_unsent():
    with taking(1, request_bytes_max=4096) as (made, couriers):
        frames = [one(0, Mutation(SET, b"large", bytes(5000))), one(0, Mutation(SET, b"small", b"v"))]
        assert [told[0] for told in couriers.deliver(frames, PATIENCE_S)] == [Delivery.UNSENT, Delivery.TAKEN]
        assert [key for key, *_ in made.cells[0].items()] == [b"small"]


def test_a_silent_engine_leaves_it_unknown_and_the_others_are_taken():
    """It did arrive, and who sent it cannot know. The connection is given up, so that the late answer means nothing."""
    with taking(3) as (made, couriers), Gate(made.engine(1)) as gate:
        attach(made, couriers, 1, gate)
        gate.shut()
        frames = [one(number, Mutation(SET, b"k", b"v")) for number in range(3)]
        told = couriers.deliver(frames, 0.05)
        assert [delivery for delivery, *_ in told] == [Delivery.TAKEN, Delivery.UNKNOWN, Delivery.TAKEN]
        assert [couriers.attached(number) for number in range(3)] == [True, False, True]
        wait_until(lambda: made.cells[1].get(b"k", 0) is not None, "what nobody knew of")
        assert couriers.deliver(frames[1:2], 0.05)[0][0] is Delivery.UNSENT


def test_no_time_at_all_is_no_reason_to_hang():
    with taking(1) as (_, couriers):
        [(delivery, *_)] = couriers.deliver([one(0, Mutation(SET, b"k", b"v"))], -1.0)
        assert delivery in (Delivery.UNKNOWN, Delivery.TAKEN, Delivery.UNSENT)


def test_a_connection_that_breaks_leaves_it_unknown():
    with taking(1) as (made, couriers), Gate(made.engine(0)) as gate:
        attach(made, couriers, 0, gate)
        gate.shut()
        told = []
        frames = [one(0, Mutation(SET, b"k%d" % number, b"v")) for number in range(3)]
        thread = threading.Thread(target=lambda: told.extend(couriers.deliver(frames, PATIENCE_S)))
        thread.start()
        wait_until(lambda: gate.asked_bytes, "the frames to be sent")
        with pytest.raises(RuntimeError, match="another thread"):
            couriers.deliver([], 0.0)
        gate.cut()
        thread.join()
        assert told[0][0] is Delivery.UNKNOWN
        assert {delivery for delivery, *_ in told} <= {Delivery.UNKNOWN, Delivery.UNSENT}
        assert not couriers.attached(0)


def test_many_large_frames_to_a_slow_engine():
    """More than the kernel holds in both directions: sending and receiving take turns."""
    with taking(2) as (made, couriers):
        value = bytes(60_000)
        frames = [
            one(number % 2, Mutation(SET, b"key %d" % (number % 8), value, (number + 1, 1, 0))) for number in range(200)
        ]
        assert all(told[:2] == (Delivery.TAKEN, b"\0") for told in couriers.deliver(frames, PATIENCE_S))
        assert all(cell.stats()["records"] == 4 for cell in made.cells)


def test_arguments_that_cannot_be_right():
    couriers = Couriers(2)
    with pytest.raises(ValueError, match="backend 2"):
        couriers.attach(2, "127.0.0.1", 1, bytes(TICKET_BYTES), 0, 1.0)
    with pytest.raises(ValueError, match="ticket"):
        couriers.attach(0, "127.0.0.1", 1, b"", 0, 1.0)
    assert couriers.deliver([], 1.0) == []
    assert not couriers.attached(9)
