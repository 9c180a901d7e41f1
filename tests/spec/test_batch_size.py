"""How much a consumer that copies reads at once."""

from tailrace.streams.batch_size import BatchSize

KIB, MIB = 1 << 10, 1 << 20


def sizes(size: BatchSize, batches: int, share: float = 1.0) -> list[int]:
    """Of so many batches, each filled to this share."""
    found = []
    for _ in range(batches):
        found.append(size.bytes)
        size.note(int(share * size.bytes))
    return found


def test_batches_become_larger_for_those_who_read_much() -> None:
    expected = [512 * KIB] * 16 + [MIB] * 16 + [2 * MIB] * 16 + [4 * MIB] * 52
    assert sizes(BatchSize(4 * MIB), 100) == expected


def test_batches_that_are_not_filled_are_no_reason_for_larger_ones() -> None:
    assert set(sizes(BatchSize(4 * MIB), 100, share=0.4)) == {512 * KIB}


def test_they_never_become_larger_than_told_and_not_smaller_either_if_they_are_not_to_grow() -> None:
    assert max(sizes(BatchSize(700 * KIB), 100)) == 700 * KIB
    assert set(sizes(BatchSize(100), 50)) == {100}
    assert set(sizes(BatchSize(9 * MIB, grows=False), 50)) == {9 * MIB}
