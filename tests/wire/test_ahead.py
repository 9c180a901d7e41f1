"""The next one is made while the last one is dealt with, where it is worth it; what comes out is the same."""

import threading
from collections.abc import Iterator

import pytest

from tailrace.wire.ahead import ahead


@pytest.mark.parametrize("worth", [lambda number: True, lambda number: False, lambda number: number % 3 != 1])
def test_the_same_items_in_the_same_order(worth):
    assert list(ahead(iter(range(50)), worth)) == list(range(50))
    assert list(ahead(iter([]), worth)) == []


def test_the_next_one_is_made_while_the_last_one_is_dealt_with():
    made = [threading.Event() for _ in range(3)]

    def items() -> Iterator[int]:
        for number, event in enumerate(made):
            event.set()
            yield number

    taken = ahead(items(), lambda number: number == 0)
    assert next(taken) == 0
    assert made[1].wait(10)  # nobody has asked for it yet
    assert next(taken) == 1
    assert not made[2].is_set()  # that was not worth it
    assert list(taken) == [2]


def test_a_problem_comes_where_its_item_would_have():
    def items() -> Iterator[int]:
        yield 1
        yield 2
        raise ValueError("torn")

    taken = ahead(items(), lambda number: True)
    assert [next(taken), next(taken)] == [1, 2]
    with pytest.raises(ValueError, match="torn"):
        next(taken)


def test_whoever_stops_in_the_middle_leaves_no_thread_at_work():
    before = set(threading.enumerate())
    taken = ahead(iter(range(10)), lambda number: True)
    assert next(taken) == 0
    taken.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
        assert not thread.is_alive()
