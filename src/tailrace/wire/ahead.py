"""The next one of a sequence, made while whoever took the last one is still busy with it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(items: Iterator[T], worth_it: Callable[[T], bool]) -> Iterator[T]:
    """The same items in the same order. Behind one of which `worth_it` says so, the next one is asked for at once, by a
    thread of its own; behind others only when it is wanted, since each hand-over between threads has its price."""
    helper = ThreadPoolExecutor(1, thread_name_prefix="tailrace ahead")  # has no thread before it is used
    try:
        while True:
            try:
                item = next(items)
            except StopIteration:
                return
            while worth_it(item):
                coming = helper.submit(next, items, None)
                yield item
                if (following := coming.result()) is None:
                    return
                item = following
            yield item
    finally:
        helper.shutdown(wait=False)
