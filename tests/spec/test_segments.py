"""How the files of a shard hang together."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.model import MessageFile
from tailrace.model.segment import newest_segment
from tailrace.native import ENTRY_BYTES
from tailrace.streams.segments import (
    HEADER_BYTES,
    IndexHeader,
    Segment,
    entries_in,
    newest_creation_us,
    segments_of,
)


def names(*segments: tuple[int, int, int]) -> list[str]:
    return [name for s in segments for name in (Segment(*s).data_name, Segment(*s).index_name)]


def test_names_sort_in_order_of_creation() -> None:
    made = [MessageFile(created, base, "data").name for created, base in [(9, 0), (10, 5), (100, 7), (10**15, 10**12)]]
    assert sorted(made) == made


@pytest.mark.parametrize(
    "name",
    ["", "x.data", "1-2.data", "0" * 20 + "-" + "0" * 20 + ".log", "0" * 20 + "-" + "0" * 20 + ".data~", "stream.json"],
)
def test_other_names_are_no_message_files(name: str) -> None:
    assert MessageFile.parse(name) is None


def test_a_segment_needs_both_halves() -> None:
    whole = names((5, 0, 0), (7, 100, 72))
    assert segments_of(reversed(whole)) == [Segment(5, 0, 0), Segment(7, 100, 72)]
    assert segments_of(whole[1:]) == [Segment(7, 100, 72)]
    assert segments_of([*whole, "stream.json", MessageFile(9, 100, "data").name]) == [
        Segment(5, 0, 0),
        Segment(7, 100, 72),
    ]


@given(
    st.sets(
        st.builds(MessageFile, st.integers(1, 6), st.integers(0, 2), st.sampled_from(["data", "index"])), max_size=9
    )
)
def test_the_newest_segment_is_the_last_of_all(files: set[MessageFile]) -> None:
    one_each = {(file.created_us, file.track): file.name for file in files}  # as in a shard: a time has one of each
    listed = sorted([*one_each.values(), "copy.json", "00000000000000000009-x"])
    assert newest_segment(listed) == (segments_of(listed) or [None])[-1]


def test_the_next_segment_tells_how_many_messages_this_one_has() -> None:
    first = Segment(5, 0, 0)
    assert first.entries_before(Segment(7, 100, first.index_base_after(4))) == 4
    assert first.entries_before(Segment(7, 0, first.index_base_after(0))) == 0
    assert first.entries_before(Segment(7, 0, 0)) == 0, "a segment that was never finished has none"


def test_only_whole_entries_count() -> None:
    assert entries_in(0) == entries_in(HEADER_BYTES) == entries_in(HEADER_BYTES + ENTRY_BYTES - 1) == 0
    assert entries_in(HEADER_BYTES + 3 * ENTRY_BYTES + 1) == 3


def test_a_new_name_sorts_behind_half_made_files_too() -> None:
    assert newest_creation_us([*names((5, 0, 0)), MessageFile(9, 0, "data").name, "other"]) == 9
    assert newest_creation_us([]) == 0


def test_the_index_header_survives_a_round_trip_and_nothing_else() -> None:
    header = IndexHeader(created_us=1_700_000_000_000_000, base_position=2**40, base_number=12345)
    raw = header.encode()
    assert len(raw) == HEADER_BYTES
    assert IndexHeader.decode(raw) == header
    for byte in range(HEADER_BYTES):
        for bit in range(8):
            broken = bytearray(raw)
            broken[byte] ^= 1 << bit
            with pytest.raises(ValueError, match=r"."):
                IndexHeader.decode(bytes(broken))
    with pytest.raises(ValueError, match="47 bytes"):
        IndexHeader.decode(raw[:-1])


def test_another_version_is_named() -> None:
    raw = bytearray(IndexHeader(1, 2, 3).encode())
    raw[8] = 9
    with pytest.raises(ValueError, match="version 9; this Tailrace reads version 1"):
        IndexHeader.decode(bytes(raw))


def test_the_model_knows_the_width_of_an_entry() -> None:
    from tailrace import native
    from tailrace.model import segment

    assert segment.ENTRY_BYTES == native.ENTRY_BYTES
