"""Sleeping until a key has another value, by engines of several backends."""

import threading
from contextlib import contextmanager

import pytest

from conftest import wait_until
from tailrace.native.client import Watcher
from tailrace.native.engine import Engine

from .cohorts import PATIENCE_S, Gate, cohort


@contextmanager
def watched(*keys, count=2, skip=(0, 0)):
    """Cells with engines that hear of mutations, and a watch of keys of which each is asked of another backend."""
    with cohort(count) as made:
        for number, (path, cell) in enumerate(zip(made.paths, made.cells, strict=True)):
            made.engines[number] = Engine(path, mutator=cell.mutator(3_600_000_000))
        watcher = Watcher(list(keys), [number % count for number in range(len(keys))], skip)
        for number in range(min(count, len(keys))):
            watcher.attach(number, *made.engine(number).address, made.ticket(number), PATIENCE_S)
        yield made, watcher


def test_the_first_answer_is_news_and_then_only_what_changes():
    with watched(b"a", b"b") as (made, watcher):
        made.cells[0].set(b"a", b"1", (1, 1, 1))
        made.cells[1].set(b"b", b"1", (1, 1, 1))
        while watcher.wait(0.05):  # each backend may answer alone
            pass
        made.cells[1].set(b"b", b"2", (2, 1, 1))
        assert watcher.wait(PATIENCE_S)
        assert not watcher.wait(0.0)
        made.cells[0].set(b"b", b"3", (3, 1, 1))  # which is not asked there
        assert not watcher.wait(0.05)
        made.cells[0].erase(b"a", (4, 1, 1))
        assert watcher.wait(PATIENCE_S)
        made.cells[0].set(b"a", b"5", (5, 1, 1))
        assert watcher.wait(PATIENCE_S)


def test_bytes_that_do_not_count_are_no_news_and_all_others_are():
    with watched(b"a", skip=(2, 4)) as (made, watcher):
        cell = made.cells[0]
        cell.set(b"a", b"aabbcc", (1, 1, 1))
        assert watcher.wait(PATIENCE_S)
        for number, value in enumerate([b"aaXXcc", b"aaYYcc"]):
            cell.set(b"a", value, (2, 1, number))
            assert not watcher.wait(0.05)
        for number, value in enumerate([b"XaYYcc", b"XaYYcX", b"XaYYcXX", b"XaY", b"Xa", b""]):
            cell.set(b"a", value, (3, 1, number))
            assert watcher.wait(PATIENCE_S), value


def test_what_is_news_comes_along_with_it():
    with watched(b"a", b"b", skip=(0, 1)) as (made, watcher):
        assert [watcher.value(number) for number in (0, 1, 2)] == [None, None, None]
        made.cells[0].set(b"a", b"1one", (1, 1, 1))
        wait_until(lambda: watcher.wait(PATIENCE_S) and watcher.value(0) == b"1one", "news of the first")
        assert watcher.value(1) is None
        made.cells[1].set(b"b", b"1two", (1, 1, 1))
        wait_until(lambda: watcher.wait(PATIENCE_S) and watcher.value(1) == b"1two", "news of the second")
        made.cells[0].set(b"a", b"2one", (2, 1, 1))
        assert not watcher.wait(0.05)
        assert watcher.value(0) == b"1one", "what does not count is no news"
        made.cells[0].erase(b"a", (3, 1, 1))
        assert watcher.wait(PATIENCE_S)
        assert watcher.value(0) is None


def test_whoever_waits_is_woken_by_stop_and_nobody_waits_any_more():
    with watched(b"a") as (made, watcher):
        made.cells[0].set(b"a", b"1", (1, 1, 1))
        assert watcher.wait(PATIENCE_S)
        ended = threading.Event()
        thread = threading.Thread(target=lambda: (watcher.wait(3600.0), ended.set()))
        thread.start()
        wait_until(lambda: made.engine(0).stats()["requests"] >= 1, "the engine to be asked")
        watcher.stop()
        thread.join()
        assert ended.is_set()
        assert not watcher.wait(3600.0)


def test_two_threads_at_once_are_refused():
    with watched(b"a") as (made, watcher):
        made.cells[0].set(b"a", b"1", (1, 1, 1))
        assert watcher.wait(PATIENCE_S)
        thread = threading.Thread(target=watcher.wait, args=(3600.0,))
        thread.start()

        def refused():
            try:
                watcher.wait(0.0)
            except RuntimeError:
                return True
            return False

        wait_until(refused, "the other thread to wait")
        watcher.stop()
        thread.join()


def test_an_engine_that_goes_away_ends_the_watch():
    with watched(b"a") as (made, watcher):
        made.cells[0].set(b"a", b"1", (1, 1, 1))
        assert watcher.wait(PATIENCE_S)
        made.engine(0).close()
        for _ in range(2):
            with pytest.raises(ConnectionError):
                watcher.wait(PATIENCE_S)


def test_nobody_attached_and_wrong_settings():
    with pytest.raises(ConnectionError):
        Watcher([b"a"], [0]).wait(0.0)
    for keys, places, skip in (([], [], (0, 0)), ([b"a"], [], (0, 0)), ([b"a"], [0], (2, 1))):
        with pytest.raises(ValueError, match="keys at"):
            Watcher(keys, places, skip)
    with cohort(1) as made:
        made.engines[0] = Engine(made.paths[0])
        watcher = Watcher([b"a"], [0])
        with pytest.raises(ValueError, match="ticket"):
            watcher.attach(0, *made.engine(0).address, b"short", PATIENCE_S)
        with pytest.raises(OSError, match="ticket"):
            watcher.attach(0, *made.engine(0).address, bytes(32), PATIENCE_S)


def test_a_connection_that_breaks_ends_the_watch():
    with cohort(1) as made:
        made.engines[0] = Engine(made.paths[0], mutator=made.cells[0].mutator(3_600_000_000))
        made.cells[0].set(b"a", b"1", (1, 1, 1))
        with Gate(made.engine(0)) as gate:
            watcher = Watcher([b"a"], [0])
            watcher.attach(0, *gate.address, made.ticket(0), PATIENCE_S)
            assert watcher.wait(PATIENCE_S)
            gate.cut()
            with pytest.raises(ConnectionError):
                watcher.wait(PATIENCE_S)
