"""A backend and its views as processes: races, a backend that is stopped, and one that is killed."""

import multiprocessing
import os
import signal
from contextlib import contextmanager

import pytest

from conftest import freeze
from tailrace.native.cell import CellView

from .actors import KEYS, is_true, read, write
from .places import folder, small_cell

SPAWN = multiprocessing.get_context("spawn")
CALLS = 8000


@contextmanager
def actor(role, *arguments):
    """A process and our end of its channel. Killed at the end, whatever happened; a stopped one too."""
    ours, theirs = SPAWN.Pipe()
    path, *more = arguments
    process = SPAWN.Process(target=role, args=(path, theirs, *more))
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()


def answer_of(channel):
    assert channel.poll(60), "no answer from the process"
    return channel.recv()


@pytest.mark.parametrize("erasing", [False, True])
def test_views_never_see_a_wrong_value(erasing):
    with folder() as path, actor(write, path, 1, erasing) as (_, backend):
        assert answer_of(backend) == "ready"
        with actor(read, path, CALLS) as (_, a), actor(read, path, CALLS) as (_, b), actor(read, path, CALLS) as (_, c):
            seen = [answer_of(channel) for channel in (a, b, c)]
        backend.send("stop")
        stats = answer_of(backend)
    assert stats["growths"] >= (6 if erasing else 1)
    assert not erasing or stats["moved"] > 100
    for one in seen:
        assert (one["wrong"], one["backwards"]) == (0, 0)
        assert one["true"] == one["hits"] > 0
        assert one["hits"] + one["misses"] + one["unsettled"] == CALLS * (len(KEYS) + 1)
        assert one["torn"] >= 0
    print("torn reads that were repeated:", [one["torn"] for one in seen])


def assert_readable(view):
    """Nearly all keys are there: a backend may have been caught in the few words of one bucket's change."""
    before, found = view.stats(), view.get_many(KEYS, 0)
    after = view.stats()
    for key, answer in zip(KEYS, found, strict=True):
        assert answer is None or is_true(key, answer[1], answer[0])
    there = sum(answer is not None for answer in found) + len(view.hints)
    assert there + after["unsettled"] - before["unsettled"] == len(KEYS)
    assert there >= len(KEYS) - 1


def test_a_stopped_backend_disturbs_no_view():
    with folder() as path, actor(write, path, 2, False) as (process, channel):
        assert answer_of(channel) == "ready"
        view = CellView(path)
        for _ in range(20):
            freeze(process.pid)
            assert_readable(view)
            assert_readable(CellView(path))
            assert view.get_many(KEYS, 0) == view.get_many(KEYS, 0), "nothing moves"
            os.kill(process.pid, signal.SIGCONT)


def test_a_killed_backend_is_still_read_until_the_next_one_starts():
    with folder() as path, actor(write, path, 3, False) as (process, channel):
        assert answer_of(channel) == "ready"
        older = CellView(path)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert_readable(older)
        assert_readable(CellView(path))
        last = [answer for answer in older.get_many(KEYS, 0) if answer]

        cell = small_cell(path, config_id=5)
        assert older.get_many(KEYS, 0) == [None] * len(KEYS)
        assert (older.config_id, older.stats()["remaps"]) == (5, 1)
        assert older.get(KEYS[0], 0) is None
        cell.set(KEYS[0], b"anew", (1, 0, 0))
        assert older.get(KEYS[0], 0) == (b"anew", (1, 0, 0))
        assert last
        cell.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_backend_killed_at_any_moment_leaves_nothing_wrong(seed):
    """While keys are erased, replaced, and moved to make room for others."""
    with folder() as path, actor(write, path, 10 + seed, True) as (process, channel):
        assert answer_of(channel) == "ready"
        older = CellView(path)
        for _ in range(300 + 100 * seed):  # some of its life
            older.get_many(KEYS, 0)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        found = [view.get_many(KEYS, 0) for view in (older, CellView(path))]
        assert found[0] == found[1] == older.get_many(KEYS, 0)
        for key, answer in zip(KEYS, found[0], strict=True):
            assert answer is None or is_true(key, answer[1], answer[0])
        there = sum(answer is not None for answer in found[0]) + len(older.hints)
        assert there >= len(KEYS) - 2, "one may be erased, and one caught in a change"
