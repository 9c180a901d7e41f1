"""Which layer a late consumer reads: as `streams.quicker` promises."""

import pytest

from tailrace.streams.quicker import Quicker

MIB = 1 << 20


def late(files_s: float | None = None, cache_s: float | None = None) -> Quicker:
    """One that is a hundred megabytes behind, after a read of each layer that took so long for a megabyte."""
    quicker = Quicker()
    quicker.far = True
    quicker.heard(100 * MIB)
    if files_s is not None:
        quicker.took(0, MIB, files_s, files=True)
    if cache_s is not None:
        quicker.took(0, MIB, cache_s, files=False)
    return quicker


def reads(quicker: Quicker, count: int, files_s: float, cache_s: float) -> list[bool]:
    """Whether each of the next reads is one of the files."""
    chosen = []
    for _ in range(count):
        files = quicker.is_files(0)
        quicker.took(0, MIB, files_s if files else cache_s, files=files)
        chosen.append(files)
    return chosen


def test_near_the_head_the_cache_comes_first_however_slow_it_is():
    quicker = late(files_s=0.001, cache_s=1.0)
    assert quicker.is_files(95 * MIB)
    assert not quicker.is_files(96 * MIB)
    assert not quicker.is_files(200 * MIB)


def test_a_cache_of_this_host_is_no_question():
    quicker = late(files_s=0.001, cache_s=1.0)
    quicker.far = False
    assert not quicker.is_files(0)


def test_how_far_the_cache_goes_only_grows():
    quicker = late()
    quicker.heard(10)
    assert quicker.is_files(95 * MIB)


def test_each_layer_is_tried_before_one_is_preferred():
    assert late().is_files(0)
    assert not late(files_s=0.001).is_files(0)
    assert late(cache_s=0.001).is_files(0)


@pytest.mark.parametrize(("files_s", "cache_s"), [(0.001, 0.004), (0.004, 0.001)])
def test_the_quicker_one_is_read_and_the_other_one_tried_now_and_then(files_s, cache_s):
    chosen = reads(late(files_s, cache_s), 650, files_s, cache_s)
    better = files_s < cache_s
    assert chosen.count(not better) == 10
    assert chosen[0] is better


def test_it_notices_when_the_other_one_has_become_quicker():
    quicker = late(files_s=0.001, cache_s=0.004)
    assert all(reads(quicker, 60, 0.001, 0.004))
    chosen = reads(quicker, 200, 0.1, 0.004)  # what is read now is not in memory any more
    assert chosen[-100:].count(True) <= 2


def test_one_read_that_was_pushed_aside_changes_nothing():
    quicker = late(files_s=0.001, cache_s=0.004)
    reads(quicker, 20, 0.001, 0.004)
    quicker.took(0, MIB, 5.0, files=True)
    assert quicker.is_files(0)


def test_small_reads_and_those_near_the_head_tell_nothing():
    quicker = late(files_s=0.001, cache_s=0.002)
    for _ in range(100):
        quicker.took(0, 60_000, 1.0, files=True)
        quicker.took(99 * MIB, MIB, 1.0, files=True)
    assert quicker.is_files(0)


def test_a_layer_that_was_asked_in_vain_is_the_slower_one():
    quicker = late(files_s=0.001, cache_s=0.004)
    quicker.took(0, MIB, 0.004, files=True, in_vain=True)
    for _ in range(20):
        quicker.took(0, MIB, 0.001, files=True, in_vain=True)
    assert not quicker.is_files(0)
    quicker = late(files_s=0.5)
    quicker.took(0, MIB, 0.001, files=False, in_vain=True)
    assert quicker.is_files(0)
