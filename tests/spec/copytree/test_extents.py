"""What of a shard is copied next: whatever the source has and wherever the copy stands, the copy becomes equal."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tailrace.copytree.extents import Cursor, Extent, after, extents_of, missing_bytes, next_run
from tailrace.copytree.window import BATCHES, LARGE_BYTES, Window
from tailrace.model.segment import Segment


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[Segment], int, int]:
    """Segments as producers leave them, some never finished, and how much of the newest is flushed."""
    segments, created, data, index = [], 0, draw(st.integers(0, 100)), draw(st.integers(0, 100))
    for _ in range(draw(st.integers(0, 5))):
        created += draw(st.integers(1, 3))
        segments.append(Segment(created, data, index))
        if draw(st.booleans()):
            data, index = data + draw(st.integers(0, 50)), index + draw(st.integers(1, 50))
    return segments, draw(st.integers(0, 60)), draw(st.integers(0, 60))


def copy_all(extents: list[Extent], at: Cursor, size_max: int) -> tuple[Cursor, list[tuple[int, str]]]:
    steps = []
    while (run := next_run(extents, at, size_max)) is not None:
        assert 0 < run.size <= size_max
        assert run.offset == (at.length(run.track) if run.segment == at.segment else 0)
        steps.append((run.segment.created_us, run.track))
        at = after(at, run)
    return at, steps


@given(shards(), st.integers(1, 40))
def test_everything_is_sent_once_in_order_and_data_before_index(
    shard: tuple[list[Segment], int, int], size_max: int
) -> None:
    extents = extents_of(*shard)
    at, steps = copy_all(extents, Cursor(), size_max)
    assert missing_bytes(extents, at) == 0
    assert steps == sorted(steps)  # by segment; "data" sorts before "index"
    sent = {extent.segment.created_us: extent for extent in extents if extent.data_length + extent.index_length}
    assert {created for created, _ in steps} == set(sent)


@given(shards(), st.data())
def test_it_goes_on_wherever_it_was_cut_off(shard: tuple[list[Segment], int, int], data: st.DataObject) -> None:
    extents = extents_of(*shard)
    at = Cursor()
    for _ in range(data.draw(st.integers(0, 30))):
        if (run := next_run(extents, at, data.draw(st.integers(1, 20)))) is None:
            break
        at = after(at, run)
    end, _ = copy_all(extents, at, 7)
    assert end == copy_all(extents, Cursor(), 1000)[0]


@given(shards())
def test_nothing_beyond_the_next_base_is_sent(shard: tuple[list[Segment], int, int]) -> None:
    segments, data_flushed, index_flushed = shard
    extents = {extent.segment: extent for extent in extents_of(segments, data_flushed, index_flushed)}
    for segment, later in pairwise(segments):
        if extent := extents.get(segment):
            assert extent.final
            assert segment.index_base + extent.index_length == later.index_base
            assert segment.data_base + extent.data_length == later.data_base
        else:
            assert segment.index_base == later.index_base


def test_a_copy_that_is_ahead_of_its_source_waits() -> None:
    """After a new route, the parent may be behind its new child."""
    segment = Segment(5, 0, 0)
    assert next_run([Extent(segment, 10, 10, final=False)], Cursor(segment, 20, 12), 100) is None
    assert next_run([Extent(Segment(4, 0, 0), 10, 10, final=True)], Cursor(segment, 1, 1), 100) is None


def test_a_segment_that_the_source_has_lost_is_left() -> None:
    later = Segment(9, 100, 100)
    run = next_run([Extent(later, 10, 10, final=False)], Cursor(Segment(5, 0, 0), 20, 12), 100)
    assert run is not None
    assert (run.segment, run.offset) == (later, 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=30), st.integers(0, 40))
def test_what_is_on_its_way_is_bounded_by_the_window_and_one_batch(steps: list[tuple[int, int]], granted: int) -> None:
    window, taken = Window(), 0
    assert window.taken(0, granted, 0.0)
    for want, done in steps:
        size = min(want, window.room_bytes)
        before = window.sent_bytes - window.taken_bytes
        window.sent(size, 0.0)
        assert before == 0 or window.sent_bytes - window.taken_bytes <= max(granted, before)
        taken = min(taken + done, window.sent_bytes)
        assert window.taken(taken, granted, 0.0)
        if taken == window.sent_bytes:
            assert window.room_bytes >= 1  # it never stops for good
    assert not window.taken(window.sent_bytes + 1, granted, 0.0)


def test_as_many_batches_are_on_their_way_as_the_way_is_long() -> None:
    """Small ones are put together at the source while the writer is late."""
    window, now_s = Window(), 0.0
    window.taken(0, 1 << 20, now_s)
    while window.room_bytes:
        window.sent(10, now_s)
    assert window.sent_bytes == 10 * window.batches_max
    first = window.batches_max
    window.taken(window.sent_bytes, 1 << 20, 0.1)  # a way of 100 ms
    assert window.batches_max == first + 20


def test_the_largest_batches_do_not_count() -> None:
    """Nothing larger would be made of them, and together they share a sync."""
    window = Window()
    assert window.taken(0, 64 * LARGE_BYTES, 0.0)
    for _ in range(BATCHES + 5):
        assert window.room_bytes
        window.sent(LARGE_BYTES, 0.0)
    for _ in range(BATCHES):
        assert window.room_bytes
        window.sent(LARGE_BYTES - 1, 0.0)
    assert not window.room_bytes
    assert window.taken((BATCHES + 5) * LARGE_BYTES, 64 * LARGE_BYTES, 0.0)
    assert not window.room_bytes  # the small ones are still on their way
    assert window.taken((BATCHES + 6) * LARGE_BYTES - 1, 64 * LARGE_BYTES, 0.0)
    assert window.room_bytes
