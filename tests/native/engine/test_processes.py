"""A backend, its engine and its clients as processes: races, and a backend that is stopped, killed, or followed."""

import os
import signal
from contextlib import contextmanager

from conftest import freeze, wait_until
from tailrace.native.engine import Engine, Link, State

from ..cell.actors import is_true
from ..cell.places import folder
from .actors import KEYS, busy_backend, busy_client, calm_backend
from .served import SPAWN, EngineProcess, link_to, ticket_for

CALLS = 1500


@contextmanager
def actor(role, *arguments):
    """A process and our end of its channel. Killed at the end, whatever happened; a stopped one too."""
    ours, theirs = SPAWN.Pipe()
    first, *more = arguments
    process = SPAWN.Process(target=role, args=(first, theirs, *more))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def answer_of(channel):
    assert channel.poll(120), "no answer from the process"
    return channel.recv()


def test_clients_never_see_a_wrong_value_while_everything_moves():
    with folder() as path, actor(busy_backend, path, 1) as (_, backend):
        assert answer_of(backend) == "ready"
        with (
            Engine(path) as engine,
            actor(busy_client, engine.address, ticket_for(engine), CALLS) as (_, first),
            actor(busy_client, engine.address, ticket_for(engine), CALLS + 1) as (_, second),
        ):
            seen = [answer_of(first), answer_of(second)]
            renewals = engine.stats()["renewals"]
        backend.send("stop")
        stats = answer_of(backend)
    assert stats["growths"] >= 2
    assert stats["evicted_capacity"] + stats["expired"] > 0
    for one in seen:
        assert (one["wrong"], one["backwards"], one["changed_hands"]) == (0, 0, 0)
        assert one["unproven"] < one["true"] // 10, "bytes that were written over on their way are few"
        assert one["true"] == one["HIT"] > CALLS
        assert one["MISS"] > 0
    print("seen:", seen, "index renewed:", renewals)


def assert_served(link):
    """Nearly all keys are there: a backend may have been caught in the few words of one bucket's change."""
    states = []
    for key, (state, value, version) in zip(KEYS, link.scan(KEYS, 0), strict=True):
        assert value is None or is_true(key, version, value)
        states.append(state)
    assert sum(state in (State.HIT, State.ASK) for state in states) >= len(KEYS) - 8
    return states


def test_a_stopped_backend_is_served_on():
    """Its engine is in another process, and needs nothing of it."""
    with (
        folder() as path,
        actor(busy_backend, path, 2) as (process, backend),
    ):
        assert answer_of(backend) == "ready"
        with EngineProcess(path) as engine:
            ticket = os.urandom(32)
            engine.admit(ticket, 60.0)
            with Link(*engine.address, ticket, 60.0) as link:
                for _ in range(20):
                    freeze(process.pid)
                    assert assert_served(link) == assert_served(link), "nothing moves"
                    os.kill(process.pid, signal.SIGCONT)


def test_a_killed_backend_is_served_until_the_next_one_starts():
    with folder() as path, actor(busy_backend, path, 3) as (process, backend):
        assert answer_of(backend) == "ready"
        with Engine(path) as engine, link_to(engine) as link:
            process.kill()
            process.join()
            assert_served(link)
            instance = link.instance_id
            with actor(busy_backend, path, 4) as (_, successor):
                assert answer_of(successor) == "ready"

                def has_moved_on() -> bool:
                    states = [state for state, _, _ in link.scan(KEYS, 0)]
                    return State.REVOKED not in states and link.instance_id != instance

                wait_until(has_moved_on, "the successor to be served")
                for key, (_, value, version) in zip(KEYS, link.scan(KEYS, 0), strict=True):
                    assert value is None or (is_true(key, version, value) and version[1] == 4)
            assert link.stats()["changed_hands"] >= 1


def test_backends_come_and_go_under_busy_clients():
    """Clients ask all the time while four backends follow each other. Nobody sees a wrong value."""
    with folder() as path, actor(busy_backend, path, 5) as (_, backend):
        assert answer_of(backend) == "ready"
        with Engine(path) as engine, actor(busy_client, engine.address, ticket_for(engine), 3 * CALLS) as (_, client):
            backend.send("stop")
            answer_of(backend)
            for seed in (6, 7, 8):
                with actor(busy_backend, path, seed, 1 << 30) as (process, successor):
                    assert answer_of(successor) == "ready"
                    process.kill()
                    process.join()
            seen = answer_of(client)
    assert seen["wrong"] == 0
    assert seen["true"] > 0


def test_an_engine_serves_while_its_own_process_runs_no_python():
    """The backend's thread of Python waits for its channel, and nobody writes to it."""
    with folder() as path, actor(calm_backend, path, 500, 1000, {}) as (_, backend):
        address, ticket = answer_of(backend), os.urandom(32)
        backend.send(ticket)
        assert answer_of(backend) == address
        with Link(*address, ticket, 60.0) as link:
            keys = [b"key %d" % number for number in range(500)]
            for _ in range(20):
                assert sum(state == State.HIT for state, _, _ in link.scan(keys, 0)) > 450
                assert sum(state == State.HIT for state, _, _ in link.read(keys, 0)) > 450
