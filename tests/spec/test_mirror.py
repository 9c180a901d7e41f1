"""What an ambassador brings: whole chunks from the first one on, and nothing is told before."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tailrace.files.lengths import SegmentLengths, ShardLengths
from tailrace.streams.mirror import BACK_BYTES, TRACKS, ShardMirror
from tailrace.streams.segments import Segment

FIRST, SECOND = Segment(1, 0, 0), Segment(2, 100, 48)


def told(*segments: tuple[Segment, int], chunk_bytes: int = 10, beat_us: int = 0) -> ShardLengths:
    return ShardLengths(
        tuple(
            SegmentLengths(one, chunk_bytes, chunk_bytes, length, length, length, length) for one, length in segments
        ),
        beat_us,
    )


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 45), st.integers(0, 50)), max_size=20), st.integers(1, 16))
def test_what_is_told_was_brought(steps: list[tuple[int, int, int]], chunk_bytes: int) -> None:
    """`steps`: so much longer is the file; so much is brought at once; so much of the last piece is not there yet."""
    mirror, length = ShardMirror(), 0
    here: dict[str, dict[int, int]] = {track: {} for track in TRACKS}  # bytes of each chunk
    for more, piece_bytes, short in steps:
        length += more
        now = told((FIRST, length), chunk_bytes=chunk_bytes)
        mirror.meet(now)
        for track in TRACKS:
            while (piece := mirror.missing(FIRST, track, length, piece_bytes)) is not None:
                size, begin, end = piece
                assert size == chunk_bytes
                assert begin % chunk_bytes == 0
                assert begin < end <= length
                end = max(begin, end - short)
                if not mirror.wants(FIRST, track, end):
                    break
                for at in range(begin, end, chunk_bytes):
                    here[track][at // chunk_bytes] = min(chunk_bytes, end - at)
                mirror.brought(FIRST, track, end)
        mine = mirror.tell(now, host=7)
        assert mine.host == 7
        for track in TRACKS:
            cached = mine.newest.cached(track)
            assert cached <= length
            for at in range(0, cached, chunk_bytes):
                assert here[track][at // chunk_bytes] >= min(chunk_bytes, cached - at)
        assert mine.newest.data_durable == length


def test_of_a_file_met_in_its_middle_only_the_head_is_brought() -> None:
    mirror, length = ShardMirror(), 3 * BACK_BYTES + 5
    mirror.meet(told((FIRST, length)))
    piece = mirror.missing(FIRST, "data", length, 1 << 30)
    assert piece is not None
    assert length - BACK_BYTES - 10 < piece[1] <= length - BACK_BYTES


def test_later_files_are_brought_from_their_beginning_and_old_ones_forgotten() -> None:
    mirror = ShardMirror()
    mirror.meet(told((FIRST, 100)))
    mirror.brought(FIRST, "data", 100)
    both = told((FIRST, 100), (SECOND, 5 * BACK_BYTES))
    mirror.meet(both)
    assert mirror.missing(FIRST, "data", 100, 1000) is None
    assert mirror.missing(SECOND, "data", 40, 1000) == (10, 0, 40)
    mirror.meet(told((SECOND, 40)))
    assert list(mirror._files) == [(SECOND, track) for track in TRACKS]


def test_what_was_read_beyond_the_cache_at_home_is_durable() -> None:
    mirror, now = ShardMirror(), told((FIRST, 100))
    mirror.meet(now)
    mirror.brought(FIRST, "index", 120)
    mirror.brought(FIRST, "data", 130)
    mine = mirror.tell(now, host=1).newest
    assert mine == replace(now.newest, data_cached=130, index_cached=120, data_durable=130, index_durable=120)
