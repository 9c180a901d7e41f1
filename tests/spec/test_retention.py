"""Which segments may go."""

import pytest

from tailrace.config import Retention
from tailrace.streams.retention import expired
from tailrace.streams.segments import Segment

S = 1_000_000  # microseconds
# Four segments of 1000 data bytes and 100 index bytes, made at 0, 10, 20 and 30 s; the last one grows.
SEGMENTS = [Segment(i * 10 * S, i * 1000, i * 100) for i in range(4)]


def count(policy: Retention, now_s: float = 40.0, newest_bytes: int = 50, passed: tuple[int, ...] = ()) -> int:
    return expired(SEGMENTS, policy, int(now_s * S), newest_bytes, passed)


def test_without_a_policy_everything_stays() -> None:
    assert count(Retention(), now_s=1e9) == 0


@pytest.mark.parametrize(("age_s", "gone"), [(100, 0), (30.5, 0), (29.5, 1), (19.5, 2), (9.5, 3), (0.001, 3)])
def test_by_age_a_segment_goes_when_its_successor_is_too_old(age_s: float, gone: int) -> None:
    assert count(Retention(age_s=age_s)) == gone


@pytest.mark.parametrize(("size", "gone"), [(10_000, 0), (3350, 0), (3349, 1), (2249, 2), (1149, 3), (1, 3)])
def test_by_size_the_oldest_go_until_the_rest_fits(size: int, gone: int) -> None:
    assert count(Retention(size_bytes=size)) == gone


def test_the_newest_never_goes() -> None:
    assert count(Retention(age_s=0.001, size_bytes=1), now_s=1e9) == 3
    assert expired(SEGMENTS[:1], Retention(size_bytes=1), 10**18, 10**9, []) == 0
    assert expired([], Retention(size_bytes=1), 0, 0, []) == 0


def test_either_limit_is_enough() -> None:
    assert count(Retention(age_s=29.5, size_bytes=10_000)) == 1
    assert count(Retention(age_s=1000, size_bytes=2249)) == 2


@pytest.mark.parametrize(
    ("positions", "gone"), [((0,), 0), ((999,), 0), ((1000,), 1), ((2500, 1000), 1), ((3000, 4000), 3)]
)
def test_nothing_goes_that_a_checkpoint_has_not_passed(positions: tuple[int, ...], gone: int) -> None:
    assert count(Retention(size_bytes=1, waits_for=("a",)), passed=positions) == gone


def test_with_checkpoints_alone_segments_go_when_all_have_passed() -> None:
    assert count(Retention(waits_for=("a", "b")), passed=(3000, 2000)) == 2
